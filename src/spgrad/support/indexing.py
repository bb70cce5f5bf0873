"""Rows of what takes parts of a tensor, and writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from spgrad.support.table import Op, names_in_torch

_FORMS = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]")
_LESS = ("A[m,k] -> C[k]:coo", "A[b,m,k] -> C[m,k]", "A[m,k|d] -> C[k|d]:coo")


def _item(A: torch.Tensor, index: Any) -> torch.Tensor:
    return A[index]


def _with_item(A: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    out = A.clone()
    out[index] = value
    return out


def _op(
    name: str,
    signatures: tuple[str, ...],
    *samples: Mapping[str, Any],
    names: tuple[str, ...] | None = None,
    dense: Callable[..., Any] | None = None,
) -> Op:
    own = names_in_torch(name) if names is None else names
    return Op(name, "index", own, signatures, dense or getattr(torch, name), samples=samples)


ROWS = (
    _op(
        "getitem",
        _FORMS,
        {"index": slice(1, 3)},
        {"index": ([1, 0],)},
        {"index": (slice(None), slice(0, 4, 2))},
        names=("torch.Tensor.__getitem__",),
        dense=_item,
    ),
    _op(
        "setitem",
        _FORMS,
        {"index": slice(1, 3), "value": 0.0},
        names=("torch.Tensor.__setitem__",),
        dense=_with_item,
    ),
    _op("select", _LESS, {"dim": 0, "index": 1}, {"dim": 0, "index": -2}),
    _op(
        "narrow",
        _FORMS,
        {"dim": 0, "start": 0, "length": 2},
        {"dim": 1, "start": 2, "length": 2},
    ),
    _op("narrow_copy", _FORMS, {"dim": 1, "start": -2, "length": 2}, dense=torch.narrow),
    _op(
        "index_select",
        _FORMS,
        {"dim": 0, "index": torch.tensor([1, 0])},
        {"dim": 1, "index": torch.tensor([3, 0, 3, 1])},
    ),
    _op(
        "split",
        ("A[2,k] -> C[2,k]", "A[b,m,k] -> C[b,m,k]", "A[2,k|d] -> C[2,k|d]"),
        {"split_size_or_sections": 2},
        {"split_size_or_sections": 2, "dim": 1},
        names=("torch.split",),
    ),
    _op("chunk", _FORMS, {"chunks": 3, "dim": 1}),
    _op("unbind", ("A[2,k] -> C[k]:coo", "A[b,m,k] -> C[m,k]", "A[2,k|d] -> C[k|d]:coo"), {}),
)
