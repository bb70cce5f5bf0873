"""The contenders: spgrad and the libraries it is compared with, each in its best documented way.

A library is imported when its contender first builds something, so that absent ones cost nothing.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks import attention, selection, structure
from benchmarks.blocks import TORCH_BSR
from benchmarks.compiled import JAX, NUMBA, PYDATA
from benchmarks.contender import DTYPES, Contender, as_numpy, as_torch, in_numpy
from benchmarks.entries import TORCH_VALUES
from benchmarks.limits import LIMITS
from benchmarks.problems import Problem
from benchmarks.pyg import TORCH_SPARSE
from benchmarks.solves import contenders as solves

_LAYOUTS = {"csr": torch.sparse_csr, "csc": torch.sparse_csc, "bsr": torch.sparse_bsr}


def _spgrad_matrix(S: Any, p: Problem) -> Any:
    import spgrad

    stored = S.asformat(p.layout) if S.format == "csr" else S
    val, size = as_torch(stored.data, p), tuple(stored.shape)
    index = getattr(torch, p.index)
    if stored.format == "coo":
        indices = torch.tensor(np.stack(stored.coords), dtype=index)
        return spgrad.sparse_coo_tensor(indices, val, size, is_coalesced=True)
    ptr, idx = (torch.tensor(i, dtype=index) for i in (stored.indptr, stored.indices))
    return spgrad.sparse_compressed_tensor(ptr, idx, val, size, layout=_LAYOUTS[stored.format])


def _spgrad_renewed(A: Any) -> Any:
    from spgrad import Pattern, from_values

    old = A.pattern
    return from_values(A._values(), Pattern.from_spec(old.spec, old.shape, old.indices))


def _spgrad_coalesce(C: Any, p: Problem) -> Callable[[], Any]:
    import spgrad

    indices, val = torch.tensor(np.stack(C.coords)), as_torch(C.data, p)
    size = tuple(C.shape)
    return lambda: spgrad.coalesce(
        spgrad.sparse_coo_tensor(indices, val, size, check_invariants=False)
    )


def _spgrad_sddmm(A: Any, g: torch.Tensor, x: torch.Tensor) -> Any:
    import spgrad

    return spgrad.sampled_addmm(A, g, x.mT, beta=0)


def _spgrad_read(a: Any) -> Any:
    import spgrad

    a = a.detach()
    if isinstance(a, spgrad.SparseTensor):
        return spgrad.to_scipy(a.float() if a.dtype == torch.bfloat16 else a).tocsr()
    return in_numpy(a)


def _csr(S: Any, p: Problem) -> torch.Tensor:
    """With int32 indices by default, which MKL takes as they are."""
    index = getattr(torch, p.index)
    ptr, idx = (torch.tensor(i, dtype=index) for i in (S.indptr, S.indices))
    val = as_torch(S.data, p)
    return torch.sparse_compressed_tensor(
        ptr, idx, val, S.shape, layout=_LAYOUTS[S.format], check_invariants=False
    )


def _csr_int64(S: Any, p: Problem) -> torch.Tensor:
    """With int32 indices the gradient of the reducing product is wrong from m n = 2^31 on."""
    return _csr(S, replace(p, index="int64"))


def _coo(S: Any, p: Problem) -> torch.Tensor:
    indices, val = torch.tensor(np.stack(S.tocoo().coords)), as_torch(S.data, p)
    return torch.sparse_coo_tensor(indices, val, S.shape, is_coalesced=True, check_invariants=False)


def _coo_coalesce(C: Any, p: Problem) -> Callable[[], Any]:
    indices, val = torch.tensor(np.stack(C.coords)), as_torch(C.data, p)
    A = torch.sparse_coo_tensor(indices, val, C.shape, check_invariants=False)
    return A.coalesce


def _torch_read(a: torch.Tensor) -> Any:
    a = a.detach()
    a = a.float() if a.dtype == torch.bfloat16 else a
    if a.layout == torch.strided:
        return a.numpy()
    if 1 in a.shape:
        return a.to_dense().view(-1).numpy()
    if a.layout == torch.sparse_coo:
        a = a.coalesce()
        return sp.coo_array((a.values().numpy(), tuple(a.indices().numpy())), a.shape).tocsr()
    if a.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (t.numpy() for t in (a.values(), a.col_indices(), a.crow_indices()))
        made = sp.csr_array if a.layout == torch.sparse_csr else sp.bsr_array
        return made(tuple(parts), a.shape).tocsr()
    parts = a.values(), a.row_indices(), a.ccol_indices()
    return sp.csc_array(tuple(t.numpy() for t in parts), a.shape)


def _csr_mean(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """MKL's sum, divided."""
    return torch.sparse.mm(A, x).div_(A.crow_indices().diff().clamp_(min=1).unsqueeze(1))


