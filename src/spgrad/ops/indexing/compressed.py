"""What a subscript takes of a pattern: the new pattern, and the old entries that it is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.checks import INT
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.values import as_dtype
from spgrad.lowering.gather import Entries, Ranges, Run, as_index
from spgrad.lowering.ranges import lines_of, of_lines
from spgrad.lowering.rebuild import Found, composed, coordinates, in_layout, positions
from spgrad.lowering.sorting import counting_sort, lexicographic
from spgrad.lowering.views import entries_at, has_lines, unraveled
from spgrad.ops.indexing.coo import (
    Target,
    is_whole,
    of_coordinates,
    sparse_part,
    window,
)
from spgrad.ops.indexing.parse import GROUP, NEW, Group, Slice, Subscript
from spgrad.ops.shapes.shape import same_elements
from spgrad.torch_protocol.compile import is_real
from spgrad.torch_protocol.func_transforms import in_torch_func

_INT32 = torch.iinfo(torch.int32).max


class PatternPart(NamedTuple):
    """A new pattern, and which old elements its elements are; with `blocks`, which old blocks."""

    pattern: Pattern
    entry: Entries
    blocks: bool = False


class TakenLines(NamedTuple):
    """Lines of a matrix, as a compressed layout has them, and which old entries they list."""

    ptr: torch.Tensor
    idx: torch.Tensor
    entry: Entries


def part_of_pattern(pattern: Pattern, subscript: Subscript, target: Target) -> PatternPart:
    """The elements of a coalesced pattern that a subscript takes.

    The layout stays where the two matrix dimensions do; the result is COO otherwise. Blocks stay
    where whole ones are taken; otherwise they are made of the single elements, if they fit.
    """
    if pattern.is_coo:
        found = _of_coo_lines(pattern, subscript, target)
        return PatternPart(*found or of_coordinates(pattern, subscript, target))
    keeps = _keeps_matrix(pattern, subscript, target)
    split = len(pattern.batch) + 2
    sizes = pattern.shape[:split]
    if keeps and all(map(is_whole, subscript.taken[:split], sizes)) and GROUP not in target.out:
        return PatternPart(same_elements(pattern, target.shape, target.dense_dim), None, True)
    if pattern.blocksize is None:
        return PatternPart(*_of_compressed(pattern, subscript, target, keeps))
    scaled = _in_blocks(pattern, subscript, target) if keeps else None
    if scaled is not None:
        blocks, entry = _of_compressed(*scaled, True)
        spec = pattern.spec._replace(dense_dim=target.dense_dim)
        return PatternPart(Pattern.from_spec(spec, target.shape, blocks.indices), entry, True)
    plain = torch.sparse_csr if pattern.compressed_by_rows else torch.sparse_csc
    single, first = _whole(in_layout(pattern, None, (plain, None)))
    found, own = _of_compressed(single, subscript, target, keeps)
    entry = composed(first, as_index(own, pattern.indices[1]))
    m, k = found.matrix if keeps else (1, 1)
    if keeps and m % pattern.blocksize[0] == k % pattern.blocksize[1] == 0:
        return PatternPart(*_whole(in_layout(found, entry, (pattern.layout, pattern.blocksize))))
    return PatternPart(found, entry)


_SEARCHED = 64
"""Rows of a list are searched for where there are more elements for each, and no pointers yet."""

_SMALL = 2**14
"""Elements of a matrix whose pointers take less time than a few calls of torch."""


def searches_rows(pattern: Pattern, count: int) -> bool:
    """Whether so many rows of a COO matrix are found by searching, and not by pointers to rows."""
    if max(pattern.nse, pattern.matrix[0]) <= _SMALL or count * _SEARCHED >= pattern.nse:
        return False
    return all(pattern.derived(key) is None for key in (kept.POINTERS, kept.ROWS))


def _of_coo_lines(
    pattern: Pattern, subscript: Subscript, target: Target
) -> tuple[Pattern, Entries] | None:
    """The part of a COO matrix by a list of rows or of columns, taken of its lines as of CSR.

    None for what takes less time by coordinates, and where the operand or the result is no matrix.
    """
    points = sparse_part(subscript.group, pattern.sparse_dim)
    real = is_real(pattern.indices[0]) and target.dense_dim == pattern.dense_dim
    if len(points) != 1 or not real or not has_lines(pattern):
        return None
    if len(target.out) > 2 or not _keeps_matrix(pattern, subscript, target):
        return None
    searched = 0 in points and searches_rows(pattern, points[0].shape[0])
    if searched or (1 in points and _is_long(pattern, 1)):
        return None
    lines = lines_of(pattern)
    assert lines is not None
    shape, indices = tuple(pattern.shape), (lines.ptr, lines.idx)
    by_rows = Pattern(torch.sparse_csr, shape, indices, dense_dim=pattern.dense_dim)
    found, entry = _of_compressed(by_rows, subscript, target, True)
    return of_lines(pattern, target.shape, *found.indices), entry


def _is_long(pattern: Pattern, dim: int) -> bool:
    """Whether an array with one number for each index along a dimension would cost more."""
    return pattern.shape[dim] > 4 * (pattern.nse + 2**16)


def _whole(found: Found) -> tuple[Pattern, torch.Tensor | None]:
    """The parts of what a conversion found; its entries are never `Ranges`."""
    assert not isinstance(found.entry, Ranges)
    return found.pattern, found.entry


def _keeps_matrix(pattern: Pattern, subscript: Subscript, target: Target) -> bool:
    """True where the last two sparse dimensions of the result are rows and columns of A."""
    group, split = subscript.group, len(pattern.batch) + 2
    if len(target.out) < 2:
        return False
    if group is not None and 0 < len(sparse_part(group, split)) < len(group.dims):
        return False  # each point has values of its own, which COO can hold

    def is_dim(item: int, dim: int) -> bool:
        alone = group is not None and group.dims == (dim,) and len(group.shape) == 1
        return item == dim or (item == GROUP and alone)

    return is_dim(target.out[-2], split - 2) and is_dim(target.out[-1], split - 1)


def _in_blocks(
    pattern: Pattern, subscript: Subscript, target: Target
) -> tuple[Pattern, Subscript, Target] | None:
    """The same task for the matrix of the blocks; None unless whole blocks are taken in order."""
    assert pattern.blocksize is not None
    taken, shape = list(subscript.taken), list(target.shape)
    own = list(pattern.shape[: len(pattern.batch) + 2])
    behind = target.dense_dim
    for dim, size in zip((-2, -1), pattern.blocksize, strict=True):
        at = len(own) + dim
        take = taken[at]
        if not isinstance(take, Slice) or (take.step != 1 and take.count > 1):
            return None
        if take.start % size or take.count % size:
            return None
        taken[at] = Slice(take.start // size, 1, take.count // size)
        own[dim] //= size
        shape[len(shape) - behind + dim] //= size
    layout = torch.sparse_csr if pattern.compressed_by_rows else torch.sparse_csc
    blocks = Pattern(layout, tuple(own), pattern.indices)
    shape = shape[: len(shape) - behind]
    return blocks, subscript._replace(taken=tuple(taken)), Target(target.out, tuple(shape), 0)


def _of_compressed(
    pattern: Pattern, subscript: Subscript, target: Target, keeps: bool
) -> tuple[Pattern, Entries]:
    """The part of a CSR or CSC pattern, in that layout if `keeps`, and in COO otherwise."""
    batch = len(pattern.batch)
    line, idx_dim = (batch, batch + 1) if pattern.compressed_by_rows else (batch + 1, batch)
    points = sparse_part(subscript.group, batch + 2)
    alone = len(points) == 1 and len(_group(subscript).shape) == 1
    long = _is_long(pattern, idx_dim)
    mixed = bool(points) and len(points) < len(_group(subscript).dims)
    if mixed or (idx_dim in points and (long or not alone)):
        coo, first = _whole(coordinates(pattern))
        found, own = of_coordinates(coo, subscript, target)
        entry = composed(first, as_index(own, coo.indices[0]))
        like = (pattern.layout, None) if keeps else (torch.sparse_coo, None)
        return _whole(in_layout(found, entry, like))
    dims = [*range(batch), line]
    lines = _whole_lines(pattern, subscript, target, dims)
    take = subscript.taken[idx_dim]
    if take is None:
        lines = _columns(lines, points[idx_dim], pattern.shape[idx_dim])
    elif not is_whole(take, pattern.shape[idx_dim]):
        lines = _sliced_lines(lines, take)
    if not keeps:
        return _as_coordinates(lines, subscript, target, dims, idx_dim)
    indices = lines.ptr.contiguous(), _owned(lines.idx, pattern.indices[1])
    found = Pattern(pattern.layout, target.shape, indices, dense_dim=target.dense_dim)
    return found, lines.entry


def _group(subscript: Subscript) -> Group:
    assert subscript.group is not None
    return subscript.group


def _owned(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A copy of a part of a tensor, so that the part does not keep the whole tensor in memory."""
    if in_torch_func():  # whose tensors have no memory that could be read
        return part
    if part is whole:
        return part
    # a trace does not know what memory a tensor will have
    view = not is_real(part) or part.untyped_storage().data_ptr() == (
        whole.untyped_storage().data_ptr()
    )
    return part.clone() if view else part


