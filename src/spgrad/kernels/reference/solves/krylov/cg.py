"""References of the kernels of conjugate gradients; vectors and scalars are as in `vectors`."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.solves.krylov.vectors import (
    add_product,
    add_scaled,
    quotient,
    real,
    squares_of,
)


@kernel(
    "cg_residual(Tensor(a!) r, Tensor(b!) alpha, Tensor q, Tensor rho, Tensor curvature, "
    "Tensor active, Tensor(c!) broken) -> Tensor"
)
def cg_residual(
    r: Tensor,
    alpha: Tensor,
    q: Tensor,
    rho: Tensor,
    curvature: Tensor,
    active: Tensor,
    broken: Tensor,
) -> Tensor:
    """alpha = rho / curvature, then r -= alpha q, in place; the squared norms of the new r.

    These are (items, n), float64. Of complex scalars the real part is taken.

    Args:
        r: Vectors (items, m, n).
        alpha: Scalars (items, n), float64.
        q: A p, vectors of the same shape and dtype as r.
        rho: Scalar products of r and z (items, n).
        curvature: Scalar products of p and q (items, n).
        active: Bool (items, n); alpha is 0 elsewhere.
        broken: Bool (items, n), set to True where a column is active and not both scalars are
            positive; alpha is 0 there too.
    """
    rho, curvature = real(rho), real(curvature)
    positive = torch.minimum(curvature, rho) > 0
    broken.logical_or_(active > positive)  # active, and not positive
    alpha.copy_(quotient(rho, curvature, active & positive))
    add_scaled(r, q, alpha, -1)
    return squares_of(r)


@kernel(
    "cg_direction(Tensor(a!) x, Tensor(b!) p, Tensor z, Tensor alpha, Tensor rho, Tensor before, "
    "Tensor active) -> ()"
)
def cg_direction(
    x: Tensor, p: Tensor, z: Tensor, alpha: Tensor, rho: Tensor, before: Tensor, active: Tensor
) -> None:
    """x += alpha p, then p = z + (rho / before) p, in place.

    Args:
        x: Vectors (items, m, n).
        p: Vectors of the same shape and dtype.
        z: Likewise.
        alpha: Scalars (items, n), float64.
        rho: Scalars (items, n), of which the real part is taken.
        before: Likewise, of the step before.
        active: Bool (items, n); p = z elsewhere, and where `before` is 0.
    """
    beta = quotient(real(rho), real(before), active)
    add_scaled(x, p, alpha)
    add_product(z, p, beta)
