"""References of products with matrices whose elements lie on a few diagonals.

The offset of a diagonal is its column less its row. Values by diagonals are (diagonals, stride):
those of a diagonal lie side by side, by rows. Where the matrix has no element, and behind its last
row, they are 0. A symmetric matrix may have those of the main diagonal and the ones above it alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.layouts.compress import expand
from spgrad.kernels.reference.solves.krylov.vectors import krylov_dot

TILE_ROWS = 128
"""Rows of a tile: the values of a diagonal at as many consecutive rows."""


def stride(rows: int) -> int:
    """The length of a stored diagonal; numbers of bytes that are no power of 2 suit caches."""
    return -(-rows // 16) * 16 + 16


@kernel(
    "list_diagonals(Tensor ptr, Tensor idx, SymInt most) -> Tensor",
    fake=lambda ptr, idx, most: ptr.new_empty(most + 1, dtype=torch.int64),
)
def list_diagonals(ptr: Tensor, idx: Tensor, most: int) -> Tensor:
    """The number of diagonals with elements, and then their offsets in ascending order.

    Args:
        ptr: Where each row begins (rows + 1,).
        idx: Columns (nse,).
        most: The most diagonals to list.

    Returns:
        int64 (most + 1,), with 0 behind the last offset; -1 in front if there are more diagonals.
    """
    found = torch.unique(idx.to(torch.int64) - expand(ptr, idx.shape[0]))
    out = ptr.new_zeros(most + 1, dtype=torch.int64)
    out[0] = found.shape[0] if found.shape[0] <= most else -1
    if found.shape[0] <= most:
        out[1 : 1 + found.shape[0]] = found
    return out


@kernel("by_diagonals(Tensor ptr, Tensor idx, Tensor val, Tensor offsets) -> Tensor")
def by_diagonals(ptr: Tensor, idx: Tensor, val: Tensor, offsets: Tensor) -> Tensor:
    """Values by diagonals (diagonals, stride) of a matrix by rows.

    Args:
        ptr: Where each row begins (rows + 1,).
        idx: Columns (nse,).
        val: Values (nse,).
        offsets: Those of the diagonals (diagonals,), int64, ascending; elements elsewhere are left
            out.
    """
    out = val.new_zeros(offsets.shape[0], stride(ptr.shape[0] - 1))
    if offsets.shape[0]:
        row = expand(ptr, idx.shape[0])
        offset = idx.to(torch.int64) - row
        at = torch.searchsorted(offsets, offset).clamp(max=offsets.shape[0] - 1)
        there = torch.where(offsets[at] == offset, val, 0)
        out.index_put_((at, row), there, accumulate=True)
    return out


@kernel("spmv_diagonals(Tensor val, Tensor offsets, Tensor x) -> (Tensor, Tensor)")
def spmv_diagonals(val: Tensor, offsets: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """y = A x for one column (1, m, 1), and the scalar product of x with y (1, 1).

    Args:
        val: Values of A by diagonals (diagonals, stride), float32 or float64; of a symmetric A
            those of the offsets from 0 on may be given alone.
        offsets: Those of the diagonals (diagonals,), int64, ascending.
        x: A vector (1, m, 1) of the dtype of `val`.
    """
    return _product_and_dot(val, offsets, x)


@kernel("spmv_tiles(Tensor val, Tensor numbers, Tensor offsets, Tensor x) -> (Tensor, Tensor)")
def spmv_tiles(val: Tensor, numbers: Tensor, offsets: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """`spmv_diagonals` with the tiles of `tiles_of_diagonals`.

    Args:
        val: Tiles (tiles, 128), float32 or float64.
        numbers: The tile of each part of a diagonal (parts, diagonals), int32; ~number for a tile
            with one value.
        offsets: Those of the diagonals (diagonals,), int64, ascending.
        x: A vector (1, m, 1) of the dtype of `val`.
    """
    tiles = torch.where(numbers < 0, ~numbers, numbers).T.to(torch.int64)
    by = val[tiles].reshape(offsets.shape[0], numbers.shape[0] * TILE_ROWS)
    return _product_and_dot(by, offsets, x)


def _product_and_dot(val: Tensor, offsets: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    m = x.shape[1]
    at = torch.arange(m, device=x.device)[:, None] + offsets
    near = x.reshape(-1).take(at.clamp(0, max(m - 1, 0)))
    by = val[:, :m].T
    folded = offsets.shape[0] - val.shape[0]
    if folded:
        below = val.flip(0)[:folded].gather(1, at[:, :folded].T.clamp(0, max(m - 1, 0)))
        by = torch.cat([below.T, by], 1)
    y = torch.where((at >= 0) & (at < m), by * near, 0).sum(1, dtype=x.dtype).view(x.shape)
    return y, krylov_dot(x, y)