def _whole_lines(
    pattern: Pattern, subscript: Subscript, target: Target, dims: Sequence[int]
) -> TakenLines:
    """The lines that the other dimensions than `idx_dim` take, in the order of the result."""
    ptr, idx = pattern.indices
    run = _as_run(pattern, subscript, dims)
    if run is not None:
        if run.count == ptr.shape[0] - 1:
            return TakenLines(ptr, idx, None)
        return run_of_lines(ptr, idx, run)
    lines = _line_numbers(pattern, subscript, target, dims)
    if not is_real(ptr):
        wide, entries = (t.to(torch.int64) for t in (ptr, idx)), positions(idx, idx.shape[0])
        made, own, entry = kernels.list_lines(*wide, entries, lines.contiguous())
        dtype = index_dtype(ptr.dtype, (own.shape[0],))
        return TakenLines(as_dtype(made, dtype), as_dtype(own, dtype), entry)
    begin, end = ptr.index_select(0, lines), ptr[1:].index_select(0, lines)
    count = int((end - begin).sum())
    dtype = ptr.dtype if count <= _INT32 else torch.int64
    idx, begin, end = (as_dtype(t, dtype) for t in (idx, begin, end))
    ptr, idx = kernels.join_ranges(idx, begin, end, idx.new_zeros(1), count, False)
    return TakenLines(ptr, idx, Ranges(ptr, begin, end, count, False))


