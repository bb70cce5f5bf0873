"""Rows of the operations that read or write parts of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from spgrad.support.table import Op, names_in_torch, plainly

_FORMS = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]")
_LESS = ("A[m,k] -> C[k]:coo", "A[b,m,k] -> C[m,k]", "A[m,k|d] -> C[k|d]:coo")


def _item(A: torch.Tensor, index: Any) -> torch.Tensor:
    return A[index]


def _with_item(A: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    out = A.clone()
    out[index] = value
    return out


def _pruned(
    A: torch.Tensor, threshold: float | None = None, keep: int | None = None, *, mask: torch.Tensor
) -> torch.Tensor:
    size = A if A.dtype == torch.bool else A.abs()
    if keep is not None:
        order = size.sort(dim=-1, descending=True, stable=True).indices
        rank = mask.gather(-1, order).sort(dim=-1, descending=True, stable=True).indices
        first = order.gather(-1, rank)[..., :keep]  # specified zeros before the others
        kept = torch.zeros_like(size, dtype=torch.bool).scatter(-1, first, True)
        A = torch.where(kept, A, A.new_zeros(()))
    if threshold is None and keep is not None:
        return A  # specified zeros stay too
    threshold = 0.0 if threshold is None else threshold
    return torch.where(~(size <= threshold), A, A.new_zeros(()))  # NaN stays


def _compacted(A: torch.Tensor, *, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    row, col = (mask.any(dim).nonzero().squeeze(1) for dim in (1, 0))
    return A[row][:, col], row, col


def _find(A: torch.Tensor) -> tuple[torch.Tensor, ...]:
    at = torch.nonzero(A, as_tuple=True)
    return (*at, A[at])


def _at_mask(A: torch.Tensor, M: torch.Tensor) -> torch.Tensor:
    return A * (M != 0)


def _cut(
    function: Callable[..., Any], A: Any, *, split_size_or_sections: Any, **options: Any
) -> Any:
    """Gives the sizes by position, because torch.split and Tensor.split name them differently."""
    return function(A, split_size_or_sections, **options)


def _index_add(
    A: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> torch.Tensor:
    """torch.index_add, which refuses operands of two dtypes, in the dtype of their sum."""
    dtype = torch.result_type(A, source)
    return torch.index_add(A.to(dtype), dim, index, source.to(dtype), alpha=alpha)


def _at_rows(function: Callable[..., Any], A: Any, B: Any, **options: Any) -> Any:
    """Calls a function with an index into the rows of A for each row of B; some occur twice."""
    index = None
    if isinstance(A, torch.Tensor) and isinstance(B, torch.Tensor):
        rows = A.shape[:1].numel()
        index = 1 + torch.arange(B.shape[:1].numel()) // 2
        index = index % rows if rows else index[:0]
    return function(A, 0, index, B, **options)


def _op(
    name: str,
    signatures: tuple[str, ...],
    *samples: Mapping[str, Any],
    names: tuple[str, ...] | None = None,
    dense: Callable[..., Any] | None = None,
    module: str = "getitem",
    order: int = 2,
    call: Callable[..., Any] = plainly,
) -> Op:
    own = names_in_torch(name) if names is None else names
    fn = dense or getattr(torch, name)
    return Op(
        name,
        f"indexing.{module}",
        own,
        signatures,
        fn,
        order=order,
        samples=samples or ({},),
        call=call,
    )


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
        module="setitem",
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
        names=("torch.split", "torch.Tensor.split"),
        call=_cut,
    ),
    _op("chunk", _FORMS, {"chunks": 3, "dim": 1}),
    _op("unbind", ("A[2,k] -> C[k]:coo", "A[b,m,k] -> C[m,k]", "A[2,k|d] -> C[k|d]:coo"), {}),
    _op(
        "masked_select",
        ("A[m,k] t[m,k] -> y[nse]", "A[m,k] T[m,k] -> y[nse]", "A[b,m,k] t[b,m,k] -> y[nse]"),
    ),
    _op(
        "index_add",
        (
            "A[m,k] B[n,k] -> C[m,k]",
            "A[b,m,k] B[n,m,k] -> C[b,m,k]",
            "A[m,k|d] B[n,k|d] -> C[m,k|d]",
        ),
        {},
        {"alpha": 2},
        module="setitem",
        dense=_index_add,
        call=_at_rows,
    ),
    _op(
        "sparse_mask",
        (
            "x[m,k] M[m,k] -> C[m,k]",
            "x[b,m,k] M[b,m,k] -> C[b,m,k]",
            "x[m,k,d] M[m,k|d] -> C[m,k|d]",
            "A[m,k] M[m,k] -> C[m,k]:second",
        ),
        module="mask",
        dense=_at_mask,
    ),
    _op(
        "prune",
        _FORMS[:2],
        {"threshold": 0.5},
        {},
        {"keep": 2},
        module="nonzero",
        names=(),
        dense=_pruned,
    ),
    _op(
        "nonzero",
        ("A[m,k] -> y[nse,2]", "A[b,m,k] -> y[nse,3]", "A[m,k|d] -> y[nse,3]"),
        {},
        {"as_tuple": True},
        module="nonzero",
        names=("torch.nonzero", "torch.Tensor.nonzero", *names_in_torch("argwhere")),
        order=0,
    ),
    _op(
        "where",
        (
            "T[m,k] A[m,k] B[m,k] -> C[m,k]",
            "T[b,m,k] A[b,m,k] B[b,m,k] -> C[b,m,k]",
            "T[m,k|d] A[m,k|d] B[m,k|d] -> C[m,k|d]",
            "t[m,k] A[m,k] B[m,k] -> C[m,k]",
            "T[m,k] x[k] B[m,k] -> C[m,k]",
            "T[m,k] s[] B[m,k] -> C[m,k]",
        ),
        module="where",
        names=("torch.where",),
    ),
    Op(
        "tensor_where",
        "indexing.where",
        ("torch.Tensor.where",),
        ("A[m,k] T[m,k] B[m,k] -> C[m,k]", "x[m,k] T[m,k] B[m,k] -> C[m,k]"),
        torch.Tensor.where,
        public=False,
    ),
    _op("compact", ("A[m,k] -> C[m,k]",), module="compact", names=(), dense=_compacted),
    _op("find", ("A[m,k] -> y[nse]",), module="nonzero", names=(), dense=_find, order=0),
    Op(
        "coo_indices",
        "indexing.nonzero",
        (),
        ("A[m,k] -> y[2,nse]",),
        None,
        order=0,
        absent={"dense": "the order of the values is that of the layout"},
        traced=False,
    ),
)
