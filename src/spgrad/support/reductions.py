"""Rows of the reductions, and of softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from spgrad.support.table import Op, filled, names_in_torch

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
    """A reduction that elements of value `fill` do not change; of no elements it is `empty`."""

    def dense(
        A: torch.Tensor, *, mask: torch.Tensor, specified: bool = False, **options: Any
    ) -> torch.Tensor:
        if not specified:
            return function(A, **options)
        y = function(filled(A, mask, fill), **options)
        y = y.to(A.dtype) if name in ("amax", "amin") else y
        return y.masked_fill(~torch.any(mask, **options), empty)

    function = getattr(torch, name)
    module = "reductions.extrema" if name.startswith("arg") else "reductions.reduce"
    names = names_in_torch(name)
    return Op(name, module, names, _FORMS, dense, order=order, samples=samples)


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
        y = function(filled(A, mask, worst), **options)
        if "dim" not in options:
            return y.to(A.dtype).masked_fill(~mask.any(), 0)
        y, index = y[0].to(A.dtype), y[1]
        missing = ~torch.any(mask, **options)
        return y.masked_fill(missing, 0), index.masked_fill(missing, -1)

    function = getattr(torch, name)
    return Op(name, "reductions.extrema", names_in_torch(name), _FORMS, dense, samples=_ALONG)


def _softmax(name: str) -> Op:
    def dense(A: torch.Tensor, *, mask: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.where(mask, function(A.masked_fill(~mask, -_INF), dim), 0)

    function = getattr(torch, name)
    functional = f"torch.nn.functional.{name}"
    return Op(
        name,
        "reductions.softmax",
        (*names_in_torch(name), f"torch.sparse.{name}", functional),
        ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]"),
        dense,
        samples=({"dim": -1}, {"dim": -2}, {"dim": 0}),
    )


def _logsumexp(
    A: torch.Tensor, *, mask: torch.Tensor, dim: Any, keepdim: bool = False, specified: bool = False
) -> torch.Tensor:
    if not specified:
        return torch.logsumexp(A, dim, keepdim)
    A = A * 1.0  # bool and integers have no infinity to fill in
    return torch.logsumexp(A.masked_fill(~mask, -_INF), dim, keepdim)


def _var(
    A: torch.Tensor,
    dim: Any = None,
    *,
    mask: torch.Tensor,
    keepdim: bool = False,
    correction: float = 1,
    specified: bool = False,
) -> torch.Tensor:
    if not specified:
        return torch.var(A, dim, keepdim=keepdim, correction=correction)
    number = torch.sum(mask, dim, keepdim=True)
    mean = torch.sum(A, dim, keepdim=True) / number.clamp(min=1)
    centred = A - mean  # not squared by abs, which has no second derivative at 0
    squares = torch.where(mask, (centred * centred.conj()).real, 0)
    y = torch.sum(squares, dim, keepdim=True) / (number - correction).clamp(min=0)
    return y if keepdim else y.sum(dim)


def _std(
    A: torch.Tensor,
    dim: Any = None,
    *,
    mask: torch.Tensor,
    specified: bool = False,
    **options: Any,
) -> torch.Tensor:
    if not specified:
        return torch.std(A, dim, **options)
    y = _var(A, dim, mask=mask, specified=True, **options)
    positive, rest = y > 0, y.where(y != 0, 0)  # derivatives at 0 are 0
    return torch.sqrt(y.where(positive, 1)).where(positive, rest)


def _torch_norm(
    A: torch.Tensor, *, mask: torch.Tensor, specified: bool = False, **options: Any
) -> torch.Tensor:
    """torch.norm; for a negative order, unspecified elements become inf, which adds nothing."""
    p = options.pop("p", 2)
    if not specified or p >= 0:
        return torch.norm(A, p, **options)
    y = torch.norm(filled(A.abs(), mask, _INF), p, **options)
    return y.masked_fill(~torch.any(mask, **options), 0)


def _norm(A: torch.Tensor, p: float = 2, **options: Any) -> torch.Tensor:
    return torch.linalg.vector_norm(A, p, **options)


def _placed(x: torch.Tensor, mask: torch.Tensor, dim: int) -> torch.Tensor:
    """The first numbers of each row of x, put at the specified elements of the row; 0 elsewhere."""
    rank = (mask.cumsum(dim) - 1).clamp(min=0)
    return torch.where(mask, x.gather(dim, rank), torch.zeros((), dtype=x.dtype))


def _sorted(
    A: torch.Tensor, *, mask: torch.Tensor, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    order = A.sort(dim=dim, descending=descending, stable=True).indices
    # unspecified elements behind the others
    then = (~mask.gather(dim, order)).to(torch.int8).sort(dim=dim, stable=True).indices
    order = order.gather(dim, then)
    return _placed(A.gather(dim, order), mask, dim), _placed(order, mask, dim)


def _argsorted(A: torch.Tensor, *, mask: torch.Tensor, **options: Any) -> torch.Tensor:
    return _sorted(A, mask=mask, **options)[1]


def _running(A: torch.Tensor, dim: int = -1, *, mask: torch.Tensor) -> torch.Tensor:
    y = A.cumsum(dim)
    return torch.where(mask, y, torch.zeros((), dtype=y.dtype))


def _topk(
    A: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    *,
    mask: torch.Tensor,
    specified: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.topk that takes the first of equal elements; torch does not say which it takes."""
    torch.topk(A, k, dim, largest)  # refuses what torch refuses
    if not specified:
        y, index = A.sort(dim=dim, descending=largest, stable=True)
        return y.narrow(dim, 0, k), index.narrow(dim, 0, k)
    order = A.sort(dim=dim, descending=largest, stable=True).indices
    then = (~mask.gather(dim, order)).to(torch.int8).sort(dim=dim, stable=True).indices
    index = order.gather(dim, then).narrow(dim, 0, k)
    missing = ~mask.gather(dim, index)
    return A.gather(dim, index).masked_fill(missing, 0), index.masked_fill(missing, -1)


