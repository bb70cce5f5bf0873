"""Elements stored several times: repeat, tile, repeat_interleave, and explicit broadcasting."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.lowering.operands import (
    require_dim,
    require_int,
    require_ints,
    shape_as,
    sparse_operand,
)
from spgrad.lowering.ranges import LineRanges, Lines, joined, lines_of
from spgrad.lowering.rebuild import (
    Found,
    InRanges,
    Placed,
    copied,
    placed,
    positions,
    rebuild,
    sparse_dims,
)
from spgrad.lowering.views import unraveled
from spgrad.ops.shapes.shape import flatten, reshaped
from spgrad.public import public_op


@public_op
def expand(input: torch.Tensor, size: Any, *more: int) -> SparseTensor:
    """`input` with dimensions of size 1 repeated, and new ones in front.

    Args:
        input: Sparse tensor of any layout.
        size: A tuple of sizes, or the sizes one after the other; -1 keeps a size.
        *more: The other sizes.

    Returns:
        SparseTensor in the layout of `input` if that fits, else COO. It has elements of its own:
        repeated elements are stored several times.

    Gradient:
        The cotangent summed over what was repeated, on the pattern of `input`.

    Cost:
        O(nse of the result); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or a size is not an int.
        ValueError: A size other than 1 would change.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0]]))
        >>> spgrad.expand(A, 2, -1).to_dense()
        tensor([[0., 1.],
                [0., 1.]])
    """
    return _broadcast(input, require_ints("size", size, more))


@public_op
def broadcast_to(input: torch.Tensor, size: Any) -> SparseTensor:
    """Repeats dimensions of size 1 up to a shape: `spgrad.expand` with the name of torch."""
    return _broadcast(input, require_ints("size", size))


@public_op
def expand_as(input: torch.Tensor, other: torch.Tensor) -> SparseTensor:
    """`spgrad.expand` with the shape of `other`, sparse or dense."""
    return _broadcast(input, shape_as(other))


@public_op
def repeat(input: torch.Tensor, repeats: Any, *more: int) -> SparseTensor:
    """`input` side by side with itself, as often as `repeats` says for each dimension.

    Args:
        input: Sparse tensor of any layout.
        repeats: A tuple of numbers, or the numbers one after the other; more of them than
            dimensions give new dimensions in front.
        *more: The other numbers.

    Returns:
        SparseTensor in the layout of `input`; COO if it has fewer than two sparse dimensions.

    Gradient:
        The sum of the cotangents of all copies, on the pattern of `input`.

    Cost:
        O(nse of the result); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or a number is not an int.
        ValueError: There are fewer numbers than dimensions, or a negative one.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0]]))
        >>> spgrad.repeat(A, 2, 2).to_dense()
        tensor([[0., 1., 0., 1.],
                [0., 1., 0., 1.]])
    """
    A = sparse_operand("input", input)
    return _repeated(A, "repeats", require_ints("repeats", repeats, more), copies=True)


@public_op
def tile(input: torch.Tensor, dims: Any, *more: int) -> SparseTensor:
    """`spgrad.repeat` with 1 for each leading dimension that `dims` has no number for."""
    A = sparse_operand("input", input)
    given = require_ints("dims", dims, more)
    given = (1,) * (len(A._pattern.shape) - len(given)) + given
    return _repeated(A, "dims", given, copies=True)


@public_op
def repeat_interleave(
    input: torch.Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> SparseTensor:
    """`input` with each of its slices along a dimension several times in a row.

    Args:
        input: Sparse tensor of any layout.
        repeats: How often each slice is repeated, an int, 0 or more.
        dim: The dimension; by default `input` is flattened first.
        output_size: Ignored: the size of the result is known.

    Returns:
        SparseTensor in the layout of `input`; COO if it was flattened.

    Gradient:
        The sum of the cotangents of all copies, on the pattern of `input`.

    Cost:
        O(nse of the result); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or `repeats` or `dim` is not an int.
        ValueError: `repeats` is negative, or `dim` out of range.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0]]))
        >>> spgrad.repeat_interleave(A, 2, 1).to_dense()
        tensor([[0., 0., 1., 1.]])
    """
    fn = "repeat_interleave"
    A = sparse_operand("input", input)
    times = require_int("repeats", repeats)
    if times < 0:
        accepted = "an int from 0"
        raise checks.bad_shape("repeats", (times,), accepted, "Give 0 to leave all out.")
    if dim is None:
        A, dim = flatten(A), 0
    shape = list(A._pattern.shape)
    at, split = require_dim("dim", dim, len(shape)), sparse_dims(A._pattern)
    shape[at] *= times
    checks.require_addressable(tuple(shape), None)
    return rebuild(
        A,
        (fn, times, at),
        lambda p: _interleaved_pattern(p, times, at),
        repeats=True,
        inner=lambda vals: vals.repeat_interleave(times, at - split + 1) if at >= split else vals,
    )


def _interleaved_pattern(pattern: Pattern, times: int, dim: int) -> Found:
    shape = tuple(size * times if d == dim else size for d, size in enumerate(pattern.shape))

    def by(indices: torch.Tensor) -> Placed:
        if dim >= indices.shape[0]:
            return Placed(indices, None, 0)
        nse = indices.shape[1]
        entry = positions(indices, nse).repeat_interleave(times)
        copy = positions(indices, times).repeat(nse).to(indices.dtype)
        found = indices.index_select(1, entry)
        found[dim] = found[dim] * times + copy
        return Placed(found, entry, 0 if dim == indices.shape[0] - 1 else dim + 1)

    return placed(pattern, shape, by)


def _broadcast(input: Any, size: tuple[int, ...]) -> SparseTensor:
    A = sparse_operand("input", input)
    shape = tuple(A._pattern.shape)
    lead = len(size) - len(shape)
    own = (1,) * lead + shape
    wanted = tuple(
        have if want == -1 and d >= lead else want
        for d, (have, want) in enumerate(zip(own, size, strict=False))
    )
    pairs = list(zip(own, wanted, strict=False))
    if lead < 0 or any(want < 0 or have not in (want, 1) for have, want in pairs):
        accepted = f"what {shape} broadcasts to"
        raise checks.bad_shape("size", size, accepted, "Sizes of 1 are repeated, others kept.")
    return _repeated(A, "size", tuple(w if h != w else 1 for h, w in pairs))


def _repeated(
    A: SparseTensor, arg: str, times: tuple[int, ...], *, copies: bool = False
) -> SparseTensor:
    shape = tuple(A._pattern.shape)
    lead = len(times) - len(shape)
    if lead < 0 or any(n < 0 for n in times):
        accepted = f"a number from 0 for each of the {len(shape)} dimension(s)"
        raise checks.bad_shape(arg, times, accepted, "Give 1 for a dimension to keep.")
    if lead:
        shape = (1,) * lead + shape
        A = reshaped(A, shape, lead + sparse_dims(A._pattern))
    if all(n == 1 for n in times):
        return copied(A) if copies else A
    repeated = tuple(s * n for s, n in zip(shape, times, strict=True))
    checks.require_addressable(repeated, None)
    split = sparse_dims(A._pattern)

    def build(pattern: Pattern) -> Found | InRanges:
        found = _repeated_pattern(pattern, times)
        found.pattern.as_uniform_as(pattern)
        return found

    return rebuild(
        A,
        ("repeat", times),
        build,
        repeats=True,
        inner=lambda vals: vals.repeat(1, *times[split:]),
    )


def _repeated_lines(
    lines: Lines, shape: tuple[int, ...], times: tuple[int, ...], count: int
) -> InRanges:
    over = [times[d] for d in lines.line_dims]
    side, size = times[lines.idx_dim], lines.pattern.shape[lines.idx_dim]
    begin, end = (t.repeat(over) for t in (lines.starts(), lines.ends()))
    if side != 1:
        begin, end = (t[..., None].expand(*t.shape, side) for t in (begin, end))
    shift = [size * i for i in range(side)]
    if not side:
        same = begin.dtype  # a sum would convert int32 to int64
        shift, begin, end = [0], begin.sum(-1, dtype=same), end.sum(-1, dtype=same)  # empty lines
    return joined(lines.pattern, shape, lines.idx, LineRanges(begin, end, shift, count))


def _repeated_pattern(pattern: Pattern, times: tuple[int, ...]) -> Found | InRanges:
    shape = tuple(s * n for s, n in zip(pattern.shape, times, strict=True))
    split = sparse_dims(pattern)
    count = pattern.nse * math.prod(times[:split])
    lines = lines_of(pattern, index_dtype(pattern.indices[0].dtype, (*shape, count)))
    if lines is not None:
        return _repeated_lines(lines, shape, times, count)
    copies = math.prod(times[:split])

    def by(indices: torch.Tensor) -> Placed:
        copy = indices.new_ones(copies, dtype=torch.int64).cumsum(0) - 1
        if not copies:
            return Placed(indices[:, :0], copy, 0)
        numbers = zip(unraveled(copy, times[:split]), pattern.shape[:split], strict=True)
        moves = [(number * size).to(indices.dtype) for number, size in numbers]
        shifts = torch.stack(moves) if moves else indices.new_zeros(0, copies)  # (d, copies)
        copies_at = (shifts[:, :, None] + indices[:, None, :]).flatten(1)  # (d, copies * nse)
        entry = (indices.new_ones(indices.shape[1], dtype=torch.int64).cumsum(0) - 1).repeat(copies)
        first_alone = all(n == 1 for n in times[1:split])
        return Placed(copies_at, entry, 0 if first_alone else None)

    return placed(pattern, shape, by)
