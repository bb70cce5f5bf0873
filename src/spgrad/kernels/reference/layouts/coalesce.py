"""References of the kernels that sort the entries of COO indices and merge duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_pointers


def in_order(indices: Tensor) -> Tensor:
    """The lexicographic order (nse,) of the columns of (d, nse), equal ones in theirs."""
    order = indices.new_ones(indices.shape[1], dtype=torch.int64).cumsum(0) - 1
    for key in reversed(indices.unbind(0)):  # least significant key first: the sorts are stable
        order = order[torch.argsort(key[order], stable=True)]
    return order


def _distinct(indices: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct columns of (d, nse) in lexicographic order, and which each column became."""
    order = in_order(indices)
    entries = indices[:, order]
    starts = entries.new_ones(entries.shape[1], dtype=torch.bool)
    starts[1:] = (entries[:, 1:] != entries[:, :-1]).any(0)
    group = torch.empty_like(order)
    group[order] = starts.cumsum(0) - 1
    return entries[:, starts].contiguous(), group


def _fake_sort_coo(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    unique = torch.library.get_ctx().new_dynamic_size()
    nse = indices.shape[1]
    dtype = position_dtype(nse)
    return (
        indices.new_empty((indices.shape[0], unique)),
        indices.new_empty(unique + 1, dtype=dtype),
        indices.new_empty(nse, dtype=dtype),
    )


def position_dtype(nse: int) -> torch.dtype:
    """The dtype of positions among so many entries."""
    return torch.int32 if nse <= torch.iinfo(torch.int32).max else torch.int64


@kernel("sort_coo(Tensor indices, SymInt[] size) -> (Tensor, Tensor, Tensor)", fake=_fake_sort_coo)
def sort_coo(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct entries in lexicographic order, and the entries that each of them is.

    Args:
        indices: COO indices (d, nse).
        size: Of every dimension (d,).

    Returns:
        unique (d, u); ptr (u + 1,) and order (nse,): distinct entry i is the entries
        order[ptr[i] : ptr[i + 1]], in ascending order. int32 where nse fits, else int64.
    """
    unique, group = _distinct(indices)
    dtype = position_dtype(indices.shape[1])
    ptr = row_pointers(group, unique.shape[1])
    return unique, ptr.to(dtype), torch.argsort(group, stable=True).to(dtype)


def _fake_coalesce(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    unique = torch.library.get_ctx().new_dynamic_size()
    return (
        indices.new_empty((indices.shape[0], unique)),
        indices.new_empty(indices.shape[1], dtype=torch.int64),
    )


@kernel("coalesce(Tensor indices, SymInt[] size) -> (Tensor, Tensor)", fake=_fake_coalesce)
def coalesce(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The distinct entries (d, u) in lexicographic order, and which of them each entry became."""
    return _distinct(indices)


def distinct(indices: Tensor) -> tuple[Tensor, Tensor]:
    """`coalesce` of indices (d, nse) whose bounds are not known."""
    if indices.numel() == 0:
        return coalesce(indices, [1] * indices.shape[0])
    return coalesce(indices, (indices.amax(1) + 1).tolist())
