"""Reference of the kernel of running sums."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers


# The reference takes more steps the more entries there are; a shape function takes none.
def _scan_shape(ptr: Tensor, perm: Tensor | None, val: Tensor, backward: bool) -> Tensor:
    return torch.empty_like(val)


@kernel(
    "segment_scan(Tensor ptr, Tensor? perm, Tensor val, bool backward) -> Tensor",
    fake=_scan_shape,
)
def segment_scan(ptr: Tensor, perm: Tensor | None, val: Tensor, backward: bool) -> Tensor:
    """out[perm[p]] = the sum of val[perm[q]] over the entries q <= p of the segment of p.

    Integers wrap. No number is read from a device.

    Args:
        ptr: Segment pointers (m + 1,).
        perm: Where an entry's value stands in `val` (nse,), a bijection; None where it stands in
            place.
        val: Values (nse,) or (nse, d).
        backward: Whether to sum over the entries q >= p instead.

    Returns:
        out (nse,) or (nse, d), contiguous.
    """
    total, nse = widened(in_view_order(val, perm)), val.shape[0]
    line = row_numbers(ptr, nse).view(-1, *[1] * (val.dim() - 1))
    step = 1
    while step < nse:
        # each is the sum of up to `step` entries; now that of twice as many
        same, earlier, later = line[step:] == line[:-step], total[:-step], total[step:]
        if backward:
            total = torch.cat([earlier + torch.where(same, later, 0), total[nse - step :]])
        else:
            total = torch.cat([total[:step], later + torch.where(same, earlier, 0)])
        step *= 2
    out = in_value_order(total.to(val.dtype), perm)
    return out.clone() if out is val else out
