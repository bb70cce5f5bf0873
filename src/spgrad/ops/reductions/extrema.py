"""The largest and smallest elements together with their places."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.values import plain
from spgrad.lowering.segments import Segments, index_along
from spgrad.lowering.sorting import many
from spgrad.lowering.views import kept_linear_positions, one_line, rows
from spgrad.ops.elementwise.binary import maximum, minimum
from spgrad.ops.reductions.axes import (
    Reduction,
    one_dim,
    reduction,
    require_dtype,
    require_elements,
)
from spgrad.ops.reductions.reduce import amax, amin
from spgrad.public import public_op
from spgrad.torch_protocol.compile import is_real


class _SegmentIndices(NamedTuple):
    """Segments, and where their elements stand along what is reduced."""

    segments: Segments
    along: torch.Tensor  # (elements,) index in the order of the segments, distinct and ascending
    gap: torch.Tensor  # (segments, 1) the first index that is not specified, if there is one


@public_op
def max(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, specified: bool = False
) -> Any:
    """Largest element, and its index along a dimension.

    Args:
        input: Sparse tensor of any layout and a real dtype.
        dim: The dimension that is reduced; None for the largest element of all. If it is a tensor,
            the call is `spgrad.maximum` of the two tensors.
        keepdim: Whether the reduced dimension stays, with size 1.
        specified: Whether to look at the specified elements alone, instead of counting unspecified
            ones as zeros. Where there are none, the value is 0 and the index -1.

    Returns:
        Without `dim`, what `spgrad.amax` gives. Otherwise the pair (values, indices), each dense
        or sparse as the result of `spgrad.sum`. Of equal elements the first counts, an unspecified
        zero too; NaN counts as the largest.

    Gradient:
        g at the element that the index names, if it is specified.

    Cost:
        O(nse + size of the result).

    Raises:
        TypeError: `input` is not sparse, or `dim` is not an int.
        ValueError: `dim` is outside the tensor or has size 0, or the dtype is complex.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0, 3.0], [-1.0, 0.0, 0.0]]))
        >>> spgrad.max(A, 1).indices, A.max(1, specified=True).indices
        (tensor([2, 1]), tensor([2, 0]))
    """
    return _value_and_index(input, dim, keepdim, specified, largest=True)


@public_op
def min(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, specified: bool = False
) -> Any:
    """Smallest element, and its index along a dimension: `spgrad.max` with the other order."""
    return _value_and_index(input, dim, keepdim, specified, largest=False)


@public_op
def argmax(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, specified: bool = False
) -> torch.Tensor:
    """Index of the largest element: the second result of `spgrad.max` with the same arguments.

    Without `dim`, the position in the whole tensor, counted in row-major order.
    """
    return _arg(input, dim, keepdim, specified, largest=True)


@public_op
def argmin(
    input: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, specified: bool = False
) -> torch.Tensor:
    """Index of the smallest element: the second result of `spgrad.min` with the same arguments.

    Without `dim`, the position in the whole tensor, counted in row-major order.
    """
    return _arg(input, dim, keepdim, specified, largest=False)


def _value_and_index(
    input: torch.Tensor, dim: Any, keepdim: bool, specified: bool, *, largest: bool
) -> Any:
    # in torch, max and min of two tensors are maximum and minimum
    if isinstance(dim, torch.Tensor):
        return maximum(input, dim) if largest else minimum(input, dim)
    if dim is None:
        whole = amax if largest else amin
        return whole(input, None, keepdim, specified=specified)
    y, index = _along_dim(_reduction_over(input, dim, keepdim), largest, specified)
    pair: Any = torch.return_types.max if largest else torch.return_types.min
    return pair((y, index))


def _arg(
    input: torch.Tensor, dim: int | None, keepdim: bool, specified: bool, *, largest: bool
) -> torch.Tensor:
    call = _reduction_over(input, dim, keepdim)
    require_dtype(call.stored.dtype, accepted="real integer")
    if dim is None:
        return _in_whole(call, largest, specified)
    return _along_dim(call, largest, specified)[1]


def _reduction_over(input: torch.Tensor, dim: int | None, keepdim: bool) -> Reduction:
    call = reduction(input, dim if dim is None else one_dim(dim), keepdim)
    require_elements(call)
    require_dtype(call.stored.dtype, accepted="real integer bool")
    return call


def _along_dim(
    call: Reduction, largest: bool, specified: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Extrema and their indices over one dimension."""
    vals = call.vals.to(torch.uint8) if call.stored.dtype == torch.bool else call.vals
    if call.segments.each_its_own or not call.dims:
        y, index = torch.max(vals, 1) if largest else torch.min(vals, 1)
        if not call.segments.each_its_own and not y.shape[0]:  # no sparse dimension, nor an element
            y = y.sum(0, keepdim=True).to(vals.dtype)
            index = torch.full_like(y, -1 if specified else 0, dtype=torch.int64)
    else:
        key = kept.PLACES.of(call.dims)
        places = call.A._pattern.derive(key, lambda p: _segment_indices(p, call))
        y, index = _extremum_and_index(vals.squeeze(1), places, largest, specified)
    return call.result(y.to(call.stored.dtype)), call.result(index)


