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


_THREE = ("A[b,m,k] -> C[m,b,k]", "A[b,m,k|d] -> C[m,b,k|d]")
_ONES = ("A[1,m,k] -> C[m,k]", "A[1,b,m,k] -> C[b,m,k]", "A[1,m,k|d] -> C[m,k|d]")

_SHAPES = (
    _op("permute", ("A[b,m,k] -> C[m,b,k]",), {"dims": (1, 0, 2)}, {"dims": (2, 0, 1)}),
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
        {"dim": 2},
    ),
    _op("squeeze", _ONES, {}, {"dim": 0}, {"dim": (0, 1)}),
    _op("flatten", ("A[m,k] -> C[mk]", "A[b,m,k] -> C[bmk]"), {}, {"end_dim": 1}),
    _op(
        "unflatten",
        ("A[m,k] -> C[2,m2,k]", "A[b,m,k] -> C[2,b2,m,k]", "A[m,k|d] -> C[2,m2,k|d]"),
        {"dim": 0, "sizes": (2, -1)},
        {"dim": 1, "sizes": (-1, 2)},
    ),
    *(
        _op(
            name,
            ("A[m,k] -> C[mk]", "A[b,m,k] -> C[bmk]"),
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
    _join("dstack", ("(A[m,k] B[m,k]) -> C[m,k,2]", "(A[b,m,k] B[b,m,k]) -> C[b,m,2k]")),
    _op(
        "block_diag",
        ("A[m,k] B[k,m] -> C[mk,mk]", "A[m,k] -> C[m,k]", "A[m,k] B[m,m] F[k,k] -> C[2mk,2km]"),
    ),
)

ROWS = (*_SHAPES, *_JOINS)
