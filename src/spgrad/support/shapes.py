"""Rows of what moves elements elsewhere: shapes, joins, diagonals, rearrangements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from spgrad.support.table import Op, names_in_torch


def _on_list(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` of a list, for operands one after the other."""
    return lambda *operands, **options: fn(list(operands), **options)


def _op(
    name: str,
    signatures: tuple[str, ...],
    *samples: Mapping[str, Any],
    names: tuple[str, ...] | None = None,
    dense: Callable[..., Any] | None = None,
    order: int = 2,
) -> Op:
    own = tuple(n for n in names_in_torch(name) if not n.endswith("_"))
    fn = dense or getattr(torch, name, None) or getattr(torch.Tensor, name)
    return Op(
        name,
        "shape",
        own if names is None else names,
        signatures,
        fn,
        order=order,
        samples=samples or ({},),
    )


def _join(name: str, signatures: tuple[str, ...], *samples: Mapping[str, Any], **kw: Any) -> Op:
    return _op(name, signatures, *samples, dense=_on_list(getattr(torch, name)), **kw)


_THREE = ("A[b,m,k] -> C[m,b,k]:coo", "A[b,m,k|d] -> C[m,b,k|d]:coo")
_ONES = ("A[1,m,k] -> C[m,k]", "A[1,b,m,k] -> C[b,m,k]", "A[1,m,k|d] -> C[m,k|d]")

_SHAPES = (
    _op("permute", ("A[b,m,k] -> C[m,b,k]:coo",), {"dims": (1, 0, 2)}, {"dims": (2, 0, 1)}),
    _op(
        "transpose",
        ("A[m,k] -> C[k,m]:flipped", "A[b,m,k] -> C[b,k,m]:flipped"),
        {"dim0": -2, "dim1": -1},
        names=(*names_in_torch("transpose")[:2], "torch.swapdims", "torch.Tensor.swapdims"),
    ),
    _op("swapaxes", _THREE, {"axis0": 0, "axis1": 1}),
    _op(
        "movedim",
        _THREE,
        {"source": 0, "destination": 1},
        {"source": (1, 0), "destination": (0, 1)},
        names=names_in_torch("movedim", "moveaxis"),
    ),
    _op(
        "unsqueeze",
        ("A[m,k] -> C[1,m,k]", "A[b,m,k] -> C[1,b,m,k]", "A[m,k|d] -> C[1,m,k|d]"),
        {"dim": 0},
    ),
    _op("squeeze", _ONES, {}, {"dim": 0}, {"dim": (0, 1)}),
    _op(
        "flatten",
        ("A[m,k] -> C[mk]:coo", "A[b,m,k] -> C[bmk]:coo"),
        {},
        {"start_dim": -2},
        names=names_in_torch("flatten", "ravel"),
    ),
    _op(
        "unflatten",
        ("A[b,m,k] -> C[2,b2,m,k]", "A[b,m,k|d] -> C[2,b2,m,k|d]"),
        {"dim": 0, "sizes": (2, -1)},
    ),
    *(
        _op(
            name,
            ("A[m,k] -> C[mk]:coo", "A[b,m,k] -> C[bmk]:coo"),
            {arg: (-1,)},
            {arg: (2, -1)},
            {arg: (2, -1, 4)},
        )
        for name, arg in (("reshape", "shape"), ("view", "size"))
    ),
    *(
        _op(name, ("A[m,k] -> C[c,m,k]", "A[1,m,k] -> C[c,m,k]"), {"size": (3, -1, -1)})
        for name in ("expand", "broadcast_to")
    ),
    _op(
        "repeat",
        ("A[m,k] -> C[2,m,2k]", "A[b,m,k] -> C[2b,m,2k]", "A[m,k|d] -> C[2m,k|2d]"),
        {"repeats": (2, 1, 2)},
        {"repeats": (1, 2, 0)},
    ),
    _op("reshape_as", ("A[m,k] M[k,m] -> C[k,m]:coo",)),
    _op("view_as", ("A[m,k] M[k,m] -> C[k,m]:coo",)),
    _op("expand_as", ("A[m,k] M[b,m,k] -> C[b,m,k]",)),
    _op(
        "repeat_interleave",
        ("A[m,k] -> C[2m,k]", "A[b,m,k] -> C[2b,m,k]", "A[m,k|d] -> C[2m,k|d]"),
        {"repeats": 2, "dim": 0},
        {"repeats": 3, "dim": -1},
    ),
    _op("tile", ("A[m,k] -> C[m,2k]", "A[m,k|d] -> C[m,k|2d]"), {"dims": (2,)}, {"dims": (3, 1)}),
)

