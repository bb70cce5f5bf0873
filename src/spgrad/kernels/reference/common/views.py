"""Pointers, indices and the order of values: what references do with a row view."""

from __future__ import annotations

import torch
from torch import Tensor


def positions(like: Tensor, length: int) -> Tensor:
    """0, 1, ..., length - 1 in `like`'s dtype and device (`arange` would not be traceable)."""
    return like.new_ones(length).cumsum(0, dtype=like.dtype) - 1


def row_numbers(ptr: Tensor, nse: int) -> Tensor:
    """Row numbers (nse,) from row pointers (m + 1,)."""
    return torch.repeat_interleave(ptr.diff(), output_size=nse).to(ptr.dtype)


def row_pointers(row: Tensor, m: int) -> Tensor:
    """Row pointers (m + 1,) from row numbers (nse,) in any order."""
    count = row.new_zeros(m + 1).index_add_(0, row.long() + 1, torch.ones_like(row))
    return count.cumsum(0, dtype=row.dtype)


def in_view_order(val: Tensor, perm: Tensor | None) -> Tensor:
    """Values (nse, *d), which stand at `perm` (nse,) or in place, in the order of the view."""
    return val if perm is None else val.index_select(0, perm)


def in_value_order(out: Tensor, perm: Tensor | None) -> Tensor:
    """The inverse of `in_view_order`, for a bijection `perm`."""
    return out if perm is None else torch.empty_like(out).index_copy_(0, perm.long(), out)


def moved(entry: Tensor, val: Tensor | None) -> Tensor:
    """The entries that went somewhere, or their values; -1 and zero stand for none."""
    if val is None:
        return entry
    with_zero = torch.cat([val, val.new_zeros(1)])
    return with_zero[torch.where(entry < 0, val.shape[0], entry)]
