"""Stabilised biconjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.protocol import named_options


@named_options
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
        self.least = self.squares.sqrt() * torch.finfo(self.r.dtype).eps
        self.broken = torch.zeros_like(self.squares, dtype=torch.bool)

    def step(self, active: torch.Tensor) -> None:
        problem, x, r = self.problem, self.x, self.r
        y = problem.precondition(self.p)
        v = problem.times(y)
        under = problem.dot(self.shadow, v)
        # r is the residual after half of the step
        alpha, _ = kernels.bicgstab_move(x, r, y, v, self.rho, under, active)
        del y
        z = problem.precondition(r)
        if z is r and not r.is_complex():
            t, over = problem.times_and_dot(r)
        else:
            t = problem.times(z)
            over = problem.dot(t, r)
        omega, squares = kernels.bicgstab_move(x, r, z, t, over, problem.dot(t, t), active)
        self.squares = problem.A.total(squares)
        del z, t
        self.rho = kernels.bicgstab_direction(
            self.p, self.shadow, self.least, r, v, problem.dot(self.shadow, r), self.rho,
            alpha, omega, self.squares, active, self.broken,
        )  # fmt: skip
