"""Reference of the kernel of LSMR; vectors and scalars are as in `vectors`."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.solves.krylov.vectors import (
    add_product,
    add_scaled,
    inverse,
    krylov_normalise,
    quotient,
)


@kernel(
    "lsmr_step(Tensor(a!) x, Tensor(b!) v, Tensor(c!) h, Tensor(d!) h_bar, Tensor(e!) state, "
    "Tensor beta, Tensor of_v, Tensor squares, Tensor active, Tensor(f!) broken, bool least) "
    "-> (Tensor, Tensor)"
)
def lsmr_step(
    x: Tensor,
    v: Tensor,
    h: Tensor,
    h_bar: Tensor,
    state: Tensor,
    beta: Tensor,
    of_v: Tensor,
    squares: Tensor,
    active: Tensor,
    broken: Tensor,
    least: bool,
) -> tuple[Tensor, Tensor]:
    """The two rotations of a step, x and its directions after it, and v over its norm, in place.

    The names are those of Fong and Saunders (2011). Vectors are (items, m, n), of one dtype.
    Scalars are (items, n), float64.

    Args:
        x: The solution so far.
        v: The next vector of the bidiagonalisation, which is divided by its norm.
        h: The direction of the step.
        h_bar: The direction that is added to x.
        state: (12, items, n): alpha_bar, zeta_bar, rho, rho_bar, c_bar, s_bar, zeta, and for the
            norm of the residual beta_dd, beta_d, rho_d, tau and theta_tilde.
        beta: The norm of u.
        of_v: The squared norm of v.
        squares: Squared norms of the residuals.
        active: Bool (items, n); x and `squares` stay as they are elsewhere.
        broken: Bool (items, n), set to True where a column is active and can't go on.
        least: Whether the residuals are A^H (b - A x), not b - A x.

    Returns:
        alpha, which is the norm of v, and squared norms of the residuals after the step.
    """
    alpha = krylov_normalise(v, of_v)
    alpha_bar, zeta_bar, rho, rho_bar, c_bar, s_bar, zeta_before, *rest = state.clone()
    rhos_before = rho * rho_bar
    c, s, rho = _rotation(alpha_bar, beta)
    theta, alpha_bar = s * alpha, c * alpha
    theta_bar = s_bar * rho
    c_bar, s_bar, rho_bar = _rotation(c_bar * rho, theta)
    zeta, zeta_bar = c_bar * zeta_bar, -s_bar * zeta_bar
    broken.logical_or_(active & ((rho == 0) | (rho_bar == 0)))
    going = active > broken  # active, and not broken

    add_product(h, h_bar, -(theta_bar * rho) * inverse(rhos_before))
    add_scaled(x, h_bar, quotient(zeta, rho * rho_bar, going))
    add_product(v, h, -theta * inverse(rho))
    found = zeta_bar**2
    if not least:  # the squared norm of b - A x (section 5.1 of the paper)
        beta_dd, beta_d, rho_d, tau, theta_tilde = rest
        beta_hat, beta_dd = c * beta_dd, -s * beta_dd
        c_tilde, s_tilde, rho_tilde = _rotation(rho_d, theta_bar)
        tau = (zeta_before - theta_tilde * tau) * inverse(rho_tilde)
        theta_tilde, rho_d = s_tilde * rho_bar, c_tilde * rho_bar
        beta_d = -s_tilde * beta_d + c_tilde * beta_hat
        tau_d = (zeta - theta_tilde * tau) * inverse(rho_d)
        found = (beta_d - tau_d) ** 2 + beta_dd**2
        rest = [beta_dd, beta_d, rho_d, tau, theta_tilde]
    torch.stack([alpha_bar, zeta_bar, rho, rho_bar, c_bar, s_bar, zeta, *rest], out=state)
    return alpha, torch.where(going, found, squares)


def _rotation(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """c, s and r with c a + s b = r and s a - c b = 0."""
    r = torch.hypot(a, b)
    shrunk = inverse(r)
    return (a * shrunk).masked_fill_(r == 0, 1), b * shrunk, r