_JOINS = (
    _join(
        "cat",
        (
            "(A[m,k] B[m,k]) -> C[2m,k]",
            "(A[b,m,k] B[b,m,k]) -> C[2b,m,k]",
            "(A[m,k|d] B[m,k|d]) -> C[2m,k|d]",
        ),
        {},
        {"dim": 1},
        {"dim": -1},
        names=("torch.cat", "torch.concat", "torch.concatenate"),
    ),
    _join(
        "stack",
        ("(A[m,k] B[m,k]) -> C[2,m,k]", "(A[b,m,k] B[b,m,k]) -> C[2,b,m,k]"),
        {},
        {"dim": -3},
    ),
    _join("hstack", ("(A[m,k] B[m,m]) -> C[m,km]", "(A[b,m,k] B[b,m,k]) -> C[b,2m,k]")),
    _join(
        "vstack",
        ("(A[m,k] B[m,k]) -> C[2m,k]", "(A[b,m,k] B[b,m,k]) -> C[2b,m,k]"),
        names=("torch.vstack", "torch.row_stack"),
    ),
    _join("dstack", ("(A[m,k] B[m,k]) -> C[m,k,2]:coo", "(A[b,m,k] B[b,m,k]) -> C[b,m,2k]")),
    _op(
        "block_diag",
        ("A[m,k] B[k,m] -> C[mk,mk]", "A[m,k] -> C[m,k]", "A[m,k] B[m,m] F[k,k] -> C[2mk,2km]"),
    ),
)

_DIAGONALS = (
    *(
        _op(
            name,
            ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]"),
            {},
            {"diagonal": 1},
            {"diagonal": -2},
            names=names_in_torch(name),
        )
        for name in ("tril", "triu")
    ),
    _op(
        "diagonal",
        ("A[m,k] -> y[m]", "A[k,m] -> y[m]", "A[m,k|d] -> y[d,m]"),
        {},
        {"offset": 2},
        {"offset": -1, "dim1": 1, "dim2": 0},
    ),
    _op("diag", ("A[m,k] -> y[m]", "A[k,m] -> y[m]"), {}, {"diagonal": 1}, {"diagonal": -3}),
    _op(
        "diag_embed",
        ("A[m,k] -> C[m,k,k]:coo", "A[b,m,k] -> C[b,m,k,k]:coo"),
        {},
        {"offset": 1, "dim1": 0},
        {"offset": -2, "dim1": 0, "dim2": 1},
    ),
)


def _pruned(A: torch.Tensor, threshold: float = 0.0) -> torch.Tensor:
    size = A if A.dtype == torch.bool else A.abs()
    return torch.where(~(size <= threshold), A, A.new_zeros(()))  # NaN stays


def _find(A: torch.Tensor) -> tuple[torch.Tensor, ...]:
    at = torch.nonzero(A, as_tuple=True)
    return (*at, A[at])


_FORMS = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]")

_MOVED = (
    _op("flip", _FORMS, {"dims": (0,)}, {"dims": (-1, 0)}, {"dims": (1,)}),
    _op(
        "adjoint",
        (
            "A[m,k] -> C[k,m]:flipped",
            "A[b,m,k] -> C[b,k,m]:flipped",
            "Z[m,k] -> C[k,m]:flipped",
        ),
        names=("torch.adjoint", "torch.Tensor.adjoint", "torch.Tensor.mH.__get__"),
    ),
    _op("fliplr", _FORMS),
    _op("flipud", _FORMS),
    _op(
        "roll",
        _FORMS,
        {"shifts": 1, "dims": 0},
        {"shifts": -3, "dims": -1},
        {"shifts": (2, 1), "dims": (1, 0)},
    ),
    _op(
        "kron",
        (
            "A[m,k] B[2,2] -> C[2m,2k]",
            "A[b,m,k] B[3,2,2] -> C[3b,2m,2k]",
            "A[m,k] B[b,2,2] -> C[b,2m,2k]",
        ),
    ),
    _op("prune", _FORMS[:2], {"threshold": 0.5}, {}, names=(), dense=_pruned),
    _op(
        "nonzero",
        ("A[m,k] -> y[nse,2]", "A[b,m,k] -> y[nse,3]", "A[m,k|d] -> y[nse,3]"),
        {},
        {"as_tuple": True},
        names=("torch.nonzero", "torch.Tensor.nonzero", *names_in_torch("argwhere")),
        order=0,
    ),
    _op("find", ("A[m,k] -> y[nse]",), names=(), dense=_find, order=0),
)


def _full_like(A: torch.Tensor, fill_value: float = 1, *, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, torch.full_like(A, fill_value), A.new_zeros(()))


_ALIKE = tuple(
    Op(name, "shape", (f"torch.{name}",), _FORMS, dense, masked, order=0, samples=(options,))
    for name, dense, masked, options in (
        ("zeros_like", torch.zeros_like, False, {}),
        ("ones_like", _full_like, True, {}),
        ("full_like", _full_like, True, {"fill_value": 2}),
    )
)

_CLOSE = _op(
    "isclose",
    ("A[m,k] x[m,k] -> y[m,k]", "x[m,k] A[m,k] -> y[m,k]", "A[b,m,k] x[k] -> y[b,m,k]"),
    {},
    {"rtol": 0.5, "atol": 0.2},
    names=names_in_torch("isclose"),
    order=0,
)

ROWS = (*_SHAPES, *_JOINS, *_DIAGONALS, *_MOVED, *_ALIKE, _CLOSE)
