"""Conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.protocol import named_options
from spgrad.linalg.solvers.vectors import add_scaled


@named_options
@dataclass(frozen=True)
class CG(Iterative):
    """Conjugate gradients (Hestenes and Stiefel, 1952), for hermitian positive definite matrices.

    The options are those of every iterative solver: rtol, atol, max_iter, preconditioner (which
    must be hermitian positive definite too), strict and progress. A step takes one product with A;
    four vectors of the size of b are kept, and of a matrix of a few diagonals a copy.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> b = torch.tensor([5.0, 4.0])
        >>> x, info = spgrad.linalg.solve(A, b, spgrad.linalg.CG(), return_info=True)
        >>> info.iterations, info.reason
        (2, 'converged')
    """

    @property
    def hermitian(self) -> bool:
        """True, as the method needs a hermitian matrix."""
        return True

    def start(self, problem: Problem) -> Run:
        """The iteration before its first step."""
        return _Run(problem)


class _Run(Run):
    why = "A, or the preconditioner, is not positive definite"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.x, self.r = problem.first()
        self.squares = problem.dot(self.r, self.r).real.contiguous()
        z = problem.precondition(self.r)
        self.rho = self.squares if z is self.r else problem.dot(self.r, z)
        self.p = z.clone()
        self.alpha = torch.zeros_like(self.squares)  # of the last step, not yet added to x
        self.broken = torch.zeros_like(self.squares, dtype=torch.bool)
        self.begun = False

    def step(self, active: torch.Tensor) -> None:
        if self.begun:
            z = self.problem.precondition(self.r)
            rho = self.squares if z is self.r else self.problem.dot(self.r, z)
            # adds the last step to x and finds the new direction in one pass over p
            kernels.cg_direction(self.x, self.p, z, self.alpha, rho, self.rho, active)
            self.rho = rho
        self.begun = True
        q, curvature = self.problem.times_and_dot(self.p)
        squares = kernels.cg_residual(
            self.r, self.alpha, q, self.rho, curvature, active, self.broken
        )
        self.squares = self.problem.A.total(squares)

    def finish(self) -> None:
        add_scaled(self.x, self.p, self.alpha)
        self.alpha.zero_()
