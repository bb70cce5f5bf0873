"""Reference of the kernel that builds the Kronecker product of two patterns."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_numbers


@kernel(
    "kron_lines(Tensor ptr_a, Tensor idx_a, Tensor ptr_b, Tensor idx_b, SymInt n_b)"
    " -> (Tensor, Tensor, Tensor)"
)
def kron_lines(
    ptr_a: Tensor, idx_a: Tensor, ptr_b: Tensor, idx_b: Tensor, n_b: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The Kronecker product of two patterns, by lines.

    Args:
        ptr_a: Line pointers of a (m_a + 1,).
        idx_a: Index of every entry of a (nse_a,).
        ptr_b: Line pointers of b (m_b + 1,).
        idx_b: Index of every entry of b (nse_b,).
        n_b: Exclusive bound of the indices of b.

    Returns:
        Pointers (m_a m_b + 1,), indices (nse_a nse_b,), and the pair of entries (p, q) that each
        new entry is, as p nse_b + q. Lines ascend where those of a and b do. All of one dtype,
        which has to hold the products of sizes and of entries.
    """
    nse_a, nse_b = idx_a.shape[0], idx_b.shape[0]
    lines = ptr_a.diff()[:, None] * ptr_b.diff()[None, :]
    ptr = torch.cat([ptr_a.new_zeros(1), lines.reshape(-1).cumsum(0, dtype=ptr_a.dtype)])
    m_b = ptr_b.shape[0] - 1
    row_a, row_b = row_numbers(ptr_a, nse_a).long(), row_numbers(ptr_b, nse_b).long()
    line = (row_a[:, None] * m_b + row_b).reshape(-1)
    entry = torch.argsort(line, stable=True)
    idx = (idx_a[:, None] * n_b + idx_b).reshape(-1)
    return ptr, idx[entry], entry.to(ptr.dtype)
