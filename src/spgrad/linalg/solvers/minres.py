"""The minimal residual method."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.protocol import named_options
from spgrad.linalg.solvers.vectors import inverse, scaled


@named_options
@dataclass(frozen=True)
class MINRES(Iterative):
    """Minimal residuals (Paige and Saunders, 1975), for hermitian matrices, indefinite ones too.

    The options are those of every iterative solver: rtol, atol, max_iter, preconditioner (which
    must be hermitian positive definite), strict and progress. A step takes one product with A;
    six vectors of the size of b are kept.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
        >>> x = spgrad.linalg.solve(A, torch.tensor([3.0, 3.0]), spgrad.linalg.MINRES())
        >>> torch.allclose(x, torch.ones(2), atol=1e-5)
        True
    """

    @property
    def hermitian(self) -> bool:
        """True, as the method needs a hermitian matrix."""
        return True

    def start(self, problem: Problem) -> Run:
        """The iteration before its first step."""
        return _Run(problem)


class _Run(Run):
    """Lanczos vectors v with z = M^-1 v, and two rotations; each step brings x up to date.

    The names are those of Elman, Silvester and Wathen (2014), algorithm 2.4: gamma is the norm of
    v, delta the diagonal of the tridiagonal matrix, eta the residual in the norm of M^-1. All v are
    divided by their norms; without a preconditioner, z is v.
    """

    why = "the preconditioner is not positive definite, or A is singular"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.x, self.v = problem.first()
        self.squares = problem.dot(self.v, self.v).real.contiguous()
        self.r = None if problem.apply is None else self.v.clone()
        y = problem.precondition(self.v)
        square = problem.dot(self.v, y).real
        self.broken = square < 0
        gamma = square.clamp(min=0).sqrt()
        one, zero = torch.ones_like(gamma), torch.zeros_like(gamma)
        # gamma, c and s of the last two steps, and eta
        self.state = torch.stack([gamma, one, one, zero, zero, gamma])
        self.z = scaled(y, inverse(gamma)) if problem.apply is not None else self.v
        self.v.mul_(inverse(gamma).to(self.v.dtype)[:, None])
        self.before: torch.Tensor | None = None
        self.w, self.w_before = torch.zeros_like(self.v), torch.zeros_like(self.v)

    def step(self, active: torch.Tensor) -> None:
        problem, z = self.problem, self.z
        v, delta = problem.times_and_dot(z)
        gamma = None if self.before is None else self.state[0]
        square = kernels.krylov_subtract(v, self.v, delta, self.before, gamma)
        y = None if self.r is None else problem.precondition(v)
        square = problem.A.total(square) if y is None else problem.dot(v, y)
        found = kernels.minres_step(
            self.x, v, z, y, self.w, self.w_before, self.r,
            self.state, square, delta, self.squares, active, self.broken,
        )  # fmt: skip
        self.squares = found if self.r is None else problem.A.total(found)
        self.w_before, self.w = self.w, self.w_before
        self.before, self.v = self.v, v
        if self.r is None:
            self.z = v
