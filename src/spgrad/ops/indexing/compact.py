"""Matrices without the rows and columns that have no element."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import sparse_operand
from spgrad.lowering.rebuild import Found, Placed, placed, positions, rebuild, remembered
from spgrad.lowering.views import cols, rows
from spgrad.public import public_op
from spgrad.torch_protocol.compile import is_real


class Compact(NamedTuple):
    """The rows and columns of a matrix that have elements."""

    A: SparseTensor
    """The matrix of these."""
    rows: torch.Tensor
    """Row of the whole matrix of each of its rows, int64, ascending."""
    cols: torch.Tensor
    """Column of the whole matrix of each of its columns, int64, ascending."""


@public_op
def compact(input: torch.Tensor) -> Compact:
    """The matrix without its rows and columns that have no specified element.

    Args:
        input: Sparse matrix (m, k) of any layout, or hybrid (m, k | d).

    Returns:
        The tuple (A, rows, cols): the matrix A (rows, cols), in the layout of `input`, and the
        numbers of the rows and columns that stayed. `A` is ``input[rows][:, cols]``. All rows and
        columns of a block of BSR and BSC stay.

    Gradient:
        The cotangent on the pattern of `input`.

    Cost:
        O(nse + m + k), and O(nse log nse) where there are few elements, such as a thousand in 10^12
        columns; the pointers of a compressed layout are read. Indices are computed once for each
        pattern.

    Raises:
        TypeError: `input` is not sparse.
        ValueError: `input` is not a matrix.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[1, 1], [3, 0]]), size=1000)
        >>> small, rows, cols = spgrad.compact(A)
        >>> small.shape, rows, cols
        (torch.Size([1, 2]), tensor([1]), tensor([0, 3]))
    """
    A = without_repeats(sparse_operand("input", input))
    pattern = A._pattern
    if len(pattern.shape) - pattern.dense_dim != 2:
        accepted = "(m, k), and (m, k | d) with dense dimensions,"
        hint = "Take one matrix of a batch at a time."
        raise checks.bad_shape("input", tuple(pattern.shape), accepted, hint)
    row, col = remembered(
        pattern, kept.REBUILT, ("lines with elements",), lambda: _lines_with_elements(pattern)
    )
    small = rebuild(A, ("compact",), lambda p: _renumbered(p, (row, col)))
    return Compact(small, row.clone(), col.clone())


_FEW_ELEMENTS = 4
"""Where there are more lines than this for each element, no table of all lines is made."""


def _lines_with_elements(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and the columns that have elements."""
    return _filled(pattern, 0), _filled(pattern, 1)


def _filled(pattern: Pattern, dim: int) -> torch.Tensor:
    at = None
    if pattern.is_coo:
        at = pattern.indices[0][dim]
    elif pattern.blocksize is None and pattern.compressed_by_rows == bool(dim):
        at = pattern.indices[1]
    if at is not None and _far_more(pattern.matrix[dim], at):
        return at.unique().to(torch.int64)
    view = cols(pattern) if dim else rows(pattern)
    return view.ptr.diff().nonzero().squeeze(1)


def _far_more(lines: int, at: torch.Tensor) -> bool:
    """Whether there are far more lines than elements, which have the lines `at`.

    A graph of torch.compile may not know how many elements there will be.
    """
    return is_real(at) and lines > _FEW_ELEMENTS * at.numel()


def _numbers(at: torch.Tensor, line: torch.Tensor, size: int) -> torch.Tensor:
    """The number of each of the lines `at` among the ascending lines `line`, of `size` lines."""
    if _far_more(size, at):
        return torch.searchsorted(line, at.to(line.dtype)).to(at.dtype)
    table = line.new_empty(size).index_copy_(0, line, positions(line, line.shape[0]))
    return table.to(at.dtype).index_select(0, at)


def _renumbered(pattern: Pattern, lines: tuple[torch.Tensor, torch.Tensor]) -> Found:
    """All elements, with rows and columns counted among those that have elements."""
    shape = (*(line.shape[0] for line in lines), *pattern.dense_shape)
    blocks = pattern.blocksize or (1, 1)  # all rows and columns of a block have elements
    lines = lines[0][:: blocks[0]] // blocks[0], lines[1][:: blocks[1]] // blocks[1]
    sizes = [size // side for size, side in zip(pattern.matrix, blocks, strict=True)]
    if pattern.is_coo:

        def by(old: torch.Tensor) -> Placed:
            found = [_numbers(old[d], lines[d], sizes[d]) for d in (0, 1)]
            return Placed(torch.stack(found), leading=0)

        return placed(pattern, shape, by)
    (ptr, idx), line = pattern.indices, 0 if pattern.compressed_by_rows else 1
    ptr = torch.cat([ptr.index_select(0, lines[line]), ptr[-1:]])
    indices = ptr, _numbers(idx, lines[1 - line], sizes[1 - line])
    return Found(Pattern.from_spec(pattern.spec, shape, indices), None)
