"""Rows of the operations that move elements: shapes, joins, diagonals, rearrangements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from spgrad.support.table import Op, names_in_torch, on_copy, on_list, plainly


def _op(
    name: str,
    signatures: tuple[str, ...],
    *samples: Mapping[str, Any],
    names: tuple[str, ...] | None = None,
    dense: Callable[..., Any] | None = None,
    module: str = "shape",
    call: Callable[..., Any] = plainly,
) -> Op:
    own = tuple(n for n in names_in_torch(name) if not n.endswith("_"))
    return Op(
        name,
        f"shapes.{module}",
        own if names is None else names,
        signatures,
        dense or getattr(torch, name, None) or getattr(torch.Tensor, name),
        samples=samples or ({},),
        call=call,
    )


def _in_place(name: str, signatures: tuple[str, ...], *samples: Mapping[str, Any]) -> Op:
    also = {"transpose_": ("torch.Tensor.swapdims_",)}.get(name, ())
    return Op(
        name,
        "shapes.resize",
        (f"torch.Tensor.{name}", *also),
        signatures,
        getattr(torch.Tensor, name),
        samples=samples or ({},),
        call=on_copy,
        traced=False,
        outside="it changes the shape of a tensor in place",
    )


def _resized(name: str, *names: str) -> Op:
    return Op(
        name,
        "shapes.resize",
        tuple(f"torch.Tensor.{n}" for n in (name, *names)),
        ("A[m,k] -> C[m,k]",),
        None,
        absent={"dense": "a dense tensor has no numbers of sparse and of dense dimensions"},
        call=on_copy,
        traced=False,
        outside="it changes the shape of a tensor in place",
    )


def _join(name: str, signatures: tuple[str, ...], *samples: Mapping[str, Any], **kw: Any) -> Op:
    return _op(name, signatures, *samples, module="join", call=on_list, **kw)


_THREE = ("A[b,m,k] -> C[m,b,k]:coo", "A[b,m,k|d] -> C[m,b,k|d]:coo")
_AXES = {"axis0": 0, "axis1": 1}
_LEADING = ("A[m,k] -> C[1,m,k]", "A[b,m,k] -> C[1,b,m,k]", "A[m,k|d] -> C[1,m,k|d]")
_FLIPPED = ("A[m,k] -> C[k,m]:flipped", "A[b,m,k] -> C[b,k,m]:flipped")
_LAST = {"dim0": -2, "dim1": -1}
_ONES = ("A[1,m,k] -> C[m,k]", "A[1,b,m,k] -> C[b,m,k]", "A[1,m,k|d] -> C[m,k|d]")

_SHAPES = (
    _op("permute", ("A[b,m,k] -> C[m,b,k]:coo",), {"dims": (1, 0, 2)}, {"dims": (2, 0, 1)}),
    _op(
        "transpose",
        _FLIPPED,
        _LAST,
        names=(*names_in_torch("transpose")[:2], "torch.swapdims", "torch.Tensor.swapdims"),
    ),
    _op("swapaxes", _THREE, _AXES),
    _op(
        "movedim",
        _THREE,
        {"source": 0, "destination": 1},
        {"source": (1, 0), "destination": (0, 1)},
        names=names_in_torch("movedim", "moveaxis"),
    ),
    _op("unsqueeze", _LEADING, {"dim": 0}),
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
        _op(
            name,
            ("A[m,k] -> C[c,m,k]", "A[1,m,k] -> C[c,m,k]"),
            {"size": (3, -1, -1)},
            module="repeat",
        )
        for name in ("expand", "broadcast_to")
    ),
    _op(
        "repeat",
        ("A[m,k] -> C[2,m,2k]", "A[b,m,k] -> C[2b,m,2k]", "A[m,k|d] -> C[2m,k|2d]"),
        {"repeats": (2, 1, 2)},
        {"repeats": (1, 2, 0)},
        module="repeat",
    ),
    _op("reshape_as", ("A[m,k] M[k,m] -> C[k,m]:coo",)),
    _op("view_as", ("A[m,k] M[k,m] -> C[k,m]:coo",)),
    _op("expand_as", ("A[m,k] M[b,m,k] -> C[b,m,k]",), module="repeat"),
    _op(
        "repeat_interleave",
        ("A[m,k] -> C[2m,k]", "A[b,m,k] -> C[2b,m,k]", "A[m,k|d] -> C[2m,k|d]"),
        {"repeats": 2, "dim": 0},
        {"repeats": 3, "dim": -1},
        module="repeat",
    ),
    _op(
        "tile",
        ("A[m,k] -> C[m,2k]", "A[m,k|d] -> C[m,k|2d]"),
        {"dims": (2,)},
        {"dims": (3, 1)},
        module="repeat",
    ),
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
        module="join",
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
            module="diagonal",
        )
        for name in ("tril", "triu")
    ),
    _op(
        "diagonal",
        ("A[m,k] -> y[m]", "A[k,m] -> y[m]", "A[m,k|d] -> y[d,m]"),
        {},
        {"offset": 2},
        {"offset": -1, "dim1": 1, "dim2": 0},
        module="diagonal",
    ),
    _op(
        "diag",
        ("A[m,k] -> y[m]", "A[k,m] -> y[m]"),
        {},
        {"diagonal": 1},
        {"diagonal": -3},
        module="diagonal",
    ),
    _op(
        "diag_embed",
        ("A[m,k] -> C[m,k,k]:coo", "A[b,m,k] -> C[b,m,k,k]:coo"),
        {},
        {"offset": 1, "dim1": 0},
        {"offset": -2, "dim1": 0, "dim2": 1},
        module="diagonal",
    ),
)


def _with_diagonal(A: torch.Tensor, value: Any = 1.0, offset: int = 0) -> torch.Tensor:
    old = A.diagonal(offset, -2, -1)
    new = (
        value.expand(old.shape) if isinstance(value, torch.Tensor) else torch.full_like(old, value)
    )
    dtype = torch.promote_types(A.dtype, new.dtype)
    return torch.diagonal_scatter(A.to(dtype), new.to(dtype), offset, -2, -1)


def _without_diagonal(A: torch.Tensor, offset: int = 0) -> torch.Tensor:
    return _with_diagonal(A, 0, offset)


def _in_corners(function: Callable[..., Any], A: Any, B: Any) -> Any:
    return function([[A, None], [None, B]])


def _block_array(blocks: Any) -> torch.Tensor:
    return torch.block_diag(blocks[0][0], blocks[1][1])


_ON_DIAGONAL = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]")

_OWN_DIAGONALS = (
    *(
        _op(
            name,
            forms,
            {},
            {"offset": 1},
            {"offset": -2},
            names=(),
            dense=dense,
            module="set_diagonal",
        )
        for name, forms, dense in (
            ("remove_diag", _ON_DIAGONAL, _without_diagonal),
            ("set_diag", (*_ON_DIAGONAL, "A[m,k] x[1] -> C[m,k]"), _with_diagonal),
        )
    ),
    _op(
        "block_array",
        ("A[m,k] B[k,m] -> C[mk,mk]",),
        names=(),
        dense=_block_array,
        module="block_array",
        call=_in_corners,
    ),
)

_FORMS = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]")

_MOVED = (
    _op("flip", _FORMS, {"dims": (0,)}, {"dims": (-1, 0)}, {"dims": (1,)}, module="rearrange"),
    _op(
        "adjoint",
        (
            "A[m,k] -> C[k,m]:flipped",
            "A[b,m,k] -> C[b,k,m]:flipped",
            "Z[m,k] -> C[k,m]:flipped",
        ),
        names=("torch.adjoint", "torch.Tensor.adjoint", "torch.Tensor.mH.__get__"),
        module="rearrange",
    ),
    _op(
        "matrix_H",
        ("A[m,k] -> C[k,m]:flipped", "Z[m,k] -> C[k,m]:flipped"),
        names=("torch.Tensor.H.__get__",),
        dense=torch.adjoint,
        module="rearrange",
    ),
    _op("fliplr", _FORMS, module="rearrange"),
    _op("flipud", _FORMS, module="rearrange"),
    _op(
        "roll",
        _FORMS,
        {"shifts": 1, "dims": 0},
        {"shifts": -3, "dims": -1},
        {"shifts": (2, 1), "dims": (1, 0)},
        module="rearrange",
    ),
    _op(
        "kron",
        (
            "A[m,k] B[2,2] -> C[2m,2k]",
            "A[b,m,k] B[3,2,2] -> C[3b,2m,2k]",
            "A[m,k] B[b,2,2] -> C[b,2m,2k]",
        ),
        module="kron",
    ),
)


_IN_PLACE = (
    _in_place("t_", _FLIPPED[:1]),
    _in_place("transpose_", _FLIPPED, _LAST),
    _in_place("swapaxes_", _THREE, _AXES),
    _in_place("squeeze_", _ONES, {}, {"dim": 0}, {"dim": (0, 1)}),
    _in_place("unsqueeze_", _LEADING, {"dim": 0}),
    _resized("resize_as_", "resize_as_sparse_"),
    _resized("sparse_resize_"),
    _resized("sparse_resize_and_clear_"),
)

ROWS = (*_SHAPES, *_JOINS, *_DIAGONALS, *_OWN_DIAGONALS, *_MOVED, *_IN_PLACE)
