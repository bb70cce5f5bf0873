"""Stabilised biconjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.vectors import add_product, add_scaled, perhaps, quotient


@dataclass(frozen=True)
class BiCGSTAB(Iterative):
    """Stabilised biconjugate gradients (van der Vorst, 1992), for any square matrix.

    The options are those of every iterative solver: rtol, atol, max_iter, preconditioner (applied
    on the right), strict and progress. A step takes two products with A; six vectors of the size of
    b are kept. The method restarts when its shadow residual becomes orthogonal to the residual.

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
        self.eps = torch.finfo(self.r.dtype).eps
        self.least = self.squares.sqrt() * self.eps
        self.broken = torch.zeros_like(self.squares, dtype=torch.bool)

    def step(self, active: torch.Tensor) -> None:
        problem, r = self.problem, self.r
        y = problem.precondition(self.p)
        v = problem.times(y)
        alpha = quotient(self.rho, problem.dot(self.shadow, v), active)
        add_scaled(self.x, y, alpha)
        del y
        kernels.krylov_residual(r, v, alpha)  # r is the residual after half of the step
        z = problem.precondition(r)
        if z is r:
            t, along = problem.times_and_dot(r)
        else:
            t = problem.times(z)
            along = problem.dot(r, t)
        omega = quotient(along.conj(), problem.dot(t, t).real, active)
        add_scaled(self.x, z, omega)
        self.squares = problem.A.total(kernels.krylov_residual(r, t, omega))
        none = alpha * omega == 0
        self.broken = self.broken | (active & none & (alpha == omega))

        rho = problem.dot(self.shadow, r)
        lost = (rho.abs() <= self.squares.sqrt() * self.least) | none
        beta = quotient(rho * alpha, self.rho * omega, active > lost)  # active, and not lost
        # p = r + beta (p - omega v); beta = 0 starts anew with p = r
        add_scaled(self.p, v, omega, -1)
        add_product(r, self.p, beta)
        self.rho = rho
        lost = lost & active
        if perhaps(lost):
            self.shadow = torch.where(lost[:, None], r, self.shadow)
            self.rho = torch.where(lost, self.squares.to(rho.dtype), rho)
            self.least = torch.where(lost, self.squares.sqrt() * self.eps, self.least)
