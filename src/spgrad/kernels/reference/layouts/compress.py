"""References of the kernels between row pointers and row numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_numbers, row_pointers


@kernel("compress(Tensor row, SymInt m) -> Tensor")
def compress(row: Tensor, m: int) -> Tensor:
    """Row pointers (m + 1,) from row numbers (nse,) in any order."""
    return row_pointers(row, m)


@kernel("expand(Tensor ptr, SymInt nse) -> Tensor")
def expand(ptr: Tensor, nse: int) -> Tensor:
    """Row numbers (nse,) from row pointers (m + 1,)."""
    return row_numbers(ptr, nse)


@kernel("coordinates(Tensor ptr, Tensor idx) -> Tensor")
def coordinates(ptr: Tensor, idx: Tensor) -> Tensor:
    """Row and column (2, nse) of every entry, from row pointers (m + 1,) and columns (nse,)."""
    return torch.stack([row_numbers(ptr, idx.shape[0]), idx])
