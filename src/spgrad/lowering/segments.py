"""Reductions over groups of the elements of a pattern, and their derivatives.

The elements that are reduced to one element of the result are a segment. Segments are kept on the
pattern. Those of the rows and of the columns are its views, so they need no further work.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_legacy_batchedtensor

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern, View, index_dtype
from spgrad.core.values import plain
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.sorting import counting_sort
from spgrad.lowering.views import (
    cols,
    index_rows,
    linear_index,
    positions_among,
    rows,
    transposed_view,
    unraveled,
)
from spgrad.torch_protocol.func_transforms import Function


class Scattered(NamedTuple):
    """The numbers that are needed to add each value to its segment in storage order."""

    index: torch.Tensor  # (elements,) the segment of each element
    count: int  # segments


class Segments:
    """The elements of a pattern, grouped by the element of the result into which they are reduced.

    Segment i holds the elements ``ptr[i] <= p < ptr[i + 1]`` with values ``vals[perm[p]]``, or
    ``vals[p]`` where `perm` is None, in ascending order of their reduced dimensions.

    Args:
        ptr: Pointers (segments + 1,); None: each element is a segment of its own.
        perm: The position of the value of each element (elements,).
        elements: Specified elements of the pattern.
        size: Places that a segment has, specified or not.
        unique: Indices (kept dimensions, segments) if the result is sparse.
        scattered: Given if sums need neither pointers nor positions.
        find: Computes `ptr` and `perm` when code first asks for them.

    Attributes:
        each_its_own: Whether each element is a segment of its own.
    """

    def __init__(
        self,
        ptr: torch.Tensor | None,
        perm: torch.Tensor | None,
        elements: int,
        size: int,
        unique: torch.Tensor | None = None,
        *,
        scattered: Scattered | None = None,
        find: Callable[[], View] | None = None,
    ) -> None:
        self.each_its_own = ptr is None and find is None
        self._find, self._known = find, None if find is not None else (ptr, perm)
        self.elements, self.size, self.unique, self.scattered = elements, size, unique, scattered

    @property
    def ptr(self) -> torch.Tensor | None:
        """Pointers (segments + 1,), found on the first call; None: `each_its_own`."""
        return self._found()[0]

    @property
    def perm(self) -> torch.Tensor | None:
        """The position of the value of each element (elements,); None: in order."""
        return self._found()[1]

    def _found(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        known = self._known  # one assignment, as another thread may read it at any time
        if known is None:
            assert self._find is not None
            view = self._find()
            known = self._known = view.ptr, view.perm
        return known

    def counts(self) -> torch.Tensor:
        """Specified elements of each segment (segments, 1)."""
        assert self.ptr is not None
        return self.ptr.diff().to(torch.int64)[:, None]

    def missing(self) -> torch.Tensor | None:
        """Unspecified elements of each segment (segments, 1); None if no segment has any."""
        return None if self.each_its_own else self.size - self.counts()


def segments_of(pattern: Pattern, dims: tuple[int, ...], compact: bool = False) -> Segments:
    """The segments of a reduction over the sparse dimensions `dims`; O(nse + segments), then kept.

    There is one segment for each element of the result, or if both matrix dimensions stay (or with
    `compact`), only for those that have a specified element.
    """
    return pattern.derive(kept.SEGMENTS.of(dims, compact), lambda p: _segments(p, dims, compact))


def index_along(pattern: Pattern, dim: int, segments: Segments) -> torch.Tensor:
    """The index along `dim` of each element, segment by segment (elements,), int32 or int64.

    The segments are those of a reduction over this one sparse dimension.
    """
    split = len(pattern.shape) - pattern.dense_dim
    if split >= 2 and dim >= split - 2:
        idx = (rows if dim == split - 1 else cols)(pattern).idx
        return idx % max(pattern.shape[dim], 1) if pattern.batch else idx
    found, perm = positions_among(pattern, (dim,)), segments.perm
    return found if perm is None else found[perm]


def _segments(pattern: Pattern, dims: tuple[int, ...], compact: bool) -> Segments:
    sizes = pattern.shape[: len(pattern.shape) - pattern.dense_dim]
    kept = [d for d in range(len(sizes)) if d not in dims]
    size = math.prod(sizes[d] for d in dims)
    if not kept:
        return Segments(_one_segment(pattern), None, pattern.elements, size)
    if not dims:
        return Segments(None, None, pattern.elements, 1)
    row, col = len(sizes) - 2, len(sizes) - 1
    if compact or (row in kept and col in kept):
        return _unique_segments(pattern, kept, size)
    if dims in ((col,), (row,)):
        view_of, other_of = (rows, cols) if dims == (col,) else (cols, rows)
        # only the view in storage order is used; another view would need a pointer for each line
        stored = rows if pattern.is_coo or pattern.compressed_by_rows else cols
        other = other_of(pattern) if other_of is stored else None
        if other is not None and other.perm is None and not torch.compiler.is_compiling():
            return _to_be_scattered(pattern, view_of, other, size)
        view = view_of(pattern)
        return Segments(view.ptr, view.perm, pattern.elements, size)
    if dims == (row, col):
        view, lines = rows(pattern), pattern.matrix[0]
        items = math.prod(pattern.batch)
        ptr = view.ptr[::lines].contiguous() if lines else view.ptr.new_zeros(items + 1)
        return Segments(ptr, view.perm, pattern.elements, size)
    coordinates, perm = _coordinates_and_perm(pattern)
    segment = linear_index([coordinates[d] for d in kept], tuple(sizes[d] for d in kept))
    assert segment is not None
    ptr, perm = _by_segment(segment, math.prod(sizes[d] for d in kept), perm)
    return Segments(ptr, perm, pattern.elements, size)


def _one_segment(pattern: Pattern) -> torch.Tensor:
    """Pointers (2,) of all elements together; no number is copied from the host to a device."""
    elements, device = pattern.elements, pattern.device
    if type(elements) is int and elements > 0:
        return torch.arange(0, elements + 1, elements, device=device)
    return torch.arange(2, device=device) * elements


def _to_be_scattered(
    pattern: Pattern, view_of: Callable[[Pattern], View], other: View, size: int
) -> Segments:
    """The lines of the view that is not in storage order, computed only when a sum reads them."""
    old = weakref.ref(pattern)  # the pattern keeps the segments, so they must not keep the pattern

    def find() -> View:
        pattern = old()
        return transposed_view(other) if pattern is None else view_of(pattern)

    scattered = Scattered(other.idx, other.num_cols)
    return Segments(None, None, other.idx.numel(), size, scattered=scattered, find=find)


LONGEST = 4096
"""The most elements that are summed one by one in their own dtype: rounding errors add up."""


def _unique_segments(pattern: Pattern, kept: list[int], size: int) -> Segments:
    coordinates, perm = _coordinates_and_perm(pattern)
    sizes = [pattern.shape[d] for d in kept]
    unique, segment = kernels.coalesce(index_rows(coordinates, kept), sizes)
    ptr, perm = _by_segment(segment, unique.shape[1], perm)
    return Segments(ptr, perm, pattern.elements, size, unique.to(pattern.indices[0].dtype))


def _coordinates_and_perm(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Coordinates (sparse dimensions, elements) in lexicographic order, and positions of values.

    Repeated COO elements come in any order; sums do not depend on it.
    """
    if pattern.is_coo:
        return pattern.indices[0].to(torch.int64), None
    view = rows(pattern)
    m, k = pattern.matrix
    row = kernels.expand(view.ptr, view.idx.numel()).to(torch.int64)
    item = torch.div(row, max(m, 1), rounding_mode="floor")
    batch = unraveled(item, pattern.batch)
    return torch.stack([*batch, row - item * m, view.idx - item * k]), view.perm


