"""Reference of the kernel that transposes a dense matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


@kernel("transpose_dense(Tensor x) -> Tensor")
def transpose_dense(x: Tensor) -> Tensor:
    """The transpose of x (n, m), as a new tensor (m, n) without room between its rows."""
    return x.mT.clone(memory_format=torch.contiguous_format)
