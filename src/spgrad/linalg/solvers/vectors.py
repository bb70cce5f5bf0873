"""Arithmetic of the iterative solvers: vectors (items, m, n) and scalars (items, n).

Scalars stay on the device: what a division by zero or a breakdown leaves out is chosen by masks. A
comparison of two masks is one call: `a > b` is "a and not b", `a <= b` is "b, or not a".
"""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.kernels.reference.solves.krylov import vectors
from spgrad.lowering import align

dot = kernels.krylov_dot
add_scaled = vectors.add_scaled
inverse = vectors.inverse
quotient = vectors.quotient
scaled = vectors.scaled


def perhaps(where: torch.Tensor) -> bool:
    """Whether the condition may hold somewhere: the host asks the CPU, but never a device."""
    return align.asks_device(where) or bool(where.any())