def _times_ones(A: torch.Tensor) -> torch.Tensor:
    return torch.mv(A, torch.ones(A.shape[1], dtype=A.dtype))


def _grad(A: torch.Tensor) -> torch.Tensor | None:
    return A.grad


def _tsgu_mm(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    from torchsparsegradutils import sparse_mm  # pyright: ignore[reportMissingImports]

    return sparse_mm(A, x)


def _scipy_mean(A: Any, x: np.ndarray) -> np.ndarray:
    return (A @ x) / np.maximum(np.diff(A.indptr), 1).astype(x.dtype)[:, None]


def _mkl(A: Any, x: Any) -> Any:
    # The wheel of mkl puts its library where the loader does not search.
    for found in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*")):
        os.environ.setdefault("MKL_RT", str(found))
    from sparse_dot_mkl import dot_product_mkl  # pyright: ignore[reportMissingImports]

    return dot_product_mkl(A, x)


SPGRAD = Contender(
    "spgrad",
    "spgrad",
    build=_spgrad_matrix,
    dense=as_torch,
    functions={
        "spmm": operator.matmul,
        "spmv": operator.matmul,
        "spmm_bsr": operator.matmul,
        "transposed": lambda A, g: (g.mT @ A).mT,
        "sddmm": _spgrad_sddmm,
        "spgemm": operator.matmul,
        "coalesce": _spgrad_coalesce,
        **structure.SPGRAD,
        **selection.SPGRAD,
        "sin": torch.sin,
        "add": operator.add,
        "times": operator.mul,
        "scale": operator.mul,
        "sum_rows": methodcaller("sum", 1),
        "sum_columns": methodcaller("sum", 0),
        "amax_rows": methodcaller("amax", 1),
        "amax_specified": methodcaller("amax", 1, specified=True),
        "softmax": lambda A: torch.softmax(A, 1),
        "attention": attention.spgrad,
        "mm_mean": lambda A, x: torch.sparse.mm(A, x, "mean"),
        "mm_amax": lambda A, x: torch.sparse.mm(A, x, "amax"),
        **solves.SPGRAD,
        "refactor": solves.again(_spgrad_matrix),
    },
    grad=_grad,
    renew=_spgrad_renewed,
    read=_spgrad_read,
    dtypes=DTYPES,
)

# No peer: shows what storing the matrix in blocks gains.
EXPANDED = replace(
    SPGRAD,
    name="spgrad CSR",
    build=lambda S, p: _spgrad_matrix(S.tocsr(), p),
    functions={"spmm_bsr": operator.matmul},
)

# No peer either: shows how much of a step A x alone takes; also measured for substitution.
FORWARD = replace(
    SPGRAD,
    name="spgrad A x",
    functions={"spmm": operator.matmul, "triangular": operator.matmul},
    vjp=lambda function: lambda A, x, g: (function(A, x),),
    only=("step", "triangular"),
    limit=True,
)

SCIPY = Contender(
    "SciPy",
    "scipy",
    build=lambda S, p: S,
    dense=as_numpy,
    functions={
        "spmm": operator.matmul,
        "spmv": operator.matmul,
        "spmm_bsr": operator.matmul,
        "spgemm": operator.matmul,
        # sums what repeats, and is faster than to sort the pairs
        "coalesce": lambda C, p: C.tocsr,
        **structure.SCIPY,
        **selection.SCIPY,
        "sin": methodcaller("sin"),
        "add": operator.add,
        "times": lambda A, B: A.multiply(B),
        "scale": lambda A, v: A.multiply(v),  # faster than diags_array(v) @ A
        "sum_rows": methodcaller("sum", axis=1),
        "sum_columns": methodcaller("sum", axis=0),
        "amax_rows": methodcaller("max", axis=1),
        "mm_mean": _scipy_mean,
        **solves.SCIPY,
    },
    read=lambda a: a.toarray() if sp.issparse(a) and a.ndim == 1 else a,
)

PEERS = (
    Contender(
        "torch CSR",
        "torch",
        build=_csr,
        dense=as_torch,
        functions={
            "spmm": torch.sparse.mm,
            "spmv": torch.mv,
            "sddmm": lambda A, g, x: torch.sparse.sampled_addmm(A, g, x.mT, beta=0),
            "spgemm": torch.sparse.mm,
            **structure.TORCH_CSR,
            **selection.TORCH_CSR,
            "sin": torch.sin,
            "add": operator.add,
            "times": operator.mul,
            "sum_rows": methodcaller("sum", 1, keepdim=True),
            "sum_columns": methodcaller("sum", 0, keepdim=True),
            "mm_mean": _csr_mean,
            "attention": attention.torch_csr,
            **solves.TORCH_CSR,
        },
        grad=_grad,
        read=_torch_read,
        dtypes=DTYPES,
    ),
    # The kernel of its own that torch has for message passing, documented for CSR on the CPU.
    Contender(
        "torch CSR sum",
        "torch",
        build=_csr_int64,
        dense=as_torch,
        functions={"spmm": lambda A, x: torch.sparse.mm(A, x, "sum")},
        grad=_grad,
        read=_torch_read,
        dtypes=DTYPES,
    ),
    Contender(
        "torch CSR reduce",
        "torch",
        build=_csr_int64,
        dense=as_torch,
        functions={
            "mm_mean": lambda A, x: torch.sparse.mm(A, x, "mean"),
            "mm_amax": lambda A, x: torch.sparse.mm(A, x, "amax"),
        },
        grad=_grad,
        read=_torch_read,
        dtypes=DTYPES,
    ),
    Contender(
        "torch COO",
        "torch",
        build=_coo,
        dense=as_torch,
        functions={
            "spmm": torch.sparse.mm,
            "spmv": torch.mv,
            "spgemm": torch.sparse.mm,
            "coalesce": _coo_coalesce,
            **structure.TORCH_COO,
            **selection.TORCH_COO,
            "sin": torch.sin,
            "add": operator.add,
            "times": operator.mul,
            "scale": operator.mul,
            "sum_rows": _times_ones,  # faster than torch.sparse.sum
            "sum_columns": lambda A: _times_ones(A.t()),
            "softmax": lambda A: torch.sparse.softmax(A, 1),
            "attention": attention.torch_coo,
        },
        grad=_grad,
        read=_torch_read,
        dtypes=DTYPES,
    ),
    TORCH_BSR,
    TORCH_VALUES,
    attention.TORCH_DENSE,
    SCIPY,
    solves.composed(SCIPY),
    Contender(
        "torchsparsegradutils",
        "torchsparsegradutils",
        build=_csr,
        dense=as_torch,
        functions={"spmm": _tsgu_mm, **solves.TSGU},
        grad=_grad,
        read=_torch_read,
        dtypes=DTYPES,
    ),
    TORCH_SPARSE,
    Contender(
        "sparse_dot_mkl",
        "sparse_dot_mkl",
        build=lambda S, p: S,
        dense=as_numpy,
        functions={"spmm": _mkl, "spmv": _mkl, "spmm_bsr": _mkl, "spgemm": _mkl},
    ),
    NUMBA,
    JAX,
    PYDATA,
    solves.DENSE,
    solves.TORCH_SLA,
    solves.PYAMG,
)

# Always measured in a cell: spgrad without an option, or a part of the work.
PARTS = (EXPANDED, FORWARD, *solves.of_spgrad(SPGRAD), solves.engine(SCIPY))

CONTENDERS: dict[str, Contender] = {
    contender.name: contender for contender in (SPGRAD, *PARTS, *PEERS, *LIMITS)
}
"""Name -> contender, installed or not."""
