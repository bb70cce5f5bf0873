"""Stabilised biconjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.linalg.solvers.iterative import (
    Iterative,
    Problem,
    Run,
    add_scaled,
    quotient,
    scaled,
)


@dataclass(frozen=True)
class BiCGSTAB(Iterative):
    """Stabilised biconjugate gradients (van der Vorst, 1992), for any square matrix.

    The options are those of every iterative solver: rtol, atol, max_iter, preconditioner (applied
    on the right), strict and progress. A step takes two products with A; eight vectors of the size
    of b are kept. The method restarts when its shadow residual becomes orthogonal to the residual.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [0.0, 3.0]]))
        >>> x = spgrad.linalg.solve(A, torch.tensor([5.0, 3.0]), spgrad.linalg.BiCGSTAB())
        >>> torch.allclose(x, torch.ones(2), atol=1e-5)
        True
    """

    def start(self, problem: Problem) -> Run:
        """The iteration before its first step."""
        return _Run(problem)


class _Run(Run):
    why = "the method broke down; GMRES does not"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.x, self.r = problem.first()
        self.shadow, self.p = self.r.clone(), self.r.clone()
        self.squares = problem.dot(self.r, self.r).real.contiguous()
        self.rho = problem.dot(self.shadow, self.r)
        self.shadow_norm = self.squares.sqrt()
        self.broken = torch.zeros_like(self.squares, dtype=torch.bool)
        self.eps = torch.finfo(self.r.dtype).eps

    def step(self, active: torch.Tensor) -> None:
        dot = self.problem.dot
        y = self.problem.precondition(self.p)
        v = self.problem.times(y)
        alpha = quotient(self.rho, dot(self.shadow, v), active)
        s = self.r
        kernels.krylov_residual(s, v, alpha)
        z = self.problem.precondition(s)
        t = self.problem.times(z)
        omega = quotient(dot(t, s), dot(t, t).real, active)
        add_scaled(add_scaled(self.x, y, alpha), z, omega)
        self.squares = self.problem.A.total(kernels.krylov_residual(self.r, t, omega))
        self.broken = self.broken | (active & (alpha == 0) & (omega == 0))

        rho = dot(self.shadow, self.r)
        lost = rho.abs() <= self.eps * self.squares.sqrt() * self.shadow_norm
        lost |= (omega == 0) | (alpha == 0)
        beta = quotient(rho * alpha, self.rho * omega, active & ~lost)
        # p = r + beta (p - omega v); beta = 0 starts anew with p = r
        self.p = add_scaled(scaled(self.p, beta), v, -beta * omega).add_(self.r)
        self.rho = rho
        lost &= active
        if bool(lost.any()):
            self.shadow = torch.where(lost[:, None], self.r, self.shadow)
            self.rho = torch.where(lost, self.squares.to(rho.dtype), rho)
            self.shadow_norm = torch.where(lost, self.squares.sqrt(), self.shadow_norm)