def _by_segment(
    segment: torch.Tensor, count: int, perm: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pointers and positions of the elements by segment."""
    segment = segment.to(index_dtype(torch.int32, (count, segment.numel())))
    ptr, order = counting_sort(segment, count)
    return ptr, order if perm is None else perm[order].to(order.dtype)


def segment_sum(vals: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Sum (segments, d) of each segment's values (elements, d); the adjoint of `segment_expand`.

    Both also accept vectors: (elements,) becomes (segments,), and the reverse.
    """
    if segments.each_its_own:
        return vals
    if wants_grad(vals):
        return _SegmentSum.apply(vals, segments)  # type: ignore[return-value]
    column = vals.dim() == 2
    if segments.scattered is None or (column and vals.shape[1] != 1):
        return _reduced(vals, segments, "sum")
    index, count = segments.scattered
    flat = plain(vals).view(-1) if column else plain(vals)
    found = kernels.scatter_sum(index, flat, count, segments.elements > LONGEST)
    if not column:
        return found
    if not torch.compiler.is_compiling() and is_legacy_batchedtensor(found):
        return found.unsqueeze(1)  # several cotangents at once; unsqueeze_ would do nothing
    return found.unsqueeze_(1)  # a view could not be changed in place


def segment_expand(y: torch.Tensor, segments: Segments) -> torch.Tensor:
    """For every element, the row of y (segments, d) of its segment: (elements, d)."""
    if segments.each_its_own:
        return y
    if wants_grad(y):
        return _SegmentExpand.apply(y, segments)  # type: ignore[return-value]
    if segments.scattered is not None:
        return y.index_select(0, segments.scattered.index)
    assert segments.ptr is not None
    ends = segments.ptr.shape[0]
    if isinstance(ends, int) and ends == 2:  # a trace may not know the number
        return y.expand(segments.elements, *y.shape[1:])
    return kernels.segment_expand(segments.ptr, segments.perm, segments.elements, plain(y))


def one_segment(pattern: Pattern) -> Segments:
    """One segment with all elements."""
    return segments_of(pattern, tuple(range(len(pattern.shape) - pattern.dense_dim)))


def for_each(x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The numbers x, 0-d or of the dense dimensions, repeated for each stored element.

    In the derivative, the kernel of sums adds up the gradients of all elements; torch would add
    them in an order that depends on the number of threads.
    """
    shape = (*pattern.values_shape[: 1 if pattern.blocksize is None else 3], *x.shape)
    return segment_expand(x.reshape(1, -1), one_segment(pattern)).view(shape)


def segment_product(vals: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Product (segments, d) of the values (elements, d) of each segment; 1 for an empty segment."""
    if segments.each_its_own:
        return vals
    if wants_grad(vals):
        return _SegmentProduct.apply(vals, segments)  # type: ignore[return-value]
    return _reduced(vals, segments, "prod")


def segment_extremum(
    vals: torch.Tensor, segments: Segments, missing: torch.Tensor | None, largest: bool
) -> torch.Tensor:
    """Largest (smallest) value (segments, d) of (elements, r, d) in each segment; 0 if it is empty.

    A segment also counts its `missing` elements, which are zeros. Gradient: all elements that
    attain the extremum get equal shares, these zeros included.
    """
    if wants_grad(vals):
        return _SegmentExtremum.apply(vals, segments, missing, largest)  # type: ignore[return-value]
    return _segment_extremum(vals, segments, missing, largest)


def _segment_extremum(
    vals: torch.Tensor, segments: Segments, missing: torch.Tensor | None, largest: bool
) -> torch.Tensor:
    inner = torch.amax if largest else torch.amin
    y = vals.squeeze(1) if vals.shape[1] == 1 else inner(vals, 1)
    if not segments.each_its_own:
        y = _reduced(y, segments, "amax" if largest else "amin")
    if missing is None:
        return y
    return torch.where(missing > 0, y.clamp(min=0) if largest else y.clamp(max=0), y)


def _reduced(vals: torch.Tensor, segments: Segments, reduce: str) -> torch.Tensor:
    assert segments.ptr is not None
    return kernels.segment_reduce(segments.ptr, segments.perm, plain(vals), reduce)


class _SegmentSum(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, segments: Segments) -> torch.Tensor:  # type: ignore[override]
        ctx.segments = segments
        return segment_sum(vals, segments)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return segment_expand(g, ctx.segments), None


class _SegmentExpand(Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, segments: Segments) -> torch.Tensor:  # type: ignore[override]
        ctx.segments = segments
        # no view of y: torch reports a view that is changed in place later
        return segment_expand(y, segments).detach()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return segment_sum(g, ctx.segments), None


class _SegmentProduct(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, segments: Segments) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(vals)
        ctx.segments = segments
        return segment_product(vals, segments)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (vals,) = ctx.saved_tensors
        segments = ctx.segments
        zero = vals == 0
        nonzero = torch.where(zero, 1, vals)
        number = segment_sum(zero.to(torch.int32), segments)
        # how many of the other factors are zero
        others = segment_expand(number, segments) - zero.to(torch.int32)
        factor = (others == 0).to(vals.dtype)
        if torch.is_grad_enabled():  # one other zero makes the factor 0, but not its derivative
            zeros = torch.where(zero, vals, 0)
            other_zero = segment_expand(segment_sum(zeros, segments), segments) - zeros
            factor = factor + (others == 1) * other_zero
        g = g * segment_product(nonzero, segments).conj()
        # no reciprocal, which is infinite for the smallest numbers
        return segment_expand(g, segments) / nonzero.conj() * factor.conj(), None


class _SegmentExtremum(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        vals: torch.Tensor,
        segments: Segments,
        missing: torch.Tensor | None,
        largest: bool,
    ) -> torch.Tensor:
        y = _segment_extremum(vals, segments, missing, largest)
        ctx.save_for_backward(vals, y)
        ctx.segments, ctx.missing = segments, missing
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, y = ctx.saved_tensors
        attained = vals == segment_expand(y.detach(), ctx.segments)[:, None]  # (elements, r, d)
        wide = torch.promote_types(g.dtype, torch.float32)  # bfloat16 cannot count beyond 256
        times = segment_sum(attained.sum(1, dtype=wide), ctx.segments)
        if ctx.missing is not None:
            times = times + ctx.missing * vals.shape[1] * (y == 0)
        # no division by 0 in an empty segment; a NaN equals nothing, and gets the gradient NaN
        times = torch.where(y.isnan(), times, times.clamp(min=1))
        share = segment_expand((g / times).to(g.dtype), ctx.segments)[:, None]
        return attained * share, None, None, None
