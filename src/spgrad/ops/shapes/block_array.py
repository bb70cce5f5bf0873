"""A matrix made of blocks that are given as rows of matrices."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.operands import matrix_operand, require_rank
from spgrad.ops.creation.create import zeros
from spgrad.ops.shapes.join import cat
from spgrad.public import public_op


@public_op
def block_array(blocks: Any) -> SparseTensor:
    """A matrix made of rows of blocks, of which None are zeros, as `scipy.sparse.block_array`.

    Args:
        blocks: List of lists of equal length, of sparse matrices of any layouts and None. Blocks
            in a row have equal heights, those in a column equal widths; each row and each column
            has a matrix that says how high or wide it is.

    Returns:
        SparseTensor in the layout of the first matrix, COO where its blocks do not fit.

    Gradient:
        Of each block: its part of the cotangent, on its own pattern.

    Cost:
        O(nse of all + rows); the joined pattern is kept for later calls.

    Raises:
        TypeError: `blocks` is no list of lists, or something in it no sparse matrix.
        ValueError: Heights or widths differ, lists are of different lengths, or a row or a column
            has only None.

    Example:
        >>> A, B = spgrad.eye(2), spgrad.from_dense(torch.tensor([[5.0], [6.0]]))
        >>> spgrad.block_array([[A, B], [None, spgrad.eye(1)]]).to_dense()
        tensor([[1., 0., 5.],
                [0., 1., 6.],
                [0., 0., 1.]])
    """
    grid = _grid(blocks)
    given = [A for row in grid for A in row if A is not None]
    heights = [_extent(row, 0, f"row {i}") for i, row in enumerate(grid)]
    columns = list(zip(*grid, strict=True))
    widths = [_extent(column, 1, f"column {j}") for j, column in enumerate(columns)]
    first = given[0]
    rows = []
    for row, height in zip(grid, heights, strict=True):
        filled = [
            _no_elements(height, width, first) if A is None else A
            for A, width in zip(row, widths, strict=True)
        ]
        rows.append(cat(filled, 1))
    return cat(rows, 0)


def _no_elements(height: int, width: int, like: SparseTensor) -> SparseTensor:
    """A matrix without elements, in the layout of another one if its blocks fit, else in COO."""
    pattern = like._pattern
    bm, bn = pattern.blocksize or (1, 1)
    fits = height % bm == 0 and width % bn == 0
    return zeros(
        height,
        width,
        layout=pattern.layout if fits else torch.sparse_coo,
        blocksize=pattern.blocksize if fits else None,
        dtype=like._vals.dtype,
        device=like._vals.device,
    )


def _grid(blocks: Any) -> list[list[SparseTensor | None]]:
    lists = isinstance(blocks, (list, tuple)) and all(isinstance(b, (list, tuple)) for b in blocks)
    if not lists:
        raise ArgumentKindError(
            f"`blocks` is {checks.describe_kind(blocks)}; a list of lists of sparse matrices and "
            "None is accepted. For example [[A, None], [None, B]]."
        )
    lengths = {len(row) for row in blocks}
    if len(lengths) != 1 or 0 in lengths:
        raise ArgumentValueError(
            f"`blocks` has rows of {sorted(lengths) or 'no'} blocks; rows of one length, and one "
            "at least, are accepted. Fill them up with None."
        )
    grid = []
    for i, row in enumerate(blocks):
        grid.append([])
        for j, A in enumerate(row):
            arg = f"blocks[{i}][{j}]"
            made = None if A is None else matrix_operand(arg, A, bools=True)
            if made is not None:
                require_rank(arg, made, 2, "Take one matrix of a batch at a time.")
            grid[-1].append(made)
    return grid


def _extent(blocks: Any, dim: int, which: str) -> int:
    """The size that all blocks of a row or of a column have."""
    sizes = {A._pattern.shape[dim] for A in blocks if A is not None}
    if len(sizes) == 1:
        return sizes.pop()
    what = f"of {' and '.join(map(str, sorted(sizes)))} {('rows', 'columns')[dim]}"
    if not sizes:
        what = "that is None throughout"
    raise ArgumentValueError(
        f"`blocks` has a {which} {what}; a {which} whose blocks have one size, with one block "
        "at least that is not None, is accepted. Use spgrad.zeros for a block without elements."
    )
