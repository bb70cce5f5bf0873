"""The generalised minimal residual method with restarts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad.core.checks import require_number
from spgrad.core.values import plain
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run, quotient


@dataclass(frozen=True)
class GMRES(Iterative):
    """Generalised minimal residuals (Saad and Schultz, 1986), for any square matrix.

    The options are those of every iterative solver: rtol, atol, max_iter, preconditioner (applied
    on the right), strict and progress. A step takes one product with A.

    Attributes:
        restart: Steps between restarts. With a larger number, fewer steps are needed in all; each
            step between two restarts keeps a vector of the size of b.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        >>> x = spgrad.linalg.solve(A, torch.tensor([1.0, -1.0]), spgrad.linalg.GMRES())
        >>> torch.allclose(x, torch.ones(2), atol=1e-5)
        True
    """

    restart: int = 30

    def start(self, problem: Problem) -> Run:
        """The iteration before its first step."""
        require_number("restart", self.restart, "For example 30.", least=1, whole=True)
        return _Run(problem, min(self.restart, max(problem.size(), 1)))


class _Run(Run):
    """Arnoldi vectors as rows, (items, n, restart + 1, m), orthogonalised twice.

    H has the Hessenberg matrices (items, n, restart + 1, restart). `null` is a row vector u with
    u H = 0 and u_0 = 1: the residual of the least squares problem is beta over its norm.
    """

    why = "A is singular, or a restart lost all progress; raise `restart`"

    def __init__(self, problem: Problem, restart: int) -> None:
        self.problem, self.restart = problem, restart
        self.b = problem.b
        self.x, r = problem.first()
        self.squares = problem.dot(r, r).real.contiguous()
        self.at_restart = torch.full_like(self.squares, torch.inf)
        self.broken = torch.zeros_like(self.squares, dtype=torch.bool)
        self.steps = 0
        self.basis: list[torch.Tensor] = []  # V, H and null; in a list, so that `keep` skips them

    def step(self, active: torch.Tensor) -> None:
        if not self.basis:
            self._begin(active)
            active = active & ~self.broken
        V, H, null = self.basis
        k = self.steps
        p = V[:, :, k].mT.contiguous()
        w = self.problem.times(self.problem.precondition(p)).mT.contiguous()
        inner = V[:, :, : k + 1]
        total = self.problem.A.total
        h = total(inner.conj() @ w[..., None])
        w = w - (inner.mT @ h).squeeze(-1)
        again = total(inner.conj() @ w[..., None])
        w = w - (inner.mT @ again).squeeze(-1)
        h = (h + again).squeeze(-1)
        size = torch.linalg.vector_norm(w, dim=-1)
        size = total(size.double().square()).sqrt().to(size.dtype)
        # a vector of rounding errors is no new direction: the space is exhausted, x is exact in it
        eps = torch.finfo(w.dtype).eps * 10
        whole = torch.linalg.vector_norm(h, dim=-1)
        size = torch.where(size <= eps * whole, 0, size)
        V[:, :, k + 1] = w * quotient(torch.ones_like(size), size, active)[..., None]
        H[:, :, : k + 1, k] = torch.where(active[..., None], h, 0)
        H[:, :, k + 1, k] = torch.where(active, size, 1)
        last = -(null[:, :, : k + 1] * h).sum(-1)
        null[:, :, k + 1] = quotient(last, size.to(last.dtype), active)
        lengths = torch.linalg.vector_norm(null[:, :, : k + 2], dim=-1).double()
        found = (self.beta / lengths).square()
        self.squares = torch.where(active, found, self.squares)
        self.steps += 1
        exact = active & (size == 0)
        if bool(exact.any()):
            self.finish()
            r = self.b - self.problem.times(self.x)
            self.squares = torch.where(active, self.problem.dot(r, r).real, self.squares)
        elif self.steps == self.restart:
            self.finish()

    def _begin(self, active: torch.Tensor) -> None:
        problem = self.problem
        r = self.b - problem.times(self.x)
        found = problem.dot(r, r).real
        # a cycle without any progress ends the iteration
        stuck = active & (found >= self.at_restart)
        self.broken = self.broken | stuck
        self.at_restart = found
        self.squares = torch.where(active, found, self.squares)
        self.beta = found.sqrt()
        items, m, n = r.shape
        V = r.new_zeros(items, n, self.restart + 1, m)
        H = r.new_zeros(items, n, self.restart + 1, self.restart)
        V[:, :, 0] = (
            r * quotient(torch.ones_like(found), self.beta, active).to(r.dtype)[:, None]
        ).mT
        null = r.new_zeros(items, n, self.restart + 1)
        null[:, :, 0] = 1
        self.basis, self.steps = [V, H, null], 0

    def finish(self) -> None:
        if not self.basis or not self.steps:
            return
        V, H, _ = self.basis
        k = self.steps
        Q, R = torch.linalg.qr(H[:, :, : k + 1, :k])
        right = Q[:, :, :1].mH * self.beta.to(Q.dtype)[..., None, None]
        diagonal = R.diagonal(dim1=-2, dim2=-1)
        tiny = diagonal.abs() <= torch.finfo(R.dtype).eps * R.abs().amax((-2, -1))[..., None]
        # a direction that A maps to zero is left out
        R = R + torch.diag_embed(tiny.to(R.dtype))
        right = torch.where(tiny[..., None], 0, right)
        y = torch.linalg.solve_triangular(R, right, upper=True)
        moved = (V[:, :, :k].mT @ y).squeeze(-1).mT
        self.x += self.problem.precondition(plain(moved))
        self.basis = []
