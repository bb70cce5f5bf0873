"""References of the kernels that join ranges of entries to new lines, and cut lines."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import positions, row_numbers


def _entries(ptr: Tensor, begin: Tensor, end: Tensor, count: int, backward: bool) -> Tensor:
    """The entries (count,) of ranges one behind the other."""
    j = row_numbers(ptr, count).long()
    step = positions(ptr, count) - ptr[:-1][j]
    return ((end - 1)[j] - step if backward else begin[j] + step).long()


@kernel(
    "join_ranges(Tensor idx, Tensor begin, Tensor end, Tensor shift, SymInt count, bool backward)"
    " -> (Tensor, Tensor)"
)
def join_ranges(
    idx: Tensor, begin: Tensor, end: Tensor, shift: Tensor, count: int, backward: bool
) -> tuple[Tensor, Tensor]:
    """Ranges of entries one behind the other, their indices shifted.

    Args:
        idx: Index of every entry (nse,).
        begin: The first entry of each range (s,).
        end: The entry behind it (s,). Ranges may overlap and stand in any order.
        shift: What is added to the indices of range j: element j mod r of (r,).
        count: Of the entries in all ranges.
        backward: True where a range goes from its last entry to its first, and indices are
            subtracted from the shift.

    Returns:
        Pointers (s + 1,) and indices (count,). All of one dtype, which has to hold `count`.
    """
    length = end - begin
    ptr = torch.cat([length.new_zeros(1), length.cumsum(0, dtype=length.dtype)])
    found = idx[_entries(ptr, begin, end, count, backward)]
    more = shift[row_numbers(ptr, count).long() % shift.shape[0]]
    return ptr, more - found if backward else found + more


@kernel(
    "take_ranges(Tensor val, Tensor ptr, Tensor begin, Tensor end, SymInt count, bool backward)"
    " -> Tensor"
)
def take_ranges(
    val: Tensor, ptr: Tensor, begin: Tensor, end: Tensor, count: int, backward: bool
) -> Tensor:
    """The values of ranges of entries that `join_ranges` has joined.

    Args:
        val: Values (nse,) or (nse, d) of any dtype.
        ptr: As `join_ranges` gave it (s + 1,).
        begin: As `join_ranges` was given it (s,).
        end: Likewise (s,).
        count: Likewise.
        backward: Likewise.

    Returns:
        out (count,) or (count, d).
    """
    return val[_entries(ptr, begin, end, count, backward)]


@kernel(
    "cut_lines(Tensor ptr, Tensor idx, Tensor bound) -> Tensor",
    fake=lambda ptr, idx, bound: ptr.new_empty(ptr.shape[0] - 1),
)
def cut_lines(ptr: Tensor, idx: Tensor, bound: Tensor) -> Tensor:
    """The first entry of every line whose index is bound[i] or more; the end if there is none.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of every entry (nse,), ascending in each line.
        bound: For every line (m,), int64.
    """
    row = row_numbers(ptr, idx.numel()).long()
    below = (idx < bound[row]).to(ptr.dtype)
    return ptr[:-1] + torch.zeros_like(ptr[1:]).index_add_(0, row, below)