def _in_whole(call: Reduction, largest: bool, specified: bool) -> torch.Tensor:
    """Index of the extremum in the flattened tensor."""
    pattern = call.A._pattern
    vals = call.vals.detach().squeeze(2)  # (elements, reduced)
    linear = kept_linear_positions(pattern)
    order = _row_major_order(pattern, linear)
    if order is not None:
        vals, linear = vals[order], linear[order]
    each = vals.shape[1]
    inner = torch.arange(each, device=linear.device)
    along = (linear[:, None] * each + inner).view(-1)
    segments = Segments(one_line(along), None, along.numel(), call.size)
    index = _extremum_and_index(
        vals.reshape(-1, 1), _with_gap(segments, along), largest, specified
    )[1]
    return call.result(index)


def _row_major_order(pattern: Pattern, linear: torch.Tensor) -> torch.Tensor | None:
    """The order of the elements, without repeats, by their positions; None if they have it."""
    if pattern.is_coo or (pattern.compressed_by_rows and pattern.blocksize is None):
        return None
    if is_real(linear) and many(pattern.extent[0], pattern):
        return linear.argsort()
    return rows(pattern).perm


def _segment_indices(pattern: Pattern, call: Reduction) -> _SegmentIndices:
    (dim,) = call.dims
    return _with_gap(call.segments, index_along(pattern, dim, call.segments))


def _with_gap(segments: Segments, along: torch.Tensor) -> _SegmentIndices:
    """Finds the first index without an element: before it, index and position are equal."""
    assert segments.ptr is not None
    ptr = segments.ptr.to(along.dtype)
    # how far each index is ahead of its position among all elements: ascending in each segment
    ahead = along - torch.arange(along.shape[0], dtype=along.dtype, device=along.device)
    end = kernels.cut_lines(ptr, ahead, 1 - ptr[:-1].to(torch.int64))
    return _SegmentIndices(segments, along, (end - ptr[:-1]).to(torch.int64)[:, None])


def _extremum_and_index(
    vals: torch.Tensor, places: _SegmentIndices, largest: bool, specified: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The extremum of each segment, (segments, d) as the values (elements, d), and its index."""
    segments, along, perm = places.segments, places.along, places.segments.perm
    assert segments.ptr is not None
    first = kernels.segment_arg(segments.ptr, perm, plain(vals), largest)
    if vals.shape[0] == 0:  # nothing to gather from
        vals, along, perm = F.pad(vals, (0, 0, 0, 1)), F.pad(along, (0, 1)), None
    empty = first < 0
    first = first.clamp(min=0)
    at = first if perm is None else perm[first].to(torch.int64)
    y = torch.where(empty, 0, vals.gather(0, at))
    index = torch.where(empty, -1, along[first].to(torch.int64))
    missing = None if specified else segments.missing()
    if missing is None:
        return y, index
    beyond = y < 0 if largest else y > 0
    zero = (missing > 0) & (empty | beyond | ((y == 0) & (places.gap < index)))
    return torch.where(zero, 0, y), torch.where(zero, places.gap, index)
