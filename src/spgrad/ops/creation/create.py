"""Sparse tensors made from numbers: without elements, the identity, diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.construct import leaf, size_tuple
from spgrad.core.pattern import LAYOUT_NAMES, Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentValueError, UnsupportedError
from spgrad.lowering.convert import convert, moved
from spgrad.lowering.operands import dense_operand, require_int
from spgrad.ops.layouts.convert import require_blocksize, require_layout
from spgrad.public import public_op


@public_op
def zeros(
    *size: Any,
    layout: torch.layout = torch.sparse_csr,
    blocksize: tuple[int, int] | None = None,
    dense_dim: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """A tensor of zeros: one without any specified element.

    Args:
        *size: A tuple of sizes, or the sizes one after the other.
        layout: One of the five sparse layouts.
        blocksize: Rows and columns of a block, for BSR and BSC.
        dense_dim: Number of trailing dense dimensions.
        dtype: Of the values; torch's default dtype if None.
        device: Of values and indices.
        requires_grad: Makes the result a leaf that collects a gradient.

    Returns:
        SparseTensor with nse = 0.

    Gradient:
        None.

    Cost:
        O(1) for COO, O(rows or columns of all batch items) otherwise.

    Raises:
        TypeError: `size` holds something else than ints, or `layout` is not a sparse layout.
        ValueError: `blocksize` or `dense_dim` does not fit.

    Example:
        >>> spgrad.zeros(2, 3).nse, spgrad.zeros(2, 3).layout
        (0, torch.sparse_csr)
    """
    return _zeros(size, layout, blocksize, dense_dim, dtype, device, requires_grad)


@public_op
def empty(
    *size: Any,
    layout: torch.layout = torch.sparse_csr,
    blocksize: tuple[int, int] | None = None,
    dense_dim: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """`spgrad.zeros` with another name: as in torch, an empty sparse tensor has no elements."""
    return _zeros(size, layout, blocksize, dense_dim, dtype, device, requires_grad)


def _zeros(
    size: tuple[Any, ...],
    layout: torch.layout,
    blocksize: tuple[int, int] | None,
    dense_dim: int,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    requires_grad: bool,
) -> SparseTensor:
    shape = given_size(size)
    _require_sparse_dims(shape, layout, dense_dim)
    pattern = empty_pattern(shape, layout, blocksize, dense_dim, device)
    vals = torch.zeros(pattern.values_shape, dtype=dtype, device=device)
    return leaf(vals, pattern, requires_grad)


def empty_pattern(
    shape: tuple[int, ...],
    layout: torch.layout,
    blocksize: tuple[int, int] | None,
    dense_dim: int,
    device: Any,
) -> Pattern:
    """The pattern without elements."""
    indices = torch.zeros(len(shape) - dense_dim, 0, dtype=torch.int64, device=device)
    pattern = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=dense_dim)
    return coo_in_layout(pattern, layout, blocksize)


def coo_in_layout(
    pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None
) -> Pattern:
    """A COO pattern in another layout."""
    blocks = require_blocksize(pattern, layout, blocksize)
    return pattern if layout == torch.sparse_coo else moved(pattern, layout, blocks).pattern


def given_size(size: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given as one tuple or one after the other."""
    given = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return size_tuple(given)


def _require_sparse_dims(shape: tuple[int, ...], layout: torch.layout, dense_dim: int) -> None:
    require_layout(layout)
    require_int("dense_dim", dense_dim)
    least = 0 if layout == torch.sparse_coo else 2
    if dense_dim < 0 or len(shape) - dense_dim < least:
        raise ArgumentValueError(
            f"`size` is {shape} with {dense_dim} dense dimension(s); {least} sparse dimensions or "
            f"more are accepted for {LAYOUT_NAMES[layout]}. Ask for layout=torch.sparse_coo."
        )


