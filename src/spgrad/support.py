"""The support table: what works, for which operands and layouts, and what it means.

One row per operation. Tests, refusals, the tables in the documents, the benchmarks' list and
`python -m spgrad ops` all come from it. A signature names the operands with their shapes: upper
case is sparse, lower case dense; a sparse result has the layout of the first sparse operand unless
another stands behind a colon. Flipped is the layout of the transpose: CSC for CSR, BSC for BSR, and
the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

ALL = ("coo", "csr", "csc", "bsr", "bsc")
FLIPPED = {"coo": "coo", "csr": "csc", "csc": "csr", "bsr": "bsc", "bsc": "bsr"}


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
        name: Of the function in `spgrad`.
        family: Of operations that share kernels, and stand in one file of `ops`.
        torch: Names in torch that it answers to for a SparseTensor.
        signatures: Operand kinds and shapes, and those of the result.
        dense: The same in terms of dense tensors: its specification.
        masked: True if `dense` also takes `mask`, the pattern of the first sparse operand as a
            dense bool tensor.
        layouts: Layouts that sparse operands may have.
        order: Order of differentiation that is tested; 0 if there is no derivative.
        samples: Keyword arguments to try.
        absent: For a layout that is missing, why.
    """

    name: str
    family: str
    torch: tuple[str, ...]
    signatures: tuple[str, ...]
    dense: Callable[..., Any]
    masked: bool = False
    layouts: tuple[str, ...] = ALL
    order: int = 2
    samples: tuple[Mapping[str, Any], ...] = ({},)
    absent: Mapping[str, str] = field(default_factory=dict)


class Operand(NamedTuple):
    """One operand, or the result, of a signature."""

    name: str
    dims: tuple[str, ...]
    layout: str | None  # of a result, where it is not that of the first sparse operand

    @property
    def sparse(self) -> bool:
        """True for upper-case names."""
        return self.name.isupper()


def parse(signature: str) -> tuple[tuple[Operand, ...], Operand]:
    """Operands and result of a signature such as ``A[m,k] x[k,n] -> y[m,n]``.

    Example:
        >>> operands, result = parse("A[m,k] x[k] -> y[m]")
        >>> [o.sparse for o in operands], result.dims
        ([True, False], ('m',))
    """
    pattern = re.compile(r"(\w)\[([\w,]*)\](?::(\w+))?")
    found = [
        Operand(name, tuple(d for d in dims.split(",") if d), layout or None)
        for name, dims, layout in pattern.findall(signature)
    ]
    return tuple(found[:-1]), found[-1]


_PRODUCTS = ("A[m,k] x[k,n] -> y[m,n]", "x[m,k] A[k,n] -> y[m,n]", "A[m,k] B[k,n] -> C[m,n]")
_BATCHED = (
    "A[b,m,k] x[b,k,n] -> y[b,m,n]",
    "x[b,m,k] A[b,k,n] -> y[b,m,n]",
    "A[b,m,k] B[b,k,n] -> C[b,m,n]",
)
_BROADCAST = (
    "A[m,k] x[k] -> y[m]",
    "x[k] A[k,n] -> y[n]",
    "A[b,m,k] x[k] -> y[b,m]",
    "x[k] A[b,k,n] -> y[b,n]",
    "A[m,k] x[b,k,n] -> y[b,m,n]",
    "A[b,m,k] x[k,n] -> y[b,m,n]",
    "x[b,m,k] A[k,n] -> y[b,m,n]",
    "x[m,k] A[b,k,n] -> y[b,m,n]",
    "A[b,m,k] x[c,b,k,n] -> y[c,b,m,n]",
    "A[c,1,m,k] x[b,k,n] -> y[c,b,m,n]",
    "A[m,k] B[b,k,n] -> C[b,m,n]",
    "A[b,m,k] B[k,n] -> C[b,m,n]",
)
_ROWS_OF_PRODUCT = ("A[m,k] x[k,n] -> C[m,n]:coo",)
_SCALED = ({}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0})
_COO_ONLY: Mapping[str, str] = dict.fromkeys(ALL[1:], "its indices are always sorted and unique")


