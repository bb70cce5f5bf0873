"""Rows of the reductions, and of softmax."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.support.table import Op, names_in_torch

_FORMS = ("A[m,k] -> y[m]", "A[b,m,k] -> y[b,m]")
_WHOLE = ("A[m,k] -> y[]", "A[b,m,k] -> y[]")
_SAMPLES = (
    {"dim": -1},
    {},
    {"dim": (-2, -1), "keepdim": True},
    {"dim": -2, "specified": True},
)
_ALONG = ({"dim": -1}, {}, {"dim": -2, "keepdim": True}, {"dim": -1, "specified": True})
_INF = float("inf")


def _reduced(
    name: str, fill: float, empty: float, *, order: int = 2, samples: Any = _SAMPLES
) -> Op:
    """A reduction that leaves out an element of value `fill`, and gives `empty` of nothing."""

    def dense(
        A: torch.Tensor, *, mask: torch.Tensor, specified: bool = False, **options: Any
    ) -> torch.Tensor:
        if not specified:
            return function(A, **options)
        y = function(A.masked_fill(~mask, fill), **options)
        return torch.where(torch.any(mask, **options), y, empty)

    function = getattr(torch, name)
    names = names_in_torch(name)
    return Op(name, "reduce", names, _FORMS, dense, masked=True, order=order, samples=samples)


def _mean(
    A: torch.Tensor, *, mask: torch.Tensor, specified: bool = False, **options: Any
) -> torch.Tensor:
    if not specified:
        return torch.mean(A, **options)
    return torch.sum(A, **options) / torch.sum(mask, **options).clamp(min=1)


def _count_nonzero(A: torch.Tensor, dim: Any = None, specified: bool = False) -> torch.Tensor:
    return torch.count_nonzero(A, dim)


def _along(name: str, worst: float) -> Op:
    """`max` or `min`: the element, and with `dim` its index."""

    def dense(
        A: torch.Tensor, *, mask: torch.Tensor, specified: bool = False, **options: Any
    ) -> Any:
        if not specified:
            return function(A, **options)
        y, index = function(A.masked_fill(~mask, worst), **options)
        filled = torch.any(mask, **options)
        return torch.where(filled, y, 0), torch.where(filled, index, -1)

    function = getattr(torch, name)
    return Op(name, "extrema", names_in_torch(name), _FORMS, dense, masked=True, samples=_ALONG)


def _softmax(name: str) -> Op:
    def dense(A: torch.Tensor, *, mask: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.where(mask, function(A.masked_fill(~mask, -_INF), dim), 0)

    function = getattr(torch, name)
    functional = f"torch.nn.functional.{name}"
    return Op(
        name,
        "softmax",
        (*names_in_torch(name), f"torch.sparse.{name}", functional),
        ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]"),
        dense,
        masked=True,
        samples=({"dim": -1}, {"dim": -2}, {"dim": 0}),
    )


ROWS = (
    _reduced("sum", 0, 0),
    Op("mean", "reduce", names_in_torch("mean"), _FORMS, _mean, masked=True, samples=_SAMPLES),
    _reduced("prod", 1, 1, samples=_ALONG),
    _reduced("amax", -_INF, 0),
    _reduced("amin", _INF, 0),
    _reduced("any", 0, False, order=0),
    _reduced("all", 1, True, order=0),
    Op(
        "count_nonzero",
        "reduce",
        names_in_torch("count_nonzero"),
        _FORMS,
        _count_nonzero,
        order=0,
        samples=({"dim": -1}, {}, {"dim": (-2, -1)}, {"dim": -2, "specified": True}),
    ),
    Op(
        "sparse_sum",
        "reduce",
        ("torch.sparse.sum", "torch._sparse_sum"),
        _WHOLE,
        torch.sum,
    ),
    Op("trace", "reduce", names_in_torch("trace"), ("A[m,k] -> y[]",), torch.trace),
    _along("max", -_INF),
    _along("min", _INF),
    _reduced("argmax", -_INF, -1, order=0, samples=_ALONG),
    _reduced("argmin", _INF, -1, order=0, samples=_ALONG),
    _softmax("softmax"),
    _softmax("log_softmax"),
)
