"""Least squares by Golub-Kahan bidiagonalisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad.errors import ArgumentValueError
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.vectors import add_product, add_scaled, inverse, quotient


@dataclass(frozen=True)
class LSMR(Iterative):
    """Least squares (Fong and Saunders, 2011), for matrices of any shape and rank.

    The options are those of every iterative solver, except for `preconditioner`, which LSMR does
    not take. The method is MINRES on the normal equations, whose condition number is the square of
    that of A. So other solvers take fewer steps for square systems. A step takes a product with A
    and one with A^H; five vectors are kept.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [0.0, 3.0]]))
        >>> x = spgrad.linalg.solve(A, torch.tensor([5.0, 3.0]), spgrad.linalg.LSMR())
        >>> torch.allclose(x, torch.ones(2), atol=1e-4)
        True
    """

    def start(self, problem: Problem) -> Run:
        """The iteration before its first step."""
        if self.preconditioner is not None:
            raise ArgumentValueError(
                "`preconditioner` is given for LSMR, which has none; None is accepted. Scale the "
                "columns of A instead."
            )
        return _Run(problem)


def _rotation(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """c, s and r with c a + s b = r and s a - c b = 0."""
    r = torch.hypot(a, b)
    shrunk = inverse(r)
    return (a * shrunk).masked_fill_(r == 0, 1), b * shrunk, r


class _Run(Run):
    """The names are those of the paper; `phi` has what the estimate of the residual needs."""

    why = "the Krylov space of A and b is exhausted"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        x0 = problem.x0
        self.u, beta = _normed(
            problem, problem.b.clone() if x0 is None else problem.b - problem.times(x0)
        )
        self.v, self.alpha = _normed(problem, problem.adjoint_times(self.u))
        self.x = torch.zeros_like(self.v) if x0 is None else x0.clone()
        self.h, self.h_bar = self.v.clone(), torch.zeros_like(self.v)
        one, zero = torch.ones_like(beta), torch.zeros_like(beta)
        self.alpha_bar, self.zeta_bar = self.alpha, self.alpha * beta
        self.rho, self.rho_bar, self.c_bar, self.s_bar, self.zeta = one, one, one, zero, zero
        self.phi = torch.stack([beta, zero, one, zero, zero])
        self.least = problem.least
        self.squares = self.zeta_bar**2 if self.least else beta**2
        if self.least:
            right = problem.adjoint_times(problem.b)
            self.norms = problem.dot(right, right).real.sqrt()
        self.broken = torch.zeros_like(beta, dtype=torch.bool)

    def step(self, active: torch.Tensor) -> None:
        u = self.problem.times(self.v)
        self.u, beta = _normed(self.problem, add_scaled(u, self.u, self.alpha, -1))
        v = self.problem.adjoint_times(self.u)
        self.v, self.alpha = _normed(self.problem, add_scaled(v, self.v, beta, -1))

        rho_before, rho_bar_before, zeta_before = self.rho, self.rho_bar, self.zeta
        c, s, self.rho = _rotation(self.alpha_bar, beta)
        theta, self.alpha_bar = s * self.alpha, c * self.alpha
        theta_bar = self.s_bar * self.rho
        self.c_bar, self.s_bar, self.rho_bar = _rotation(self.c_bar * self.rho, theta)
        self.zeta = self.c_bar * self.zeta_bar
        zeta_bar = -self.s_bar * self.zeta_bar
        self.broken = self.broken | (active & ((self.rho == 0) | (self.rho_bar == 0)))

        going = active > self.broken  # active, and not broken
        back = -(theta_bar * self.rho) * inverse(rho_before * rho_bar_before)
        add_product(self.h, self.h_bar, back)
        add_scaled(self.x, self.h_bar, quotient(self.zeta, self.rho * self.rho_bar, going))
        add_product(self.v, self.h, -theta * inverse(self.rho))
        self.zeta_bar = zeta_bar
        residual = None if self.least else self._residual(c, s, theta_bar, zeta_before)
        found = zeta_bar**2 if residual is None else residual
        self.squares = torch.where(going, found, self.squares)

    def _residual(self, *scalars: torch.Tensor) -> torch.Tensor:
        """The squared norm of b - A x (section 5.1 of the paper)."""
        c, s, theta_bar, zeta_before = scalars
        beta_dd, beta_d, rho_d, tau, theta_tilde = self.phi
        beta_hat, beta_dd = c * beta_dd, -s * beta_dd
        c_tilde, s_tilde, rho_tilde = _rotation(rho_d, theta_bar)
        tau = (zeta_before - theta_tilde * tau) * inverse(rho_tilde)
        theta_tilde, rho_d = s_tilde * self.rho_bar, c_tilde * self.rho_bar
        beta_d = -s_tilde * beta_d + c_tilde * beta_hat
        tau_d = (self.zeta - theta_tilde * tau) * inverse(rho_d)
        self.phi = torch.stack([beta_dd, beta_d, rho_d, tau, theta_tilde])
        return (beta_d - tau_d) ** 2 + beta_dd**2


def _normed(problem: Problem, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """v over its size, in place, and the size."""
    size = problem.dot(v, v).real.sqrt()
    return v.mul_(inverse(size).to(v.dtype)[:, None]), size
