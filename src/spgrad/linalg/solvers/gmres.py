"""The generalised minimal residual method with restarts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.core.checks import require_number
from spgrad.core.values import plain
from spgrad.linalg.solvers.iterative import Iterative, Problem, Run
from spgrad.linalg.solvers.protocol import named_options
from spgrad.linalg.solvers.vectors import perhaps, quotient, scaled
from spgrad.lowering import align


@named_options
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
        return _Run(problem, min(self.restart, problem.size()))


class _Run(Run):
    """Arnoldi vectors as rows of V, (items n, restart + 1, m), and H with A V = V H.

    H has the Hessenberg matrices (items n, restart + 1, restart). `null` is a row vector u with
    u H = 0 and u_0 = 1: the residual of the least squares problem is beta over its norm. A column
    that converges goes on to the end of the cycle, which only makes its residual smaller.
    """

    why = "A is singular, or a restart lost all progress; raise `restart`"

    def __init__(self, problem: Problem, restart: int) -> None:
        self.problem, self.restart = problem, restart
        self.b = problem.b
        self.x, r = problem.first()
        self.squares = problem.dot(r, r).real.contiguous()
        self.at_restart = torch.full_like(self.squares, torch.inf)
        self.broken = torch.zeros_like(self.squares, dtype=torch.bool)
        self.exhausted = self.broken  # where x is exact in the space, as far as A allows
        self.basis: list[torch.Tensor] = []  # V, H and null; in a list, so that `keep` skips them

    def step(self, active: torch.Tensor) -> None:
        if not self.basis:
            self._begin(active)
            active = active > self.broken  # active, and not broken
        V, H, null = self.basis
        k, total = self.steps, self.problem.A.total
        p = V[:, k].view(*active.shape, -1).mT.contiguous()
        w = self.problem.times(self.problem.precondition(p)).mT.contiguous()
        w = w.view(active.numel(), p.shape[1])
        # a second pass removes what rounding leaves of the rows in w
        h = total(kernels.gmres_project(w, V, None, k + 1))
        again = total(kernels.gmres_project(w, V, h, k + 1))
        of_w = total(kernels.gmres_subtract(w, V, again, k + 1))
        self.squares = kernels.gmres_extend(
            V, H, null, self.lengths, self.exhausted, w, h, again, of_w, self.beta, active, k
        )
        self.steps += 1
        if self.steps == self.restart or (not align.asks_device(w) and bool(self.exhausted.any())):
            self.finish()

    def _begin(self, active: torch.Tensor) -> None:
        problem = self.problem
        r = self.b - problem.times(self.x)
        found = problem.dot(r, r).real
        # a cycle without any progress ends the iteration
        stuck = active & (found >= self.at_restart)
        self.broken = self.broken | stuck
        self.at_restart = found
        self.squares = self.beta = torch.where(active, found, self.squares)
        self.lengths = torch.ones_like(found)
        self.exhausted = torch.zeros_like(self.broken)
        m, count = r.shape[1], active.numel()
        V = r.new_zeros(count, self.restart + 1, m)
        H = r.new_zeros(count, self.restart + 1, self.restart)
        one = torch.ones_like(found)
        r = scaled(r, quotient(one, found.sqrt(), active > self.broken))
        V[:, 0] = r.mT.reshape(count, m)
        null = torch.zeros_like(H[:, :, 0], dtype=problem.dot(r, r).dtype)
        null[:, 0].fill_(1)
        self.basis, self.steps = [V, H, null], 0

    def finish(self) -> None:
        if not self.basis:
            return
        V, H, _ = self.basis
        k, shape = self.steps, self.beta.shape
        Q, R = torch.linalg.qr(H[:, : k + 1, :k])
        right = Q[:, :1].mH * self.beta.sqrt().to(Q.dtype).view(-1, 1, 1)
        diagonal = R.diagonal(dim1=-2, dim2=-1)
        tiny = diagonal.abs() <= torch.finfo(R.dtype).eps * R.abs().amax((-2, -1))[..., None]
        # a direction that A maps to zero is left out
        R = R + torch.diag_embed(tiny.to(R.dtype))
        right = torch.where(tiny[..., None], 0, right)
        y = torch.linalg.solve_triangular(R, right, upper=True)
        moved = torch.bmm(V[:, :k].mT, y).view(*shape, -1).mT
        self.x += self.problem.precondition(plain(moved))
        self.basis = []
        if perhaps(self.exhausted):  # their residual is not zero if A is singular
            r = self.b - self.problem.times(self.x)
            self.squares = torch.where(self.exhausted, self.problem.dot(r, r).real, self.squares)