def _sampled(
    A: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    mask: torch.Tensor,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    found = alpha * mask * (x @ y)
    return found if beta == 0 else found + beta * A


def _identity(A: torch.Tensor, **options: Any) -> torch.Tensor:
    return A.clone()


def _conversion(layout: str) -> Op:
    blocked = layout in ("bsr", "bsc")
    return Op(
        f"to_sparse_{layout}",
        "convert",
        (f"torch.Tensor.to_sparse_{layout}",),
        (f"A[m,k] -> C[m,k]:{layout}", f"A[b,m,k] -> C[b,m,k]:{layout}"),
        _identity,
        samples=({"blocksize": (2, 2)}, {"blocksize": (1, 2)}) if blocked else ({},),
    )


_ROWS = (
    Op(
        "matmul",
        "matmul",
        ("torch.matmul", "torch.Tensor.matmul", "torch.Tensor.__matmul__"),
        (*_PRODUCTS, *_BATCHED, *_BROADCAST),
        torch.matmul,
    ),
    Op("mm", "matmul", ("torch.mm", "torch.Tensor.mm", "torch.sparse.mm"), _PRODUCTS, torch.mm),
    Op("mv", "matmul", ("torch.mv", "torch.Tensor.mv"), _BROADCAST[:1], torch.mv),
    Op("bmm", "matmul", ("torch.bmm", "torch.Tensor.bmm"), _BATCHED, torch.bmm),
    Op(
        "linear",
        "matmul",
        ("torch.nn.functional.linear",),
        (
            "x[n,k] A[m,k] -> y[n,m]",
            "x[n,k] A[m,k] z[m] -> y[n,m]",
            "x[b,n,k] A[m,k] z[m] -> y[b,n,m]",
            "x[k] A[m,k] -> y[m]",
            "A[n,k] x[m,k] z[m] -> y[n,m]",
            "A[n,k] B[m,k] -> C[n,m]",
        ),
        F.linear,
    ),
    Op("sparse_mm", "matmul", (), (_PRODUCTS[0], _BATCHED[0]), torch.matmul),
    Op(
        "addmm",
        "addmm",
        ("torch.addmm", "torch.Tensor.addmm", "torch.Tensor.addmm_", "torch.sparse.addmm"),
        (
            "z[m,n] A[m,k] x[k,n] -> y[m,n]",
            "z[n] A[m,k] x[k,n] -> y[m,n]",
            "z[m,n] x[m,k] A[k,n] -> y[m,n]",
            "z[m,n] A[m,k] B[k,n] -> y[m,n]",
            "D[m,n] A[m,k] B[k,n] -> C[m,n]",
        ),
        torch.addmm,
        samples=_SCALED,
    ),
    Op(
        "addmv",
        "addmm",
        ("torch.addmv", "torch.Tensor.addmv", "torch.Tensor.addmv_"),
        ("z[m] A[m,k] x[k] -> y[m]",),
        torch.addmv,
        samples=_SCALED,
    ),
    Op(
        "baddbmm",
        "addmm",
        ("torch.baddbmm", "torch.Tensor.baddbmm", "torch.Tensor.baddbmm_"),
        (
            "z[b,m,n] A[b,m,k] x[b,k,n] -> y[b,m,n]",
            "z[b,m,n] x[b,m,k] A[b,k,n] -> y[b,m,n]",
            "z[b,m,n] A[b,m,k] B[b,k,n] -> y[b,m,n]",
        ),
        torch.baddbmm,
        samples=_SCALED,
    ),
    Op("smm", "sampled", ("torch.smm", "torch.Tensor.smm"), _ROWS_OF_PRODUCT, torch.mm),
    Op("hspmm", "sampled", ("torch.hspmm",), _ROWS_OF_PRODUCT, torch.mm),
    Op(
        "sspaddmm",
        "sampled",
        ("torch.sspaddmm", "torch.Tensor.sspaddmm"),
        ("D[m,n] A[m,k] x[k,n] -> C[m,n]:coo",),
        torch.addmm,
        samples=_SCALED,
    ),
    Op(
        "sampled_addmm",
        "sampled",
        ("torch.sparse.sampled_addmm",),
        ("A[m,n] x[m,k] y[k,n] -> C[m,n]", "A[b,m,n] x[b,m,k] y[b,k,n] -> C[b,m,n]"),
        _sampled,
        masked=True,
        samples=_SCALED,
    ),
    Op(
        "to_dense",
        "convert",
        ("torch.Tensor.to_dense",),
        ("A[m,k] -> y[m,k]", "A[b,m,k] -> y[b,m,k]"),
        _identity,
    ),
    Op(
        "to_sparse",
        "convert",
        ("torch.Tensor.to_sparse",),
        ("A[m,k] -> C[m,k]:coo", "A[b,m,k] -> C[b,m,k]:coo"),
        _identity,
    ),
    *(_conversion(layout) for layout in ALL),
    Op(
        "coalesce",
        "structure",
        ("torch.Tensor.coalesce",),
        ("A[m] -> C[m]:coo", "A[m,k] -> C[m,k]:coo", "A[b,m,k] -> C[b,m,k]:coo"),
        _identity,
        layouts=("coo",),
        absent=_COO_ONLY,
    ),
    Op(
        "t",
        "structure",
        ("torch.t", "torch.Tensor.t", "torch.Tensor.T.__get__"),
        ("A[m,k] -> C[k,m]:flipped",),
        torch.t,
    ),
    Op(
        "transpose",
        "structure",
        ("torch.transpose", "torch.Tensor.transpose"),
        ("A[m,k] -> C[k,m]:flipped", "A[b,m,k] -> C[b,k,m]:flipped"),
        torch.transpose,
        samples=({"dim0": -2, "dim1": -1},),
    ),
)

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
"""Name -> its row."""
