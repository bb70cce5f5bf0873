"""Reference of the kernel that writes a dense matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_numbers


def _fake_densify(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, lines: int, n: int
) -> Tensor:
    return val.new_empty(ptr.shape[0] - 1, n, *val.shape[1:])


@kernel(
    "densify(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, SymInt lines, SymInt n) -> Tensor",
    fake=_fake_densify,
)
def densify(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, lines: int, n: int
) -> Tensor:
    """The dense matrix of a row view, or the dense batch of a block-diagonal one.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,), distinct in each row.
        perm: Position in `val` of every entry (nse,); None: in order.
        val: Values (nse,) or (nse, d).
        lines: Rows of an item; item i has the columns from i * n on.
        n: Columns of an item.

    Returns:
        out (m, n) or (m, n, d).
    """
    row = row_numbers(ptr, idx.shape[0]).long()
    place = row * n + idx.long() - torch.div(row, lines, rounding_mode="floor") * n
    m = ptr.shape[0] - 1
    out = val.new_zeros(m * n, *val.shape[1:])
    out.index_copy_(0, place, val if perm is None else val[perm.long()])
    return out.view(m, n, *val.shape[1:])
