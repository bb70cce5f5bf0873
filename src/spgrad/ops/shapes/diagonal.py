"""Diagonals, and what lies on either side of them."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern
from spgrad.errors import UnsupportedError
from spgrad.lowering.align import readable
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.gather import Gather
from spgrad.lowering.operands import is_sparse, require_dim, require_int, sparse_operand
from spgrad.lowering.ranges import LineRanges, Lines, by_rows, joined, lines_of
from spgrad.lowering.rebuild import (
    COO,
    Found,
    InRanges,
    Placed,
    coordinates,
    flat_values,
    placed,
    positions,
    rebuild,
    remembered,
    sparse_dims,
    subset,
)
from spgrad.lowering.sorting import inverse
from spgrad.lowering.views import entries_at, has_lines, linear_index, unraveled
from spgrad.ops.shapes.shape import permute
from spgrad.public import public_op
from spgrad.torch_protocol.compile import is_real


@public_op
def tril(input: torch.Tensor, diagonal: int = 0) -> SparseTensor:
    """The specified elements (i, j) of each matrix with j <= i + diagonal.

    Args:
        input: Sparse matrix or batch of any layout.
        diagonal: The last diagonal that is kept: 0 is the main one, 1 the one above it.

    Returns:
        SparseTensor in the layout of `input`. BSR and BSC keep whole blocks, with zeros at the
        removed elements.

    Gradient:
        On the pattern of `input`: the cotangent at the elements that stay, 0 at the others.

    Cost:
        O(nse); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or `diagonal` is not an int.
        ValueError: `input` has no matrix dimensions.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> spgrad.tril(A).to_dense()
        tensor([[1., 0.],
                [3., 0.]])
    """
    return _triangle(input, diagonal, lower=True)


@public_op
def triu(input: torch.Tensor, diagonal: int = 0) -> SparseTensor:
    """The specified elements (i, j) with j >= i + diagonal: `spgrad.tril` with the other side."""
    return _triangle(input, diagonal, lower=False)


@public_op
def diagonal(input: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """The elements (i, i + offset) of each matrix, as a dense tensor.

    Args:
        input: Sparse matrix or batch of any layout.
        offset: Above the main diagonal if positive, below it if negative.
        dim1: One of the two matrix dimensions; the rows.
        dim2: The other one; the columns.

    Returns:
        Dense (*b, *dense_shape, length), 0 where an element is not specified.

    Gradient:
        The cotangent at the diagonal, 0 at the other elements; on the pattern of `input`.

    Cost:
        O(nse) on the first call for each pattern, then O(size of the result).

    Raises:
        TypeError: `input` is not sparse, or an argument is not an int.
        ValueError: A dimension is out of range.
        NotImplementedError: `dim1` and `dim2` are not the matrix dimensions, the last two sparse.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> spgrad.diagonal(A), spgrad.diagonal(A, 1)
        (tensor([1., 0.]), tensor([2.]))
    """
    A = sparse_operand("input", input)
    require_int("offset", offset)
    ndim, split = len(A._pattern.shape), sparse_dims(A._pattern)
    require_matrix(A)
    i, j = (require_dim(n, d, ndim) for n, d in (("dim1", dim1), ("dim2", dim2)))
    if {i, j} != {split - 2, split - 1}:
        raise UnsupportedError(
            f"`dim1` and `dim2` are {dim1} and {dim2}; the matrix dimensions {split - 2} and "
            f"{split - 1} are accepted, as others would give a large dense result. Move them with "
            "spgrad.movedim first."
        )
    return _diagonal_values(A, offset if i < j else -offset)


@public_op
def diag(input: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    """A matrix with the vector `input` on a diagonal, or a diagonal of the matrix `input`.

    Args:
        input: Sparse matrix of any layout; sparse or dense vector.
        diagonal: Above the main diagonal if positive, below it if negative.

    Returns:
        For a matrix, the dense vector that `spgrad.diagonal` gives. For a vector (n,), a
        SparseTensor (n + |diagonal|, n + |diagonal|) with its elements, in COO, or in CSR if the
        vector is dense.

    Gradient:
        Of a matrix as `spgrad.diagonal`; of a vector the cotangent at the diagonal.

    Cost:
        O(nse); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not a tensor, or `diagonal` is not an int.
        ValueError: `input` is neither a vector nor a matrix.

    Example:
        >>> spgrad.diag(torch.tensor([1.0, 2.0]), 1).to_dense()
        tensor([[0., 1., 0.],
                [0., 0., 2.],
                [0., 0., 0.]])
    """
    require_int("diagonal", diagonal)
    A = _vector_or_sparse(input)
    ndim = len(A._pattern.shape)
    if ndim not in (1, 2) or A._pattern.dense_dim:
        raise checks.bad_shape(
            "input", A._pattern.shape, "a vector or a matrix", "Use spgrad.diagonal."
        )
    if ndim == 2:
        return _diagonal_values(A, diagonal)
    made = _embedded(A, diagonal)
    return made if is_sparse(input) else convert(made, torch.sparse_csr)


@public_op
def diag_embed(
    input: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> SparseTensor:
    """Matrices with the last dimension of `input` on a diagonal.

    Args:
        input: Sparse (*b, n) of any layout, or a dense tensor.
        offset: Above the main diagonal if positive, below it if negative.
        dim1: Dimension of the result for the rows.
        dim2: Dimension of the result for the columns.

    Returns:
        COO SparseTensor (*b, n + |offset|, n + |offset|).

    Gradient:
        The cotangent at the diagonals.

    Cost:
        O(nse); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not a tensor, or an argument is not an int.
        ValueError: A dimension is out of range, or `input` has none.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> spgrad.diag_embed(A).shape, spgrad.diag_embed(A).nse
        (torch.Size([2, 2, 2]), 2)
    """
    require_int("offset", offset)
    A = _vector_or_sparse(input)
    ndim = len(A._pattern.shape)
    if ndim == 0 or A._pattern.dense_dim:
        raise checks.bad_shape(
            "input", A._pattern.shape, "a tensor (*b, n)", "All of its dimensions are sparse."
        )
    i, j = (require_dim(n, d, ndim + 1) for n, d in (("dim1", dim1), ("dim2", dim2)))
    if i == j:
        raise checks.bad_shape("input", A._pattern.shape, "`dim1` other than `dim2`", "Change one.")
    made = _embedded(A, offset)
    others = iter(range(ndim - 1))
    order = [ndim - 1 if d == i else ndim if d == j else next(others) for d in range(ndim + 1)]
    return made if order == list(range(ndim + 1)) else permute(made, order)


def require_matrix(A: SparseTensor) -> None:
    """Refuses what has no rows and columns."""
    if sparse_dims(A._pattern) < 2:
        hint = "Give it a dimension with spgrad.unsqueeze."
        raise checks.bad_shape("input", A._pattern.shape, "a sparse matrix or batch", hint)


def _vector_or_sparse(input: Any) -> SparseTensor:
    """A sparse operand as it is; a dense one with all of its elements specified."""
    if is_sparse(input) or not isinstance(input, torch.Tensor):
        return sparse_operand("input", input)
    if input.dtype != torch.bool:
        checks.require_numeric("input", input)
    sizes = tuple(input.shape)
    at = positions(input.new_empty(0, dtype=torch.int64), input.numel())
    indices = torch.stack(unraveled(at, sizes)) if sizes else at.new_zeros(0, at.numel())
    full = Pattern(torch.sparse_coo, sizes, (indices,))
    return on_pattern(input.reshape(-1), full)


def _triangle(input: Any, diagonal: int, *, lower: bool) -> SparseTensor:
    A = sparse_operand("input", input)
    require_int("diagonal", diagonal)
    require_matrix(A)
    if A._pattern.dense_dim:
        raise UnsupportedError(
            f"`input` has {A._pattern.dense_dim} dense dimension(s), which are among the last two; "
            "a matrix or batch with scalar elements is accepted. Take one slice of the dense "
            "dimensions at a time."
        )
    return _side_of(A, diagonal, lower=lower)


def lower_part(A: SparseTensor, diagonal: int) -> SparseTensor:
    """`tril`, of a matrix or batch that may have dense dimensions behind its rows and columns."""
    return _side_of(A, diagonal, lower=True)


def _side_of(A: SparseTensor, diagonal: int, *, lower: bool) -> SparseTensor:
    return rebuild(
        A, ("tril" if lower else "triu", diagonal), lambda p: _triangle_pattern(p, diagonal, lower)
    )


def _triangle_pattern(pattern: Pattern, diagonal: int, lower: bool) -> Found | InRanges:
    # a trace does not know how many elements are in ranges of lines
    lines = lines_of(pattern) if is_real(pattern.indices[0]) else None
    if lines is not None:
        return _triangle_lines(lines, diagonal, lower)
    distance = distances(pattern)
    return subset(pattern, distance <= diagonal if lower else distance >= diagonal)


def _triangle_lines(lines: Lines, diagonal: int, lower: bool) -> InRanges:
    """Of each line what lies on one side of the diagonal: its beginning or its end."""
    pattern = lines.pattern
    extent = sum(pattern.matrix)
    diagonal = max(min(diagonal, extent), -extent)
    number = lines.numbers()
    if not by_rows(pattern):  # column j keeps the rows i >= j - diagonal, or i <= j - diagonal
        diagonal, lower = -diagonal, not lower
    cut = kernels.cut_lines(lines.ptr, lines.idx, number.add_(diagonal + lower))
    begin, end = (lines.ptr[:-1], cut) if lower else (cut, lines.ptr[1:])
    found = joined(pattern, tuple(pattern.shape), lines.idx, LineRanges(begin, end))
    return found._replace(pattern=found.pattern.ascending(pattern))


def distances(pattern: Pattern) -> torch.Tensor:
    """Column less row of each stored element."""
    coo, entry = coordinates(pattern)
    found = coo.indices[0][-1].to(torch.int64) - coo.indices[0][-2]
    return found if entry is None else torch.empty_like(found).index_copy_(0, entry, found)


def _diagonal_values(A: SparseTensor, offset: int) -> torch.Tensor:
    A = without_repeats(A)
    pattern = A._pattern
    vals = to_diagonal(pattern, offset)(flat_values(A))
    if pattern.batch:
        vals = vals.view(*pattern.batch, diagonal_length(pattern, offset), *pattern.dense_shape)
    if pattern.dense_dim:
        vals = vals.movedim(len(pattern.batch), -1)
    return as_result(vals)


def diagonal_length(pattern: Pattern, offset: int) -> int:
    """Elements of one diagonal."""
    m, k = pattern.matrix
    return max(min(m + min(offset, 0), k - max(offset, 0)), 0)


def to_diagonal(pattern: Pattern, offset: int) -> Gather:
    """Takes the stored elements to the places of the diagonals (items * length,); kept."""
    key = "diagonal", offset
    return remembered(pattern, kept.REBUILT, key, lambda: _to_diagonal(pattern, offset))


def _to_diagonal(pattern: Pattern, offset: int) -> Gather:
    length = diagonal_length(pattern, offset)
    if not pattern.is_coo or (readable(pattern.indices[0]) and has_lines(pattern)):
        sizes = (*pattern.batch, length)
        place = torch.arange(math.prod(sizes), device=pattern.device)
        *batch, along = unraveled(place, sizes)
        row, col = (along + by if by else along for by in (max(-offset, 0), max(offset, 0)))
        at = [*batch, row, col]
        return Gather(entries_at(pattern, at), pattern.elements)
    indices = pattern.indices[0].to(torch.int64)
    along = indices[-2] + min(offset, 0)
    place = linear_index(torch.cat([indices[:-2], along[None]]), (*pattern.batch, length))
    assert place is not None
    to = torch.where(indices[-1] - indices[-2] == offset, place, -1)
    entry = inverse(to, math.prod(pattern.batch) * length)
    return Gather(entry, pattern.elements, place=to)


def _embedded(A: SparseTensor, offset: int) -> SparseTensor:
    return rebuild(A, ("diag_embed", offset), lambda p: _embedded_pattern(p, offset), copies=True)


def _embedded_pattern(pattern: Pattern, offset: int) -> Found:
    *batch, n = pattern.shape
    side = n + abs(offset)

    def by(indices: torch.Tensor) -> Placed:
        row, col = indices[-1] - min(offset, 0), indices[-1] + max(offset, 0)
        return Placed(torch.cat([indices[:-1], row[None], col[None]]), None, 0)

    return placed(pattern, (*batch, side, side), by, like=COO)
