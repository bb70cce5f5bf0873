"""Matrices with another diagonal, or with none."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.align import readable
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import require_int, sparse_operand
from spgrad.lowering.ranges import Lines, by_rows, lines_of, without_entries
from spgrad.lowering.rebuild import Found, InRanges, positions, rebuild, remembered, subset
from spgrad.lowering.views import unraveled
from spgrad.ops.elementwise.binary import add
from spgrad.ops.shapes.diagonal import diagonal_length, distances, require_matrix, to_diagonal
from spgrad.public import public_op


@public_op
def remove_diag(input: torch.Tensor, offset: int = 0) -> SparseTensor:
    """The specified elements of each matrix that are not on a diagonal; a graph without loops.

    Args:
        input: Sparse matrix or batch of any layout.
        offset: Of the diagonal: above the main one if positive, below it if negative.

    Returns:
        SparseTensor in the layout of `input`. BSR and BSC keep whole blocks, with zeros at the
        removed elements.

    Gradient:
        On the pattern of `input`: the cotangent at the elements that stay, 0 on the diagonal.

    Cost:
        O(nse); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or `offset` is not an int.
        ValueError: `input` has no matrix dimensions.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> spgrad.remove_diag(A).to_dense()
        tensor([[0., 2.],
                [3., 0.]])
    """
    return _off_diagonal_elements(_matrices(input, offset), offset)


@public_op
def set_diag(
    input: torch.Tensor, value: float | torch.Tensor = 1.0, offset: int = 0
) -> SparseTensor:
    """The matrices with all elements of a diagonal specified and set to new values.

    Args:
        input: Sparse matrix or batch (*b, m, k) of any layout.
        value: Number, or dense tensor that broadcasts to (*b, length of the diagonal).
        offset: Of the diagonal: above the main one if positive, below it if negative.

    Returns:
        SparseTensor in the layout of `input`, with its elements off the diagonal and the whole
        diagonal.

    Gradient:
        Of `input` the cotangent off the diagonal and 0 on it, on its pattern; of `value` the
        cotangent on the diagonal.

    Cost:
        O(nse + length); indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, `value` neither number nor dense tensor, or `offset` no
            int.
        ValueError: `input` has no matrix dimensions, or `value` does not broadcast.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
        >>> spgrad.set_diag(A, torch.tensor([5.0, 6.0])).to_dense()
        tensor([[5., 2.],
                [0., 6.]])
    """
    A = _matrices(input, offset)
    pattern = A._pattern
    shape = (*pattern.batch, diagonal_length(pattern, offset))
    if not isinstance(value, torch.Tensor) and isinstance(value, checks.NUMBER):
        if isinstance(value, complex) and not A._vals.is_complex():
            raise ArgumentValueError(
                f"`value` is {value} for a diagonal of dtype {A._vals.dtype}; a real number is "
                "accepted. Convert `input` with .to(torch.complex64)."
            )
        vals = torch.full(shape, value, dtype=A._vals.dtype, device=A._vals.device)
    else:
        vals = _diagonal_of(value, shape)
        checks.require_same_device(input=A._vals, value=vals)
    key = "set_diag", offset
    made = remembered(pattern, kept.REBUILT, key, lambda: _whole_diagonal(pattern, offset))
    new = convert(from_values(vals.reshape(-1), made), pattern.layout, pattern.blocksize)
    return add(_with_negative_zeros(A, offset), new)  # type: ignore[return-value]


def _matrices(input: Any, offset: Any) -> SparseTensor:
    A = sparse_operand("input", input)
    require_int("offset", offset)
    require_matrix(A)
    if A._pattern.dense_dim:
        raise UnsupportedError(
            f"`input` has {A._pattern.dense_dim} dense dimension(s); a matrix or batch with scalar "
            "elements is accepted. Take one slice of the dense dimensions at a time."
        )
    return without_repeats(A)


_LONG, _LARGE = 4, 1 << 13
"""From so many elements a line, and in all, on, the diagonal is looked for in the lines."""


def _long_lines(pattern: Pattern) -> Lines | None:
    """The lines of a pattern where a search in each takes less time than a look at each element."""
    if not readable(pattern.indices[0]) or pattern.nse < _LARGE:
        return None
    lines = lines_of(pattern)
    return lines if lines is not None and pattern.nse >= _LONG * lines.ptr.shape[0] else None


def _off_diagonal_elements(A: SparseTensor, offset: int) -> SparseTensor:
    return rebuild(A, ("remove_diag", offset), lambda p: _off_diagonal(p, offset), copies=True)


def _off_diagonal(pattern: Pattern, offset: int) -> Found | InRanges:
    lines = _long_lines(pattern)
    if lines is None:
        return subset(pattern, distances(pattern) != offset)
    entry = _entries_on_diagonal(pattern, offset)
    there = entry >= 0
    entry = entry[there]
    if not entry.shape[0]:
        return Found(pattern, None)
    first = -min(offset, 0) if by_rows(pattern) else max(offset, 0)  # the line where it begins
    behind = lines.sizes[-1] - first - diagonal_length(pattern, offset)
    if first or behind:
        there = F.pad(there.view(*pattern.batch, -1), (first, behind)).view(-1)
    return without_entries(lines, entry, there)


def _entries_on_diagonal(pattern: Pattern, offset: int) -> torch.Tensor:
    """The stored element at each place of the diagonals (items * length,), -1 for none."""
    entry = to_diagonal(pattern, offset).index()
    assert entry is not None
    return entry


def _with_negative_zeros(A: SparseTensor, offset: int) -> SparseTensor:
    """A with -0.0 on its diagonal, which changes no number that is added to it."""
    pattern, old = A._pattern, stored_values(A)
    key = "off_diagonal", offset
    found = remembered(pattern, kept.REBUILT, key, lambda: _stored_diagonal(pattern, offset))
    if found.dtype == torch.bool:
        old = old.where(found.view(pattern.values_shape), old.new_full((), -0.0))
    elif found.shape[0]:
        old = old.index_fill(0, found, -0.0)
    return on_pattern(old, pattern)


def _stored_diagonal(pattern: Pattern, offset: int) -> torch.Tensor:
    """The stored elements on the diagonal; or, for each element, whether it is off the diagonal."""
    if _long_lines(pattern) is None:
        return distances(pattern) != offset
    entry = _entries_on_diagonal(pattern, offset)
    return entry[entry >= 0]


def _diagonal_of(value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise ArgumentKindError(
            f"`value` is {checks.describe_kind(value)}; a number or a dense tensor is accepted. "
            "Convert it with torch.as_tensor."
        )
    try:
        return value.expand(shape)
    except RuntimeError as error:
        hint = "Give one number for each element of the diagonal."
        accepted = f"what broadcasts to {shape}"
        raise checks.bad_shape("value", tuple(value.shape), accepted, hint) from error


def _whole_diagonal(pattern: Pattern, offset: int) -> Pattern:
    """All elements of the diagonals in COO."""
    length = diagonal_length(pattern, offset)
    index = pattern.indices[0]
    at = positions(index, math.prod(pattern.batch) * length)
    along = at % max(length, 1)
    batch = unraveled(at // max(length, 1), pattern.batch)
    place = [*batch, along - min(offset, 0), along + max(offset, 0)]
    indices = torch.stack(place).to(index.dtype)
    return Pattern(torch.sparse_coo, tuple(pattern.shape), (indices,))
