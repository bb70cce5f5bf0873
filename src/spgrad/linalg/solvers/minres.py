"""The minimal residual method."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.vectors import add_scaled, inverse, quotient, scaled


@dataclass(frozen=True)
class MINRES(Iterative):
    """Minimal residuals (Paige and Saunders, 1975), for hermitian matrices, indefinite ones too.

    The options are those of every iterative solver: rtol, atol, max_iter, preconditioner (which
    must be hermitian positive definite), strict and progress. A step takes one product with A;
    seven vectors of the size of b are kept.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
        >>> x = spgrad.linalg.solve(A, torch.tensor([3.0, 3.0]), spgrad.linalg.MINRES())
        >>> torch.allclose(x, torch.ones(2), atol=1e-5)
        True
    """

    @property
    def hermitian(self) -> bool:
        """True: the method needs a hermitian matrix."""
        return True

    def start(self, problem: Problem) -> Run:
        """The iteration before its first step."""
        return _Run(problem)


class _Run(Run):
    """Lanczos vectors v with z = M^-1 v, and two rotations; each step brings x up to date.

    The names are those of Elman, Silvester and Wathen (2014), algorithm 2.4: gamma is the norm of
    v, delta the diagonal of the tridiagonal matrix, eta the residual in the norm of M^-1.
    """

    why = "the preconditioner is not positive definite, or A is singular"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.x, self.v = problem.first()
        self.squares = problem.dot(self.v, self.v).real.contiguous()
        self.z = problem.precondition(self.v)
        self.r = None if problem.apply is None else self.v.clone()
        square = problem.dot(self.v, self.z).real
        self.gamma = square.clamp(min=0).sqrt()
        self.eta = self.gamma
        self.before, self.w, self.w_before = (torch.zeros_like(self.v) for _ in range(3))
        self.inverse_before = self.c = self.c_before = torch.ones_like(self.gamma)
        self.s = self.s_before = torch.zeros_like(self.gamma)
        self.broken = square < 0

    def step(self, active: torch.Tensor) -> None:
        normed = inverse(self.gamma)
        z = scaled(self.z, normed)
        v, delta = self.problem.times_and_dot(z)
        delta = delta.real
        add_scaled(v, self.v, delta * normed, -1)
        add_scaled(v, self.before, self.gamma * self.inverse_before, -1)
        self.before, self.v = self.v, v
        self.z = self.problem.precondition(v)
        square = self.problem.dot(v, self.z).real
        gamma = square.clamp(min=0).sqrt()

        turned = self.c_before * self.gamma
        first = torch.addcmul(self.c * delta, turned, self.s, value=-1)
        second = torch.addcmul(self.s * delta, turned, self.c)
        third = self.s_before * self.gamma
        length = torch.hypot(first, gamma)
        self.broken = self.broken | (active & ((square < 0) | (length == 0)))
        shrunk = inverse(length)
        self.c_before, self.s_before = self.c, self.s
        self.c, self.s = first * shrunk, gamma * shrunk

        add_scaled(add_scaled(z, self.w_before, third, -1), self.w, second, -1)
        z.mul_(shrunk.to(z.dtype)[:, None])
        self.w_before, self.w = self.w, z
        going = active > self.broken  # active, and not broken
        add_scaled(self.x, z, (self.c * self.eta).masked_fill_(~going, 0))
        self.eta = torch.where(going, -self.s * self.eta, self.eta)
        self.inverse_before, self.gamma = normed, gamma
        self.squares = torch.where(going, self._squares(), self.squares)

    def _squares(self) -> torch.Tensor:
        if self.r is None:
            return self.eta**2
        # eta is the residual in another norm; the vector itself is s^2 r + eta c v / gamma
        share = quotient(self.eta * self.c, self.gamma, self.gamma > 0)
        self.r = add_scaled(scaled(self.r, self.s**2), self.v, share)
        return self.problem.dot(self.r, self.r).real