def run_of_lines(ptr: torch.Tensor, idx: torch.Tensor, run: Run) -> TakenLines:
    """Lines one after the other; the result may share the memory of `idx`."""
    ptr = ptr[run.start : run.start + run.count + 1]
    if not is_real(ptr):  # a trace has a size for the result, and no numbers
        at = positions(idx, idx.shape[0])
        entry = ((at >= ptr[0]) & (at < ptr[-1])).nonzero().squeeze(1)
        return TakenLines(ptr - ptr[0], idx.index_select(0, entry), entry)
    ends = ptr[:: max(run.count, 1)].tolist()  # read once
    first, count = ends[0], ends[-1] - ends[0]
    return TakenLines(ptr - first, idx[first : first + count], Run(first, count))


def _as_run(pattern: Pattern, subscript: Subscript, dims: Sequence[int]) -> Run | None:
    """Lines one after the other: of ints, then a slice in steps of 1, then all; or None."""
    group = subscript.group
    if group is not None and not (group.dims and set(group.dims).isdisjoint(dims)):
        return None
    start, count, sliced = 0, 1, False
    for d in dims:
        take, size = subscript.taken[d], pattern.shape[d]
        start *= size
        if isinstance(take, INT):
            if sliced:
                return None
            start += take
        elif take is None or (sliced and not is_whole(take, size)) or take.step != 1:
            return None
        else:
            start, count, sliced = start + take.start, count * take.count, True
    return Run(start, count)


def _line_dims(subscript: Subscript, target: Target, dims: Sequence[int]) -> list[int]:
    """The dimensions of the result that come from lines."""
    points = subscript.group is not None and subscript.group.dims
    grouped = not points or not set(_group(subscript).dims).isdisjoint(dims)
    return [item for item in target.out if item in dims or (item == GROUP and grouped)]


def _line_numbers(
    pattern: Pattern, subscript: Subscript, target: Target, dims: Sequence[int]
) -> torch.Tensor:
    """Numbers of the lines, in row-major order of the result's dimensions that come from them."""
    if len(dims) == 1 and subscript.taken[dims[0]] is None:
        return sparse_part(subscript.group, len(pattern.shape))[dims[0]].reshape(-1)
    items = _line_dims(subscript, target, dims)
    below = {d: math.prod(pattern.shape[e] for e in dims[i + 1 :]) for i, d in enumerate(dims)}
    ptr = pattern.indices[0]
    total = ptr.new_zeros([1] * len(items), dtype=torch.int64)
    for d in dims:
        take = subscript.taken[d]
        if isinstance(take, INT):
            total = total + take * below[d]
            continue
        if isinstance(take, Slice):
            own, at = positions(ptr, take.count) * take.step + take.start, items.index(d)
        else:
            own, at = sparse_part(subscript.group, len(pattern.shape))[d], items.index(GROUP)
        total = total + (own * below[d]).view([-1 if i == at else 1 for i in range(len(items))])
    # True takes everything once, False not at all
    if GROUP in items and not _group(subscript).dims:
        at = items.index(GROUP)
        total = total.narrow(at, 0, _group(subscript).points)
    return total.reshape(-1)


