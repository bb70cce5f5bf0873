"""Elements moved within the shape: adjoint, flip and roll."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError
from spgrad.lowering.operands import (
    matrix_operand,
    require_dim,
    require_ints,
    require_rank,
    sparse_operand,
)
from spgrad.lowering.ranges import LineRanges, Lines, joined, lines_of
from spgrad.lowering.rebuild import Found, InRanges, Placed, placed, rebuild, sparse_dims
from spgrad.ops.elementwise.unary import conj
from spgrad.ops.layouts.structure import transposed
from spgrad.ops.shapes.shape import flatten, reshape
from spgrad.public import public_op


@public_op
def adjoint(input: torch.Tensor) -> SparseTensor:
    """The conjugate transpose of a sparse matrix, or of each of a batch.

    Args:
        input: Sparse (*b, m, n) of any layout, without dense dimensions.

    Returns:
        SparseTensor (*b, n, m), in the layout that `spgrad.transpose` gives; the transpose itself
        if `input` is real.

    Gradient:
        The adjoint of the cotangent, on the pattern of `input`.

    Cost:
        That of `spgrad.transpose`; O(nse) for complex numbers.

    Raises:
        TypeError: `input` is not sparse.
        ValueError: `input` has fewer than two dimensions.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[3.0, 1.0 + 2.0j]]))
        >>> A.mH.to_dense()
        tensor([[3.-0.j],
                [1.-2.j]])
    """
    A = transposed(matrix_operand("input", input, bools=True))
    return conj(A) if A.is_complex() else A


@public_op
def matrix_H(input: torch.Tensor) -> SparseTensor:  # noqa: N802  # torch's name for it
    """`spgrad.adjoint` with a matrix alone, no batch: what `input.H` gives."""
    require_rank("input", input, 2, "Use A.mH for a batch.")
    return adjoint(input)


@public_op
def flip(input: torch.Tensor, dims: Any, *more: int) -> SparseTensor:
    """`input` with its elements in reverse order along some dimensions.

    Args:
        input: Sparse tensor of any layout.
        dims: A tuple of dimensions, or its numbers one after the other.
        *more: The other numbers.

    Returns:
        SparseTensor in the layout of `input`.

    Gradient:
        The cotangent flipped back, on the pattern of `input`.

    Cost:
        O(nse); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or a dimension is not an int.
        ValueError: A dimension is out of range, or named twice.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> spgrad.flip(A, 0).to_dense()
        tensor([[3., 0.],
                [1., 2.]])
    """
    return _flipped(input, require_ints("dims", dims, more))


@public_op
def fliplr(input: torch.Tensor) -> SparseTensor:
    """`spgrad.flip` with dims=1: left and right exchanged."""
    return _flipped(input, (1,))


@public_op
def flipud(input: torch.Tensor) -> SparseTensor:
    """`spgrad.flip` with dims=0: up and down exchanged."""
    return _flipped(input, (0,))


@public_op
def roll(input: torch.Tensor, shifts: Any, dims: Any = None) -> SparseTensor:
    """`input` with its elements moved along dimensions; what passes the end comes in at the start.

    Args:
        input: Sparse tensor of any layout.
        shifts: By how many places to move: an int, or a tuple with one int for each of `dims`.
        dims: A dimension or a tuple of them; by default the tensor is rolled as if it were flat.

    Returns:
        SparseTensor in the layout of `input`; without `dims`, in that of `spgrad.reshape`.

    Gradient:
        The cotangent rolled back, on the pattern of `input`.

    Cost:
        O(nse); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or an argument is not an int.
        ValueError: A dimension is out of range, or there are not as many shifts as dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> spgrad.roll(A, 1, 1).to_dense()
        tensor([[2., 1.],
                [0., 3.]])
    """
    A = sparse_operand("input", input)
    by = require_ints("shifts", shifts)
    along = () if dims is None else require_ints("dims", dims)
    if not by:
        raise ArgumentValueError("`shifts` is empty; at least one shift is accepted. Give a shift.")
    if not along and len(by) == 1:
        return reshape(roll(flatten(A), by, 0), tuple(A._pattern.shape))
    if len(by) != len(along):
        raise ArgumentValueError(
            f"`shifts` has {len(by)} number(s) and `dims` {len(along)}; one shift for each "
            "dimension is accepted. Give as many of both."
        )
    shape = tuple(A._pattern.shape)
    total = [0] * len(shape)
    for shift, dim in zip(by, along, strict=True):
        total[require_dim("dims", dim, len(shape))] += shift
    moves = tuple(shift % max(size, 1) for shift, size in zip(total, shape, strict=True))
    split = sparse_dims(A._pattern)
    dense = [d for d in range(split, len(shape)) if moves[d]]
    return rebuild(
        A,
        ("roll", moves),
        lambda p: _rolled_pattern(p, moves[:split]),
        inner=lambda v: (
            v.roll([moves[d] for d in dense], [d - split + 1 for d in dense]) if dense else v
        ),
        copies=True,
    )


def _flipped(input: Any, dims: tuple[int, ...]) -> SparseTensor:
    A = sparse_operand("input", input)
    ndim, split = len(A._pattern.shape), sparse_dims(A._pattern)
    asked = [require_dim("dims", d, ndim) for d in dims]
    if len(set(asked)) < len(asked):
        raise ArgumentValueError(
            f"`dims` is {dims}; each dimension once is accepted. Leave out one of the repeated."
        )
    first = tuple(sorted(d for d in asked if d < split))
    last = tuple(sorted(d - split + 1 for d in asked if d >= split))
    return rebuild(
        A,
        ("flip", first, last),
        lambda p: _flipped_pattern(p, first),
        inner=lambda vals: vals.flip(last) if last else vals,
        copies=True,
    )


def _flipped_pattern(pattern: Pattern, dims: tuple[int, ...]) -> Found | InRanges:
    if not dims:
        return Found(pattern, None)
    lines = lines_of(pattern)
    if lines is not None:
        return _flipped_lines(lines, dims)

    def by(indices: torch.Tensor) -> Placed:
        turned = indices.clone()
        for d in dims:
            turned[d] = pattern.shape[d] - 1 - indices[d]
        return Placed(turned, None, dims[-1] + 1)

    return placed(pattern, tuple(pattern.shape), by)


def _flipped_lines(lines: Lines, dims: tuple[int, ...]) -> InRanges:
    pattern = lines.pattern
    order = [lines.line_dims.index(d) for d in dims if d != lines.idx_dim]
    begin, end = lines.starts().flip(order), lines.ends().flip(order)
    ranges = LineRanges(begin, end, count=pattern.nse)
    if lines.idx_dim in dims:
        ranges = ranges._replace(shift=(pattern.shape[lines.idx_dim] - 1,), backward=True)
    return joined(pattern, tuple(pattern.shape), lines.idx, ranges)


def _rolled_lines(lines: Lines, moves: tuple[int, ...]) -> InRanges:
    pattern = lines.pattern
    shifts = [moves[d] for d in lines.line_dims]
    over = list(range(len(shifts)))
    begin, end = (t.roll(shifts, over) for t in (lines.starts(), lines.ends()))
    shape, shift = tuple(pattern.shape), moves[lines.idx_dim]
    if not shift:
        ranges = LineRanges(begin, end, count=pattern.nse)
    else:  # what leaves at the end of a line comes first
        size = shape[lines.idx_dim]
        bound = lines.numbers().fill_(size - shift)
        cut = kernels.cut_lines(lines.ptr, lines.idx, bound).view(begin.shape).roll(shifts, over)
        begin, end = torch.stack([cut, begin], -1), torch.stack([end, cut], -1)
        ranges = LineRanges(begin, end, (shift - size, shift), pattern.nse)
    return joined(pattern, shape, lines.idx, ranges)


def _rolled_pattern(pattern: Pattern, moves: tuple[int, ...]) -> Found | InRanges:
    moved = [d for d, shift in enumerate(moves) if shift]
    if not moved:
        return Found(pattern, None)
    lines = lines_of(pattern)
    if lines is not None:
        return _rolled_lines(lines, moves)

    def by(indices: torch.Tensor) -> Placed:
        turned = indices.clone()
        for d in moved:
            index = indices[d].to(torch.int64) + moves[d]
            turned[d] = torch.where(index >= pattern.shape[d], index - pattern.shape[d], index)
        return Placed(turned, None, moved[-1] + 1)

    return placed(pattern, tuple(pattern.shape), by)
