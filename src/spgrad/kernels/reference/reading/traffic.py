"""How the kernels of a device read and write memory, which never changes a result."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


@kernel(
    "traffic(Tensor idx, Tensor x, bool may_tile, SymInt lines) -> Tensor",
    fake=lambda idx, x, may_tile, lines: x.new_empty(11, dtype=torch.float64),
)
def traffic(idx: Tensor, x: Tensor, may_tile: bool, lines: int) -> Tensor:
    """How a product gathers the rows of x that idx names.

    Args:
        idx: Column of every entry (nse,).
        x: Dense factor (k, n).
        may_tile: Whether columns of x may be copied into tiles, as the values stand in order.
        lines: The number m of rows of the matrix.

    Returns:
        float64 (11,): bytes of the second-level cache; the share of entries whose row of x is not
        in it, and the same with x in tiles, both 0 if that was not looked at; how many bytes of
        rows are prefetched; 1 if x is copied into tiles; 1 if its rows are copied side by side, a
        stretch at a time; 1 if columns and values are prefetched, as no near cache has them; 1 if
        rows are prefetched twice, into one cache after the other; the two shares again, for the
        first-level cache; 1 if a block of columns is computed for all rows before the next block,
        2 if the first of two blocks prefetches rows of x to their end, 3 if each row of x is read
        to its end before the next one. All 0 if nothing is chosen, as here.
    """
    return x.new_zeros(11, dtype=torch.float64)


@kernel(
    "assume_cache(Tensor like, int size) -> Tensor",
    fake=lambda like, size: like.new_empty(1, dtype=torch.int64),
)
def assume_cache(like: Tensor, size: int) -> Tensor:
    """Lets kernels choose as if the second-level cache had another size and were the largest.

    For tests and benchmarks.

    Args:
        like: Any tensor on the device.
        size: Its bytes; 0 for the machine's own.

    Returns:
        int64 (1,): the size from now on; 0 where nothing is chosen by it.
    """
    return like.new_zeros(1, dtype=torch.int64)
