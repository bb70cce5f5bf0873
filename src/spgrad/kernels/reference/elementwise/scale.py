"""Reference of the kernel that multiplies values by a factor of their line and of their index."""

from __future__ import annotations

from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers


@kernel(
    "scale(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor? by_line, Tensor? by_index)"
    " -> Tensor"
)
def scale(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    by_line: Tensor | None,
    by_index: Tensor | None,
) -> Tensor:
    """out[q] = val[q] by_line[i] by_index[idx[p]], q = perm[p], for every entry p of every line i.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of every entry (nse,).
        perm: Where an entry's value stands in `val`, a bijection (nse,); None for in place.
        val: Values (nse,).
        by_line: The factor of each line (m,); None for 1.
        by_index: The factor of each index (k,); None for 1.

    Returns:
        out (nse,), in the order of `val`.
    """
    out = widened(in_view_order(val, perm))
    if by_line is not None:
        out = out * widened(by_line)[row_numbers(ptr, idx.shape[0])]
    if by_index is not None:
        out = out * widened(by_index)[idx]
    return in_value_order(out.to(val.dtype, copy=True), perm)
