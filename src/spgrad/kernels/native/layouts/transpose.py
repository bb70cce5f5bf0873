"""Native column view of a row view: torch's stable sort gives the sorted columns too."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import native
from spgrad.kernels.reference.common.views import row_numbers


@native
def transpose_plan(
    ptr: Tensor, idx: Tensor, n: int, val: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.layouts.transpose.transpose_plan`."""
    col, perm = torch.sort(idx, stable=True)
    lines = torch.arange(n + 1, dtype=idx.dtype, device=idx.device)
    pointers = torch.searchsorted(col, lines, out_int32=idx.dtype == torch.int32)
    row = row_numbers(ptr, idx.shape[0]).index_select(0, perm)
    return pointers, row, perm.to(idx.dtype) if val is None else val.index_select(0, perm)