@public_op
def eye(
    n: int,
    m: int | None = None,
    *,
    layout: torch.layout = torch.sparse_csr,
    blocksize: tuple[int, int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """The identity: ones on the diagonal, nothing elsewhere.

    Args:
        n: Number of rows.
        m: Number of columns; by default as many.
        layout: One of the five sparse layouts.
        blocksize: Rows and columns of a block, for BSR and BSC.
        dtype: Of the values; torch's default dtype if None.
        device: Of values and indices.
        requires_grad: Makes the result a leaf that collects a gradient.

    Returns:
        SparseTensor (n, m).

    Gradient:
        None.

    Cost:
        O(n + m).

    Raises:
        TypeError: A size is not an int, or `layout` is not a sparse layout.
        ValueError: A size is negative, or `blocksize` does not fit.

    Example:
        >>> spgrad.eye(2).to_dense()
        tensor([[1., 0.],
                [0., 1.]])
    """
    m = n if m is None else m
    for name, size in (("n", n), ("m", m)):
        if require_int(name, size) < 0:
            raise ArgumentValueError(f"`{name}` is {size}; ints from 0 are accepted. Give a size.")
    shape = size_tuple((n, m))
    require_layout(layout)
    step = torch.arange(min(shape), device=device)
    pattern = Pattern(torch.sparse_coo, shape, (torch.stack([step, step]),)).ascending()
    vals = torch.ones(step.shape[0], dtype=dtype, device=device)
    blocks = require_blocksize(pattern, layout, blocksize)
    made = convert(on_pattern(vals, pattern), layout, blocks)
    return leaf(made._vals, made._pattern, requires_grad)


@public_op
def spdiags(
    diagonals: torch.Tensor,
    offsets: torch.Tensor,
    shape: Sequence[int],
    layout: torch.layout | None = None,
) -> SparseTensor:
    """A matrix with the rows of `diagonals` on its diagonals, as `torch.sparse.spdiags`.

    Args:
        diagonals: Dense (d, n), or (n,) for one diagonal. Element (i, i + offset) of the result is
            entry i + offset of the row: entry j of a row goes to column j.
        offsets: int (d,), or one without dimensions, no two equal; 0 is the main diagonal,
            positive numbers are above it.
        shape: Rows and columns of the result.
        layout: torch.sparse_coo (the default) or another sparse layout without blocks.

    Returns:
        SparseTensor of that shape; every element of the given diagonals is specified.

    Gradient:
        Of `diagonals`: dense, the cotangent at its elements, 0 for elements outside of the matrix.

    Cost:
        O(size of diagonals).

    Raises:
        TypeError: An argument is not a dense tensor, or `layout` is not a sparse layout.
        ValueError: Sizes do not fit, or an offset is given twice.
        NotImplementedError: `layout` has blocks.

    Example:
        >>> d = torch.arange(9).reshape(3, 3)
        >>> spgrad.spdiags(d, torch.tensor([0, -1, 1]), (3, 3)).to_dense()
        tensor([[0, 7, 0],
                [3, 1, 8],
                [0, 4, 2]])
    """
    x = torch.atleast_2d(dense_operand("diagonals", diagonals))
    at = torch.atleast_1d(dense_operand("offsets", offsets))
    size = size_tuple(shape, "shape")
    layout = torch.sparse_coo if layout is None else layout
    require_layout(layout)
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        raise UnsupportedError(
            "`layout` has blocks; coo, csr and csc are accepted. Convert with "
            "A.to_sparse_bsr(blocksize)."
        )
    checks.require_index("offsets", at)
    checks.require_same_device(diagonals=x, offsets=at)
    if len(size) != 2:
        raise checks.bad_shape("shape", size, "(rows, columns)", "Make one matrix at a time.")
    if x.dim() != 2 or at.dim() != 1 or x.shape[0] != at.shape[0]:
        accepted = f"a vector with one number for each of the {x.shape[0]} rows of `diagonals`"
        raise checks.bad_shape("offsets", at.shape, accepted, "Give as many of both.")
    if at.unique().numel() < at.numel():
        raise ArgumentValueError(
            "`offsets` has a number twice; each diagonal once is accepted. Add the two rows of "
            "`diagonals`."
        )
    width = min(x.shape[1], size[1])
    col = torch.arange(width, device=x.device)
    row = col - at[:, None].to(torch.int64)  # (d, width)
    # column by column, so that the elements of a row are in order
    inside = ((row >= 0) & (row < size[0])).t()
    column, which = inside.nonzero().unbind(1)
    rows = column - at[which]
    order = torch.argsort(rows, stable=True)
    indices = torch.stack([rows[order], column[order]])
    vals = x.reshape(-1).index_select(0, (which * x.shape[1] + column)[order])
    pattern = Pattern(torch.sparse_coo, size, (indices,)).ascending()
    return convert(on_pattern(vals, pattern), layout)
