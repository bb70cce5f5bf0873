"""Reference of the kernel that adds up what has the same index."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened


@kernel("scatter_sum(Tensor idx, Tensor val, SymInt n, bool wide) -> Tensor")
def scatter_sum(idx: Tensor, val: Tensor, n: int, wide: bool) -> Tensor:
    """out[j] = the sum of val[p] over all entries p with idx[p] == j, added in their order.

    Args:
        idx: Index of every entry (nse,), below n.
        val: Values (nse,). 16-bit floats are added in float32.
        n: The number of sums.
        wide: Adds floats in float64, for sums so long that they would lose digits.

    Returns:
        out (n,).
    """
    terms = widened(val)
    if wide and (val.is_floating_point() or val.is_complex()):
        terms = val.to(torch.complex128 if val.is_complex() else torch.float64)
    return terms.new_zeros(n).index_add_(0, idx, terms).to(val.dtype)
