"""References of the kernels that order the elements of each segment by their values."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_numbers


@kernel("segment_order(Tensor ptr, Tensor val, bool descending) -> Tensor")
def segment_order(ptr: Tensor, val: Tensor, descending: bool) -> Tensor:
    """order[r] = the entry at place r, if the entries of each segment are sorted by their values.

    Equal values stay in order, -0 equals 0, and NaN counts as the largest.

    Args:
        ptr: Segment pointers (m + 1,).
        val: Real values (nse,) or (nse, d), segment by segment. Each column has its own order.
        descending: Whether the largest comes first.

    Returns:
        order (nse,) or (nse, d), int64.
    """
    return _order(row_numbers(ptr, val.shape[0]), val, descending)


@kernel(
    "segment_top(Tensor ptr, Tensor val, Tensor where, SymInt size, SymInt k, bool largest, "
    "bool specified) -> (Tensor, Tensor)"
)
def segment_top(
    ptr: Tensor, val: Tensor, where: Tensor, size: int, k: int, largest: bool, specified: bool
) -> tuple[Tensor, Tensor]:
    """The places and entries of the k largest, or smallest, elements of each segment.

    A segment has `size` places, and those without an entry count as zeros. Of equal elements the
    first counts, and NaN is the largest. No number is read from a device.

    Args:
        ptr: Segment pointers (m + 1,).
        val: Real values (nse,), segment by segment.
        where: The place of each entry in its segment (nse,), int64, ascending, below `size`.
        size: The number of places.
        k: How many elements are wanted, at most `size`.
        largest: Whether the largest are wanted.
        specified: Whether places without an entry do not count.

    Returns:
        places (m, k) and entries (m, k), int64, in the order of the values. The entry is -1 for a
        place without one. With `specified`, both are -1 where a segment has fewer than k entries.
    """
    ptr, lines = ptr.long(), ptr.shape[0] - 1
    rank = torch.arange(k, device=val.device).repeat(lines, 1)
    if val.shape[0] == 0:
        none = torch.full_like(rank, -1)
        return none if specified else rank, none.clone()
    line = row_numbers(ptr, val.shape[0])
    counted = torch.ones_like(line, dtype=torch.bool) if specified else val != 0
    order = _order(torch.where(counted, line, lines), val, largest)
    before = _running(counted)
    start, stop = before[ptr[:-1], None], before[ptr[1:], None]
    ahead, zeros = stop - start, torch.zeros_like(start)
    if not specified:
        first = ~(val[order] <= 0) if largest else val[order] < 0
        ahead, zeros = _running(first)[stop] - _running(first)[start], size - ahead
    at = start + torch.where(rank < ahead, rank, rank - zeros)
    there = ((rank < ahead) | (rank >= ahead + zeros)) & (at < stop)
    entry = order[at.clamp(0, val.shape[0] - 1)]
    place, entry = torch.where(there, where[entry], -1), torch.where(there, entry, -1)
    if specified:
        return place, entry
    # the zero of a rank stands behind all elements that have at most so many zeros before them
    rank = rank - ahead
    zero = (rank >= 0) & (rank < zeros)
    row = torch.arange(lines, device=val.device)[:, None]
    keys = line * (size + 1) + where - (before[:-1] - start.squeeze(1)[line])
    passed = torch.searchsorted(keys, row * (size + 1) + rank.clamp(0, size), right=True)
    empty = rank + before[passed] - start
    keys, wanted = line * size + where, row * size + empty
    found = torch.searchsorted(keys, wanted).clamp(max=val.shape[0] - 1)
    found = torch.where(keys[found] == wanted, found, -1)  # a zero that has an entry
    return torch.where(zero, empty, place), torch.where(zero, found, entry)


def _order(segment: Tensor, val: Tensor, descending: bool) -> Tensor:
    """The order (nse,) or (nse, d) of values by segment, and in each by size."""
    by_size = val.sort(dim=0, descending=descending, stable=True).indices
    # the second sort is stable as well, so it keeps the order by size
    return by_size.gather(0, segment[by_size].sort(dim=0, stable=True).indices)


def _running(chosen: Tensor) -> Tensor:
    """How many of the entries before each are chosen, and of all (nse + 1,)."""
    return torch.cat([chosen.new_zeros(1, dtype=torch.int64), chosen.cumsum(0)])
