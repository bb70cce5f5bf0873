"""Reference of the inverse by supernodes."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


def _inverse_shapes(
    start: Tensor,
    row_ptr: Tensor,
    rows: Tensor,
    l_ptr: Tensor,
    l_idx: Tensor,
    l_val: Tensor,
    u_ptr: Tensor,
    u_idx: Tensor,
    u_val: Tensor,
    mirror: int,
) -> Tensor:
    return l_val.new_empty(torch.library.get_ctx().new_dynamic_size())


@kernel(
    "supernodal_inverse(Tensor start, Tensor row_ptr, Tensor rows, Tensor l_ptr, Tensor l_idx, "
    "Tensor l_val, Tensor u_ptr, Tensor u_idx, Tensor u_val, int mirror) -> Tensor",
    fake=_inverse_shapes,
)
def supernodal_inverse(
    start: Tensor,
    row_ptr: Tensor,
    rows: Tensor,
    l_ptr: Tensor,
    l_idx: Tensor,
    l_val: Tensor,
    u_ptr: Tensor,
    u_idx: Tensor,
    u_val: Tensor,
    mirror: int,
) -> Tensor:
    """Z = (L U)^-1 in the columns J and the rows R of every supernode: Takahashi's equations.

    Args:
        start: First column of each supernode, and m, as `supernodes` finds them.
        row_ptr: Row pointers (supernodes + 1,).
        rows: The rows R of the supernodes.
        l_ptr: Column pointers (m + 1,) of L.
        l_idx: Row of every entry.
        l_val: Values, float32, float64 or complex; the diagonal counts as ones.
        u_ptr: Column pointers (m + 1,) of U.
        u_idx: Row of every entry; those on the diagonal are there.
        u_val: Values.
        mirror: 0; 1 if Z is known to be symmetric, or 2 if hermitian. Then L is read in J alone.

    Returns:
        For every supernode Z[J, J + R], row by row; and unless Z is mirrored, Z[R, J] transposed.
        This reference holds all of L, U and Z as dense matrices: it says what the compiled kernel
        finds, and is not called without that one.
    """
    m = l_ptr.shape[0] - 1
    lower, upper = l_val.new_zeros(m, m), l_val.new_zeros(m, m)
    for ptr, idx, val, out in ((l_ptr, l_idx, l_val, lower), (u_ptr, u_idx, u_val, upper)):
        column = torch.repeat_interleave(torch.arange(m, device=ptr.device), ptr.diff())
        out[idx.long(), column] = val
    lower = lower.tril(-1) + torch.eye(m, dtype=lower.dtype, device=lower.device)
    z, parts = torch.zeros_like(lower), []
    starts, row_starts = start.tolist(), row_ptr.tolist()
    for s in reversed(range(len(starts) - 1)):
        J = torch.arange(starts[s], starts[s + 1], device=start.device)
        R = rows[row_starts[s] : row_starts[s + 1]].long()
        own_l, own_u = lower[J][:, J], upper[J][:, J]
        N = torch.linalg.solve_triangular(own_u, upper[J][:, R], upper=True)
        Z = z[R][:, R]
        z[J[:, None], R] = -N @ Z
        if mirror:
            other = z[J][:, R].mT
            z[R[:, None], J] = other.conj() if mirror == 2 else other
        else:
            M = torch.linalg.solve_triangular(
                own_l, lower[R][:, J], upper=False, left=False, unitriangular=True
            )
            z[R[:, None], J] = -Z @ M
        inverse = torch.linalg.inv(own_l @ own_u)
        z[J[:, None], J] = inverse - N @ z[R][:, J]
        if not mirror:
            parts.append(z[R][:, J].mT.reshape(-1))
        parts.append(z[J][:, torch.cat([J, R])].reshape(-1))
    return torch.cat(parts[::-1]) if parts else l_val.new_empty(0)
