"""Reference of substitution with triangles whose elements lie on a few diagonals.

The triangle T has ones on its diagonal, and its other values by diagonals, as in `diagonals`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


@kernel(
    "substitute_diagonals(Tensor val, Tensor offsets, Tensor? scale, Tensor b, bool transpose)"
    " -> Tensor",
    fake=lambda val, offsets, scale, b, transpose: torch.empty_like(b),
)
def substitute_diagonals(
    val: Tensor, offsets: Tensor, scale: Tensor | None, b: Tensor, transpose: bool
) -> Tensor:
    """x with T x = scale * b, or scale * x for the x with T^T x = b.

    So S T x = b, or (S T)^T x = b, if S is the diagonal matrix of the inverses of `scale`.

    Args:
        val: Values of T by diagonals (diagonals, stride), without its ones; float32 or float64.
        offsets: Those of the diagonals (diagonals,), int64: 1, and 16 or more, or their negatives.
        scale: Factors (m,); None for ones.
        b: A vector (1, m, 1) of the dtype of `val`.
        transpose: Whether to solve with T^T.
    """
    m = b.shape[1]
    right = b.reshape(-1) if scale is None or transpose else scale * b.reshape(-1)
    x = right.clone()
    lower = offsets.shape[0] == 0 or int(offsets[0]) < 0
    rows = torch.arange(m, device=b.device)
    for i in rows if lower != transpose else rows.flip(0):
        j = i - offsets if transpose else i + offsets
        there = (j >= 0) & (j < m)
        by = val[there, j[there]] if transpose else val[there, i]
        x[i] -= (by * x[j[there]]).sum()
    return (x if scale is None or not transpose else scale * x).view(b.shape)
