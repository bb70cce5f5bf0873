"""Least squares by Golub-Kahan bidiagonalisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.errors import ArgumentValueError
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.protocol import named_options


@named_options
@dataclass(frozen=True)
class LSMR(Iterative):
    """Least squares (Fong and Saunders, 2011), for matrices of any shape and rank.

    The options are those of every iterative solver, except for `preconditioner`, which LSMR does
    not take. The method is MINRES on the normal equations, whose condition number is the square of
    that of A. So other solvers take fewer steps for square systems. A step takes a product with A
    and one with A^H; six vectors of the size of b are kept.

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


class _Run(Run):
    """The names are those of the paper."""

    why = "the Krylov space of A and b is exhausted"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        x0 = problem.x0
        self.u = problem.b.clone() if x0 is None else problem.b - problem.times(x0)
        squares = problem.dot(self.u, self.u).real.contiguous()
        beta = kernels.krylov_normalise(self.u, squares)
        self.v = problem.adjoint_times(self.u)
        of_v = problem.dot(self.v, self.v).real.contiguous()
        self.alpha = kernels.krylov_normalise(self.v, of_v)
        self.x = torch.zeros_like(self.v) if x0 is None else x0.clone()
        self.h, self.h_bar = self.v.clone(), torch.zeros_like(self.v)
        one, zero = torch.ones_like(beta), torch.zeros_like(beta)
        zeta_bar = self.alpha * beta
        # alpha_bar, zeta_bar, rho, rho_bar, c_bar, s_bar, zeta, and what the residual needs
        self.state = torch.stack(
            [self.alpha, zeta_bar, one, one, one, zero, zero, beta, zero, one, zero, zero]
        )
        self.least = problem.least
        self.squares = zeta_bar**2 if self.least else squares
        if self.least:
            right = problem.adjoint_times(problem.b)
            self.norms = problem.dot(right, right).real.sqrt()
        self.broken = torch.zeros_like(beta, dtype=torch.bool)

    def step(self, active: torch.Tensor) -> None:
        problem = self.problem
        u = problem.times(self.v)
        of_u = problem.A.total(kernels.krylov_subtract(u, self.u, self.alpha, None, None))
        beta = kernels.krylov_normalise(u, of_u)
        self.u = u
        v = problem.adjoint_times(u)
        of_v = problem.A.total(kernels.krylov_subtract(v, self.v, beta, None, None))
        self.v = v
        self.alpha, self.squares = kernels.lsmr_step(
            self.x, v, self.h, self.h_bar, self.state, beta, of_v, self.squares,
            active, self.broken, self.least,
        )  # fmt: skip
