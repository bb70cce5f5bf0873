"""References of the kernels that reduce each segment to one number, and that expand the numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers

_REDUCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "sum": (torch.add, 0),
    "prod": (torch.mul, 1),
    "amax": (torch.maximum, 0),
    "amin": (torch.minimum, 0),
}
"""Name -> what joins two elements, and what an empty segment gives."""


def _fold(ptr: Tensor, x: Tensor, join: Callable[[Tensor, Tensor], Tensor], empty: int) -> Tensor:
    """Joins the elements (nse, *d) of every segment in pairs until there is one of each (m, *d)."""
    count = ptr.diff().long()
    while x.shape[0] > 0 and int(count.max()) > 1:
        start = (count.cumsum(0) - count)[torch.repeat_interleave(count)]
        second = (torch.ones_like(start).cumsum(0) - 1 - start) % 2 == 1  # of a pair
        place = ((~second).cumsum(0) - 1)[second]
        joined = x[~second]
        joined[place] = join(joined[place], x[second])
        x, count = joined, (count + 1) // 2
    out = x.new_full((count.numel(), *x.shape[1:]), empty)
    out[count > 0] = x
    return out


# The references take as many steps as the longest segment asks for; shape functions take none.
def _segments_shape(ptr: Tensor, perm: Tensor | None, val: Tensor, reduce: str) -> Tensor:
    return val.new_empty((ptr.shape[0] - 1, *val.shape[1:]))


def _positions_shape(ptr: Tensor, perm: Tensor | None, val: Tensor, largest: bool) -> Tensor:
    return val.new_empty((ptr.shape[0] - 1, *val.shape[1:]), dtype=torch.int64)


@kernel(
    "segment_reduce(Tensor ptr, Tensor? perm, Tensor val, str reduce) -> Tensor",
    fake=_segments_shape,
)
def segment_reduce(ptr: Tensor, perm: Tensor | None, val: Tensor, reduce: str) -> Tensor:
    """y[i] = the sum, product, maximum or minimum of val[perm[p]] over the entries p of segment i.

    NaN propagates; integers wrap. A segment without entries gives 0, and a product of 1.

    Args:
        ptr: Segment pointers (m + 1,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,) or (nse, d).
        reduce: "sum", "prod", "amax" or "amin".

    Returns:
        y (m,) or (m, d).
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"spgrad: `reduce` is {reduce}; it is one of {', '.join(_REDUCTIONS)}.")
    return _fold(ptr, widened(in_view_order(val, perm)), *_REDUCTIONS[reduce]).to(val.dtype)


def first_extremum(ptr: Tensor, x: Tensor, largest: bool) -> Tensor:
    """The first position of the largest (smallest) of the elements (nse, *d) of every segment."""
    extremum = segment_reduce(ptr, None, x, "amax" if largest else "amin")
    segment = row_numbers(ptr, x.shape[0])
    attains = x == extremum.index_select(0, segment)
    if x.is_floating_point():
        attains |= x.isnan()  # where one is NaN, the extremum is NaN, which equals nothing
    position = (attains.long().new_ones(x.shape[0]).cumsum(0) - 1).reshape(-1, *[1] * (x.dim() - 1))
    first = segment_reduce(ptr, None, torch.where(attains, position, x.shape[0]), "amin")
    return first.masked_fill_((ptr.diff() == 0).view(-1, *[1] * (x.dim() - 1)), -1)


@kernel(
    "segment_arg(Tensor ptr, Tensor? perm, Tensor val, bool largest) -> Tensor",
    fake=_positions_shape,
)
def segment_arg(ptr: Tensor, perm: Tensor | None, val: Tensor, largest: bool) -> Tensor:
    """arg[i] = the first entry p of segment i with the largest (smallest) val[perm[p]].

    The first NaN, where there is one. -1 for a segment without entries.

    Args:
        ptr: Segment pointers (m + 1,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,) or (nse, d).
        largest: Whether the largest is sought, or the smallest.

    Returns:
        arg (m,) or (m, d), int64: a position in the view, not in `val`.
    """
    return first_extremum(ptr, widened(in_view_order(val, perm)), largest)


@kernel("segment_expand(Tensor ptr, Tensor? perm, SymInt nse, Tensor x) -> Tensor")
def segment_expand(ptr: Tensor, perm: Tensor | None, nse: int, x: Tensor) -> Tensor:
    """out[perm[p]] = x[i] for every entry p of every segment i.

    Args:
        ptr: Segment pointers (m + 1,).
        perm: Where an entry's value belongs in the result, a bijection (nse,); None for in place.
        nse: The number of entries.
        x: What each segment has, (m,) or (m, d).

    Returns:
        out (nse,) or (nse, d).
    """
    return in_value_order(x.index_select(0, row_numbers(ptr, nse)), perm)
