"""Reference of the kernel that gives the column view of a row view."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import moved, row_numbers, row_pointers


@kernel(
    "transpose_plan(Tensor ptr, Tensor idx, SymInt n, Tensor? val=None) -> (Tensor, Tensor, Tensor)"
)
def transpose_plan(
    ptr: Tensor, idx: Tensor, n: int, val: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The column view of a row view: pointers (n + 1,), rows (nse,), positions (nse,).

    The sort is stable: a column lists its entries in ascending row order, then storage order.
    With values val (nse,), these in the new order in place of the positions.
    """
    perm = torch.argsort(idx, stable=True)
    row = row_numbers(ptr, idx.numel())[perm]
    return row_pointers(idx, n), row, moved(perm.to(idx.dtype), val)
