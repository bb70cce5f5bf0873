"""Reference of the kernel that scales the lines of a view, and what crosses them."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.layouts.checks import row_numbers
from spgrad.kernels.reference.reductions.segment import widened


@kernel(
    "scale(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor? along, Tensor? across)"
    " -> Tensor"
)
def scale(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    along: Tensor | None,
    across: Tensor | None,
) -> Tensor:
    """out[q] = val[q] along[i] across[idx[p]], q = perm[p], for every entry p of every line i.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of every entry (nse,).
        perm: Where an entry's value stands in `val`, a bijection (nse,); None for in place.
        val: Values (nse,).
        along: The factor of each line (m,); None for 1.
        across: The factor of each index (k,); None for 1.

    Returns:
        out (nse,), in the order of `val`.
    """
    out = widened(val.clone() if perm is None else val[perm])
    if along is not None:
        out = out * widened(along)[row_numbers(ptr, idx.shape[0])]
    if across is not None:
        out = out * widened(across)[idx]
    out = out.to(val.dtype)
    return out if perm is None else torch.empty_like(out).index_copy_(0, perm.long(), out)
