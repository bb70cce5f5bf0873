"""References of the kernels that sort the entries of COO indices and merge duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import distinct, row_pointers


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
    unique, group = distinct(indices)
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
    return distinct(indices)
