"""References of the kernels of BiCGSTAB; vectors and scalars are as in `vectors`."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.solves.krylov.vectors import (
    add_product,
    add_scaled,
    quotient,
    squares_of,
)


@kernel(
    "bicgstab_move(Tensor(a!) x, Tensor(b!) r, Tensor p, Tensor q, Tensor over, Tensor under, "
    "Tensor active) -> (Tensor, Tensor)"
)
def bicgstab_move(
    x: Tensor, r: Tensor, p: Tensor, q: Tensor, over: Tensor, under: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """With the ratio over / under: x += ratio p, then r -= ratio q, in place.

    Args:
        x: Vectors (items, m, n).
        r: Vectors of the same shape and dtype.
        p: Likewise; may be r itself.
        q: Likewise.
        over: Scalars (items, n); of complex vectors complex128, else float64.
        under: Likewise.
        active: Bool (items, n); the ratio is 0 elsewhere, and where `under` is 0.

    Returns:
        The ratio, and the squared norms (items, n) of the new r, float64.
    """
    ratio = quotient(over, under, active)
    add_scaled(x, p, ratio)
    add_scaled(r, q, ratio, -1)
    return ratio, squares_of(r)


@kernel(
    "bicgstab_direction(Tensor(a!) p, Tensor(b!) shadow, Tensor(c!) least, Tensor r, Tensor v, "
    "Tensor rho, Tensor before, Tensor alpha, Tensor omega, Tensor squares, Tensor active, "
    "Tensor(d!) broken) -> Tensor"
)
def bicgstab_direction(
    p: Tensor,
    shadow: Tensor,
    least: Tensor,
    r: Tensor,
    v: Tensor,
    rho: Tensor,
    before: Tensor,
    alpha: Tensor,
    omega: Tensor,
    squares: Tensor,
    active: Tensor,
    broken: Tensor,
) -> Tensor:
    """p = r + beta (p - omega v), in place, with beta = rho alpha / (before omega).

    Where an active column has lost its shadow, or alpha or omega is 0, beta is 0, and r becomes
    the shadow.

    Args:
        p: Vectors (items, m, n).
        shadow: Vectors of the same shape and dtype.
        least: The norm of the residual that became the shadow, times the rounding unit, (items, n),
            float64: the shadow is lost where |rho| is at most this times the norm of r.
        r: Vectors like p: the residuals.
        v: Likewise: the product of A with the p that is given.
        rho: Scalar products of the shadow with r (items, n); of complex vectors complex128.
        before: Likewise, of the step before.
        alpha: The ratio of the first half of the step, of the dtype of rho.
        omega: That of the second half.
        squares: Squared norms of r, float64.
        active: Bool (items, n).
        broken: Bool (items, n), set to True where a column is active, and alpha and omega are 0.

    Returns:
        The scalar products of the shadow with r, like rho.
    """
    none = alpha * omega == 0
    broken.logical_or_(active & none & (alpha == omega))
    size = squares.sqrt()
    lost = (rho.abs() <= size * least) | none
    beta = quotient(rho * alpha, before * omega, active > lost)  # active, and not lost
    add_scaled(p, v, omega, -1)
    add_product(r, p, beta)
    lost = lost & active
    shadow.copy_(torch.where(lost[:, None], r, shadow))
    least.copy_(torch.where(lost, size * torch.finfo(r.dtype).eps, least))
    return torch.where(lost, squares.to(rho.dtype), rho)
