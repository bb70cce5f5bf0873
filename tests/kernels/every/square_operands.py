"""Square matrices on the indices of a view, as operands of solves and walks."""

import torch
from attention_operands import randn

from spgrad import kernels
from spgrad.kernels.reference.solves.krylov.diagonals import TILE_ROWS, stride


def square(v, *, lower, transposed=False):
    """A matrix on the indices of v, of its lines, with all of a dominant diagonal."""
    at = torch.eye(v.m, dtype=torch.bool)
    at[kernels.expand(v.ptr, v.nse).long(), v.idx.long() % max(v.m, 1)] = True
    at = at.tril() if lower else at
    row, column = (at.T if transposed else at).nonzero().T
    val = torch.where(row == column, 4.0, randn(len(row)) / max(v.m, 1))
    ptr = kernels.compress(row.to(v.ptr.dtype), v.m)
    return ptr, column.to(v.ptr.dtype), val


def system(v, n, upper, unit):
    """Its values in any order, and n right-hand sides."""
    ptr, idx, val = square(v, lower=False)
    perm = torch.randperm(len(idx))
    shuffled = torch.empty_like(val).index_copy_(0, perm, val)
    return ptr, idx, perm.to(idx.dtype), shuffled, randn(v.m, n), upper, unit


def diagonal(v):
    """The pointers and columns of a diagonal matrix."""
    return (at := torch.arange(v.m + 1, dtype=v.ptr.dtype)), at[:-1]


def banded(v):
    """Values of three diagonals, their offsets, and a vector."""
    return randn(3, stride(v.m)), torch.tensor([-1, 0, 2]), randn(1, v.m, 1)


def symmetric(v):
    """Values of the main diagonal and of the ones above it, all offsets, and a vector."""
    return randn(3, stride(v.m)), torch.tensor([-3, -1, 0, 1, 3]), randn(1, v.m, 1)


def tiled(v):
    """Three diagonals of two tiles, one of which has one value, and a vector."""
    tiles = torch.cat([randn(1, TILE_ROWS), torch.full((1, TILE_ROWS), 0.5)])
    numbers = torch.randint(-1, 1, (-(-v.m // TILE_ROWS), 3), dtype=torch.int32)
    return tiles, numbers.where(numbers == 0, ~1), torch.tensor([-1, 0, 2]), randn(1, v.m, 1)


def repeating(v, most):
    """Values of three diagonals that repeat, the number of rows, and the most tiles."""
    values = torch.ones(3, stride(v.m))
    values[1, v.m // 2 : v.m] = 2
    return values, v.m, most


def unit_triangle(v, sign, transpose, scaled):
    """Values of three diagonals on one side of the main one, and a right-hand side."""
    at = torch.tensor([1, 17, 40]).mul(sign).sort().values
    scale = randn(v.m) if scaled else None
    return 0.3 * randn(3, stride(v.m)), at, scale, randn(1, v.m, 1), transpose


OF_DIAGONALS = {
    "spmv_diagonals": [banded, symmetric],
    "spmv_tiles": [tiled],
    "tiles_of_diagonals": [lambda v, most=most: repeating(v, most) for most in (9, 1)],
}
TRIANGLES = [
    lambda v, s=s, t=t: unit_triangle(v, s, t, scaled=s > 0) for s in (1, -1) for t in (True, False)
]


def factors(v, mirror):
    """Those of a diagonal matrix, in supernodes of one column."""
    at, rows = diagonal(v)
    one = at, rows, 2 + randn(v.m).abs()
    return at, torch.zeros_like(at), rows[:0], *one, *one, mirror


def walked(v, p=1.0, q=1.0):
    """Nine walks of four steps; with large p and q, proposals are mostly rejected."""
    ptr, idx, _ = square(v, lower=False)
    starts = torch.arange(9) % v.m if v.m else torch.arange(0)
    return ptr, idx, starts, 4, p, q, -5
