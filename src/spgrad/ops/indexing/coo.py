"""What a subscript takes of coordinates in lexicographic order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core.checks import INT
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.lowering.gather import Entries, Run
from spgrad.lowering.rebuild import composed, positions
from spgrad.lowering.sorting import counting_sort, lexicographic
from spgrad.lowering.views import linear_index, unraveled
from spgrad.ops.indexing.parse import GROUP, NEW, Group, Slice, Subscript
from spgrad.torch_protocol.compile import is_real, known


class Target(NamedTuple):
    """The result: the origin of its sparse dimensions, its shape, its number of dense ones."""

    out: tuple[int, ...]
    shape: tuple[int, ...]
    dense_dim: int


def is_whole(take: Slice | int | None, size: int) -> bool:
    """True for what takes all of a dimension in order."""
    return isinstance(take, Slice) and take == (0, 1, size)


def sparse_part(group: Group | None, split: int) -> dict[int, torch.Tensor]:
    """The index tensor of each sparse dimension that has one."""
    if group is None:
        return {}
    return {d: t for d, t in zip(group.dims, group.index, strict=True) if d < split}


def window(
    indices: torch.Tensor, taken: Sequence[Slice | int | None], shape: Sequence[int]
) -> tuple[int, int, int]:
    """The run of entries that the leading ints, and a slice behind them, leave over.

    By binary search, O(log nse) for each dimension. A trace, which can't know the run, gives all
    entries, of which the dimensions then ask for theirs.

    Returns:
        First entry, end, and the number of dimensions that ask for nothing more.
    """
    first, end = 0, indices.shape[1]
    if not is_real(indices):
        return first, end, 0
    for dim, take in enumerate(taken):
        if take is None or is_whole(take, shape[dim]):
            return first, end, dim
        low, high = (take, take) if isinstance(take, INT) else _bounds(take)
        line = indices[dim, first:end]
        ends = torch.searchsorted(line, low), torch.searchsorted(line, high, right=True)
        below, end = torch.stack(ends).tolist()  # read once
        first, end = first + below, first + end
        if not isinstance(take, INT):
            return first, max(first, end), dim + (abs(take.step) == 1)
    return first, end, len(taken)


def _bounds(take: Slice) -> tuple[int, int]:
    """The least and the largest index; of no indices, a least that is above the largest."""
    last = take.start + (take.count - 1) * take.step
    return (min(take.start, last), max(take.start, last)) if take.count else (0, -1)


def of_coordinates(
    pattern: Pattern, subscript: Subscript, target: Target
) -> tuple[Pattern, Entries]:
    """The part of a coalesced COO pattern that a subscript takes, as COO."""
    split = pattern.sparse_dim
    shape = tuple(pattern.shape[:split])
    taken = subscript.taken[:split]
    old = pattern.indices[0]
    first, end, done = window(old, taken, shape)
    indices = old[:, first:end]
    points = sparse_part(subscript.group, split)
    asks = [d for d in range(done, split) if not is_whole(taken[d], shape[d]) and d not in points]
    sorts = bool(points)
    entry: torch.Tensor | None = None
    point: torch.Tensor | None = None
    leads = all(isinstance(take, INT) for take in taken[:done])
    if leads and points and list(points) == list(range(done, done + len(points))):
        point, entry = _runs(indices, points, shape)
        kept = _taken_entries(indices, asks, taken, entry)
        point, entry = composed(point, kept), composed(entry, kept)
        sorts = False
    else:
        entry = _taken_entries(indices, asks, taken, None)
        if points:
            here = indices if entry is None else indices.index_select(1, entry)
            found, point = _matching_points(here, points, shape)
            entry = composed(entry, found)
    if subscript.group is not None and not points and GROUP in target.out:
        entry, point = _no_points(subscript.group, entry, indices)
    if entry is not None:
        indices = indices.index_select(1, entry)
    made = _result_coordinates(indices, point, subscript, target)
    leading = max((i + 1 for i in _disordered(subscript, target, sorts)), default=0)
    if leading:
        order = lexicographic(made, target.shape[: made.shape[0]], leading)
        made, entry = made.index_select(1, order), composed(entry, order)
    found = Pattern(torch.sparse_coo, target.shape, (made,), dense_dim=target.dense_dim)
    if entry is not None:
        return found, entry + first
    return found, None if (first, end) == (0, old.shape[1]) else Run(first, end - first)


def _no_points(
    group: Group, entry: torch.Tensor | None, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For True or False as an index: all entries, or none."""
    entry = positions(indices, indices.shape[1]) if entry is None else entry
    entry = entry if group.points else entry[:0]
    return entry, torch.zeros_like(entry)


