"""References of the products with matrices of dense blocks: each other's derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import accumulate_dtype, widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers

COLUMNS = 8
"""Columns gathered at a time, so that no temporary is longer than 8 times the elements."""


def _rows_shape(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    x: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
) -> Tensor:
    return x.new_empty((ptr.shape[0] - 1) * block_lines, x.shape[1])


def _elements_shape(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    g: Tensor,
    x: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
) -> Tensor:
    return x.new_empty(idx.shape[0] * block_lines * block_width)


def _in_blocks(x: Tensor, size: int) -> Tensor:
    """The rows of x (k, n) in blocks of so many (k / size, size, n)."""
    return x.reshape(x.shape[0] // size, size, x.shape[1])


@kernel(
    "block_spmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor x, SymInt block_lines,"
    " SymInt block_width, bool transposed) -> Tensor",
    fake=_rows_shape,
)
def block_spmm(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    x: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
) -> Tensor:
    """y = A x for a matrix A of dense blocks, by lines of blocks.

    The lines are rows of A; or its columns, for the transpose of a matrix whose blocks are stored
    row by row: then `transposed` is True. Blocks of a line may stand in any order and repeat.

    Args:
        ptr: Pointers to the blocks of each line of blocks (lines + 1,).
        idx: Index of every block in the other direction (nb,).
        perm: Where a block's values stand in `val`, counted in blocks (nb,); None for in place.
        val: Values (nb block_lines block_width,): those of a block line by line, or element by
            element if `transposed`.
        x: Dense factor (k, n).
        block_lines: Size of a block in the direction of the lines.
        block_width: Its size in the other direction; it divides k.
        transposed: Whether blocks are stored as (block_width, block_lines).

    Returns:
        y (lines block_lines, n).
    """
    lines, n = ptr.shape[0] - 1, x.shape[1]
    line = row_numbers(ptr, idx.shape[0])
    stored = (block_width, block_lines) if transposed else (block_lines, block_width)
    blocks = widened(in_view_order(val.view(idx.shape[0], *stored), perm))
    blocks = blocks.mT if transposed else blocks
    y = x.new_empty(lines * block_lines, n)
    for j in range(0, n, COLUMNS):
        columns = x[:, j : j + COLUMNS]
        rows = widened(_in_blocks(columns, block_width)[idx])
        products = torch.bmm(blocks, rows)  # (nb, block_lines, columns)
        total = products.new_zeros(lines, *products.shape[1:]).index_add_(0, line, products)
        y[:, j : j + COLUMNS] = total.view(lines * block_lines, columns.shape[1]).to(x.dtype)
    return y


@kernel(
    "block_sddmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor g, Tensor x, SymInt block_lines,"
    " SymInt block_width, bool transposed) -> Tensor",
    fake=_elements_shape,
)
def block_sddmm(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    g: Tensor,
    x: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
) -> Tensor:
    """The values of g xᵀ at the blocks of a pattern: each is a small dense product.

    No factor is conjugated.

    Args:
        ptr: Pointers to the blocks of each line of blocks (lines + 1,).
        idx: Index of every block in the other direction (nb,).
        perm: Where a block's values belong in the result, counted in blocks, a bijection (nb,);
            None for in place.
        g: Dense factor of the lines (lines block_lines, n).
        x: Dense factor of the other direction (k, n).
        block_lines: Size of a block in the direction of the lines.
        block_width: Its size in the other direction; it divides k.
        transposed: Whether blocks are stored as (block_width, block_lines).

    Returns:
        out (nb block_lines block_width,), in the order of the values of `block_spmm`.
    """
    n = x.shape[1]
    line = row_numbers(ptr, idx.shape[0])
    dtype = accumulate_dtype(x.dtype)
    total = x.new_zeros(idx.shape[0], block_lines, block_width, dtype=dtype)
    for j in range(0, n, COLUMNS):
        columns = slice(j, j + COLUMNS)
        rows = widened(_in_blocks(g[:, columns], block_lines)[line])
        others = widened(_in_blocks(x[:, columns], block_width)[idx])
        total += torch.bmm(rows, others.mT)
    found = (total.mT if transposed else total).to(x.dtype).contiguous()
    return in_value_order(found, perm).reshape(-1)
