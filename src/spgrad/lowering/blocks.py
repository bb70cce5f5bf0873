"""Products with BSR and BSC that use their blocks: which of them do, and how they meet kernels."""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.values import plain
from spgrad.lowering.views import block_cols, block_rows

_DTYPES = (torch.float32, torch.float64)


def uses_blocks(pattern: Pattern, x: torch.Tensor) -> bool:
    """True where products with x are made of small dense ones; elsewhere entries are multiplied.

    The compiled library has the loops, for float32 and float64. A row of blocks, or a column, that
    is one element high is no better than its entries.
    """
    blocks = pattern.blocksize
    if blocks is None or min(blocks) < 2:
        return False
    return kernels.compiled() and x.device.type == "cpu" and x.dtype in _DTYPES


def block_spmm(
    vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, transpose: bool
) -> torch.Tensor:
    """A x, or A^T x, of a matrix in blocks; not recorded by autograd."""
    assert pattern.blocksize is not None
    view = block_cols(pattern) if transpose else block_rows(pattern)
    height, width = reversed(pattern.blocksize) if transpose else pattern.blocksize
    operands = plain(vals), plain(x), height, width, transpose
    return kernels.block_spmm(view.ptr, view.idx, view.perm, *operands)


def block_sddmm(g: torch.Tensor, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Flat values of g x^T at the blocks of a pattern; not recorded by autograd."""
    assert pattern.blocksize is not None
    height, width = pattern.blocksize
    if pattern.compressed_by_rows:  # the view that has the values in order
        view, operands = block_rows(pattern), (plain(g), plain(x), height, width, False)
    else:
        view, operands = block_cols(pattern), (plain(x), plain(g), width, height, True)
    return kernels.block_sddmm(view.ptr, view.idx, view.perm, *operands)