def _taken_entries(
    indices: torch.Tensor,
    asks: Sequence[int],
    taken: Sequence[Slice | int | None],
    entry: torch.Tensor | None,
) -> torch.Tensor | None:
    """Positions of the entries that all of these dimensions take; None for all."""
    kept = None
    for d in asks:
        take = taken[d]
        line = composed(indices[d], entry)
        assert line is not None
        if isinstance(take, INT):
            own = line == take
        else:
            assert take is not None
            low, high = _bounds(take)
            own = (line >= low) & (line <= high)
            if abs(take.step) > 1:
                own &= (line - low) % abs(take.step) == 0
        kept = own if kept is None else kept & own
    return None if kept is None else kept.nonzero().squeeze(1)


def _keys(
    indices: torch.Tensor, points: dict[int, torch.Tensor], shape: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One number for the indexed coordinates of each entry, and of each point."""
    dims = list(points)
    if len(dims) == 1:
        line = indices[dims[0]]
        return line, points[dims[0]].to(line.dtype)
    sizes = tuple(shape[d] for d in dims)
    keys = linear_index([indices[d].to(torch.int64) for d in dims], sizes)
    wanted = linear_index(torch.stack(list(points.values())), sizes)
    assert keys is not None
    assert wanted is not None
    return keys, wanted


def _runs(
    indices: torch.Tensor, points: dict[int, torch.Tensor], shape: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Point and entry of all pairs that agree, point by point; entries are in order of their keys.

    O(points log(nse) + pairs) for one dimension.
    """
    keys, wanted = _keys(indices, points, shape)
    low = torch.searchsorted(keys, wanted)
    return _ragged(low, torch.searchsorted(keys, wanted, right=True) - low)


def _matching_points(
    indices: torch.Tensor, points: dict[int, torch.Tensor], shape: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Entry and point of all pairs that agree, entry by entry, the points of each ascending.

    O(points + nse + pairs) where the dimensions are not much larger than that, else
    O((points + nse) log(points) + pairs).
    """
    keys, wanted = _keys(indices, points, shape)
    size = math.prod(shape[d] for d in points)
    count = keys.shape[0] + wanted.shape[0]
    if known(count) and size <= 4 * count:  # the points of each key
        ptr, order = counting_sort(wanted.to(torch.int64), size)
        some = (ptr[1:] > ptr[:-1]).index_select(0, keys).nonzero().squeeze(1)
        keys = keys.index_select(0, some)
        low, high = ptr.index_select(0, keys), ptr[1:].index_select(0, keys)
        entry, at = _ragged(low, high - low)
        return some.index_select(0, entry), order.index_select(0, at)
    wanted, order = torch.sort(wanted, stable=True)
    keys = keys.contiguous()
    low = torch.searchsorted(wanted, keys)
    entry, at = _ragged(low, torch.searchsorted(wanted, keys, right=True) - low)
    return entry, order.index_select(0, at)


def _ragged(start: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For runs of positions: which run each position belongs to, and the position."""
    ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    total: Any = ptr[-1].item()  # in a trace a symbol, which int() would refuse
    run = kernels.expand(ptr, total)
    return run, positions(ptr, total) + (start - ptr[:-1]).index_select(0, run)


def _result_coordinates(
    indices: torch.Tensor, point: torch.Tensor | None, subscript: Subscript, target: Target
) -> torch.Tensor:
    """New coordinates, in the order of the result's dimensions."""
    dtype = index_dtype(indices.dtype, target.shape)
    count = indices.shape[1]
    rows = []
    for item in target.out:
        if item == NEW:
            rows.append(indices.new_zeros(count, dtype=dtype))
        elif item == GROUP:
            assert subscript.group is not None
            assert point is not None
            rows += [p.to(dtype) for p in unraveled(point, subscript.group.shape)]
        else:
            rows.append(new_indices(indices[item], subscript.taken[item]).to(dtype))
    return torch.stack(rows) if rows else indices.new_zeros(0, count, dtype=dtype)


def new_indices(line: torch.Tensor, take: Slice | int | None) -> torch.Tensor:
    """New coordinates of a slice from old ones that it takes."""
    assert isinstance(take, Slice)
    if take.step == 1:
        return line - take.start if take.start else line
    return torch.div(line - take.start, take.step, rounding_mode="floor")


def _disordered(subscript: Subscript, target: Target, sorts: bool) -> list[int]:
    """Dimensions of the result in which the entries are no longer in order."""
    found, at = [], 0
    for item in target.out:
        width = 1
        if item == GROUP:
            assert subscript.group is not None
            width = len(subscript.group.shape)
        take = subscript.taken[item] if item >= 0 else None
        backwards = isinstance(take, Slice) and take.step < 0
        if backwards or (item == GROUP and sorts):
            found.append(at + width - 1)
        at += width
    return found