def _unique(A: torch.Tensor, *, mask: torch.Tensor, specified: bool = False, **options: Any) -> Any:
    return torch.unique(A[mask] if specified else A, **options)


_ON_PATTERN = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]")


def _ordered(name: str, dense: Any, *samples: Any, order: int = 2) -> Op:
    module = "reductions.order"
    return Op(name, module, (), _ON_PATTERN, dense, order=order, samples=samples)


ROWS = (
    _reduced("sum", 0, 0),
    Op("mean", "reductions.reduce", names_in_torch("mean"), _FORMS, _mean, samples=_SAMPLES),
    _reduced("prod", 1, 1, samples=_ALONG),
    _reduced("amax", -_INF, 0),
    _reduced("amin", _INF, 0),
    _reduced("any", 0, False, order=0),
    _reduced("all", 1, True, order=0),
    Op(
        "count_nonzero",
        "reductions.reduce",
        names_in_torch("count_nonzero"),
        _FORMS,
        _count_nonzero,
        order=0,
        samples=({"dim": -1}, {}, {"dim": (-2, -1)}, {"dim": -2, "specified": True}),
    ),
    Op(
        "sparse_sum",
        "reductions.reduce",
        ("torch.sparse.sum", "torch._sparse_sum"),
        _WHOLE,
        torch.sum,
    ),
    Op("trace", "reductions.reduce", names_in_torch("trace"), ("A[m,k] -> y[]",), torch.trace),
    _along("max", -_INF),
    _along("min", _INF),
    _reduced("argmax", -_INF, -1, order=0, samples=_ALONG),
    _reduced("argmin", _INF, -1, order=0, samples=_ALONG),
    _softmax("softmax"),
    _softmax("log_softmax"),
    Op(
        "norm",
        "reductions.norms",
        names_in_torch("norm"),
        _FORMS,
        _torch_norm,
        samples=(
            {"dim": -1},
            {},
            {"p": 1, "dim": (-2, -1), "keepdim": True},
            {"p": 3, "dim": -1, "specified": True},
            {"p": -_INF, "dim": -1, "specified": True},
        ),
    ),
    Op(
        "native_norm",
        "reductions.norms",
        names_in_torch("native_norm"),
        _FORMS,
        _norm,
        samples=({}, {"p": 3, "dim": -2, "keepdim": False}),
    ),
    Op(
        "vector_norm",
        "reductions.norms",
        ("torch.linalg.vector_norm",),
        _FORMS,
        torch.linalg.vector_norm,
        samples=(
            {"dim": -1},
            {"ord": _INF},
            {"ord": 0.5, "dim": -2},
            {"ord": -1, "dim": (-2, -1)},
            {"ord": 0, "dim": -1},
        ),
    ),
    Op(
        "matrix_norm",
        "reductions.linalg_norms",
        ("torch.linalg.matrix_norm",),
        _FORMS,
        torch.linalg.matrix_norm,
        samples=({}, {"ord": 1}, {"ord": -_INF, "dim": (-1, -2), "keepdim": True}),
    ),
    Op(
        "linalg_norm",
        "reductions.linalg_norms",
        ("torch.linalg.norm",),
        _FORMS,
        torch.linalg.norm,
        samples=(
            {"dim": -1},
            {"ord": 3, "dim": -2},
            {"ord": 1, "dim": (-2, -1)},
            {"dim": (-1, -2), "keepdim": True},
        ),
    ),
    Op(
        "normalize",
        "reductions.linalg_norms",
        ("torch.nn.functional.normalize",),
        ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]"),
        F.normalize,
        samples=({}, {"p": 1, "dim": -1}, {"p": 3, "dim": (0, -1)}, {"p": _INF, "dim": 0}),
    ),
    Op(
        "logsumexp",
        "reductions.norms",
        (*names_in_torch("logsumexp"), "torch.special.logsumexp"),
        _FORMS,
        _logsumexp,
        samples=(
            {"dim": -1},
            {"dim": (-2, -1), "keepdim": True},
            {"dim": (-2, -1), "specified": True},
        ),
    ),
    *(
        Op(
            name,
            "reductions.norms",
            names_in_torch(name),
            _FORMS,
            dense,
            samples=({"dim": -1}, {}, {"dim": (-2, -1), "correction": 0, "specified": True}),
        )
        for name, dense in (("var", _var), ("std", _std))
    ),
    _ordered("sort", _sorted, {}, {"dim": -2, "descending": True}),
    _ordered("argsort", _argsorted, {}, {"dim": 0}, order=0),
    _ordered("cumsum", _running, {}, {"dim": -2}),
    Op(
        "topk",
        "reductions.order",
        names_in_torch("topk"),
        ("A[m,k] -> y[m,n]", "A[b,m,k] -> y[b,m,n]"),
        _topk,
        samples=(
            {"k": 2},
            {"k": 3, "dim": -2, "largest": False},
            {"k": 4, "dim": -1, "specified": True},
        ),
    ),
    Op(
        "unique",
        "reductions.distinct",
        names_in_torch("unique"),
        ("A[m,k] -> y[n]", "A[b,m,k] -> y[n]", "A[m,k|d] -> y[n]"),
        _unique,
        order=0,
        samples=({}, {"return_counts": True}, {"return_counts": True, "specified": True}),
        traced=False,
    ),
)
