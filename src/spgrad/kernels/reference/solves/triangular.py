"""Reference of the substitution with a triangular matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import in_view_order, row_numbers, row_pointers


def _fake_solve_triangular(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    b: Tensor,
    upper: bool,
    unit: bool,
    transpose: bool = False,
) -> tuple[Tensor, Tensor]:
    return b.new_empty(b.shape), b.new_empty(1, dtype=torch.int64)


@kernel(
    "solve_triangular(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor b, bool upper,"
    " bool unit, bool transpose=False) -> (Tensor, Tensor)",
    fake=_fake_solve_triangular,
)
def solve_triangular(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    b: Tensor,
    upper: bool,
    unit: bool,
    transpose: bool = False,
) -> tuple[Tensor, Tensor]:
    """x with T x = b, where T is one triangle of a square matrix; forward or back substitution.

    Entries of the other triangle are not read. The columns of a row are sorted and do not repeat.
    A zero on the diagonal, or none, is divided by as a zero.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,), float32, float64 or complex.
        b: Right-hand sides (m, n).
        upper: True for the upper triangle.
        unit: True where the diagonal counts as ones, whatever the entries on it are.
        transpose: True solves T^T x = b, column by column.

    Returns:
        x (m, n), and the first row with a zero or no element on the diagonal (1,), int64; -1 if
        there is none, or with `unit`.
    """
    m = ptr.shape[0] - 1
    row, weight = row_numbers(ptr, idx.shape[0]), in_view_order(val, perm)
    diagonal = weight.new_ones(m)
    if not unit:
        at = (idx == row).nonzero().squeeze(1)
        diagonal = torch.zeros_like(diagonal).index_copy_(0, row[at].long(), weight[at])
    kept = (idx > row if upper else idx < row).nonzero().squeeze(1)
    starts = row_pointers(row[kept], m).tolist()
    column, weight = idx[kept].long(), weight[kept]
    x = b.clone()
    for i in reversed(range(m)) if upper != transpose else range(m):
        those = slice(starts[i], starts[i + 1])
        if transpose:
            x[i] /= diagonal[i]
            x[column[those]] -= weight[those, None] * x[i]
        else:
            x[i] = (b[i] - weight[those] @ x[column[those]]) / diagonal[i]
    zero = diagonal == 0
    first = zero.int().argmax() if bool(zero.any()) else torch.tensor(-1, device="cpu")
    return x, first.to(dtype=torch.int64, device=b.device).view(1)