def _sliced_lines(lines: TakenLines, take: Slice | int) -> TakenLines:
    """What a slice, or an int, takes of each line."""
    part = Slice(take, 1, 1) if isinstance(take, INT) else take
    ptr, idx, source = kernels.select_range(lines.ptr, lines.idx, *part)
    return _with_old_entries(lines.entry, ptr, idx, source)


def _columns(lines: TakenLines, points: torch.Tensor, size: int) -> TakenLines:
    """What an index tensor takes of each line."""
    count, nse = points.shape[0], lines.idx.shape[0]
    dtype = lines.ptr.dtype
    if dtype == torch.int32 and count * nse > _INT32:
        often = int(points.bincount().max())
        dtype = torch.int64 if max(often * nse, count) > _INT32 else dtype
    inv_ptr, inv_idx = counting_sort(points.to(dtype), size)
    ptr, idx = as_dtype(lines.ptr, dtype), as_dtype(lines.idx, dtype)
    return _with_old_entries(lines.entry, *kernels.select_columns(ptr, idx, inv_ptr, inv_idx))


def _with_old_entries(
    first: Entries, ptr: torch.Tensor, idx: torch.Tensor, source: torch.Tensor
) -> TakenLines:
    """Lines made of others, whose entries are `first`."""
    if isinstance(first, Run):
        return TakenLines(ptr, idx, source + first.start)
    return TakenLines(ptr, idx, composed(as_index(first, source), source))


def _as_coordinates(
    lines: TakenLines, subscript: Subscript, target: Target, dims: Sequence[int], idx_dim: int
) -> tuple[Pattern, Entries]:
    """Lines as COO, in the order of the result's dimensions."""
    ptr, idx, entry = lines
    items = _line_dims(subscript, target, dims)
    shapes = {item: sizes_of(subscript, item) for item in (*target.out, *items)}
    whole = tuple(size for item in items for size in shapes[item])
    rows: dict[int, list[torch.Tensor]] = {}
    if any(size != 1 for size in whole):
        numbers = iter(unraveled(kernels.expand(ptr.contiguous(), idx.shape[0]), whole))
        rows = {item: [next(numbers) for _ in shapes[item]] for item in items}
    none = idx.new_zeros(idx.shape[0])
    found: list[torch.Tensor] = []
    order = [item for item in target.out if item != NEW]
    for item in target.out:
        if item == NEW or item in items:
            found += rows.get(item) or [none] * len(shapes[item])
        else:  # the dimension of the indices
            found.append(idx)
    dtype = index_dtype(idx.dtype, target.shape)
    indices = torch.stack([r.to(dtype) for r in found])
    if any(item not in items for item in order[:-1]):
        sizes = target.shape[: indices.shape[0]]
        by = lexicographic(indices, sizes)
        indices = indices.index_select(1, by)
        entry = composed(as_index(entry, idx), by)
    return Pattern(torch.sparse_coo, target.shape, (indices,), dense_dim=target.dense_dim), entry


def sizes_of(subscript: Subscript, item: int) -> tuple[int, ...]:
    """Sizes of what a dimension of the result becomes."""
    if item == NEW:
        return (1,)
    if item == GROUP:
        return _group(subscript).shape
    take = subscript.taken[item]
    assert isinstance(take, Slice)
    return (take.count,)


def located(pattern: Pattern, subscript: Subscript, target: Target) -> torch.Tensor:
    """The element at each point of a subscript that takes all sparse dimensions, -1 for none.

    O(points log nse); the first time for points of COO also O(nse).
    """
    group, split = subscript.group, len(pattern.shape) - pattern.dense_dim
    sizes = tuple(pattern.shape[:split])
    like = pattern.indices[0]
    if pattern.is_coo and GROUP not in target.out and is_real(like):
        first, end, _ = window(like, subscript.taken[:split], sizes)
        return like.new_full((1,), first if first < end else -1, dtype=torch.int64)
    points = sparse_part(group, split)
    count = group.points if group is not None and GROUP in target.out else 1
    at = [
        torch.full((count,), take, device=like.device) if isinstance(take, INT) else points[d]
        for d, take in enumerate(subscript.taken[:split])
    ]
    return entries_at(pattern, at)
