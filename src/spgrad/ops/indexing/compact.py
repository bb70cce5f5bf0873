"""Matrices without the rows and columns that have no element."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import require_rank, sparse_operand
from spgrad.lowering.views import cols, rows
from spgrad.ops.indexing.getitem import index_select
from spgrad.public import public_op


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
        The tuple (A, rows, cols): the matrix A (rows, cols), in the layout of `input` (CSR and CSC
        for BSR and BSC), and the numbers of the rows and columns that stayed. `A` is
        ``input[rows][:, cols]``.

    Gradient:
        The cotangent on the pattern of `input`.

    Cost:
        O(nse + m + k).

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
    ndim = len(pattern.shape) - pattern.dense_dim
    if ndim != 2:
        require_rank("input", torch.empty((1,) * ndim), 2, "Take one matrix of a batch at a time.")
    row, col = (view.ptr.diff().nonzero().squeeze(1) for view in (rows(pattern), cols(pattern)))
    return Compact(index_select(index_select(A, 0, row), 1, col), row, col)
