"""Linear systems with A - e M on the complement of the eigenvectors that were found."""

from __future__ import annotations

import math

import torch

from spgrad.core.values import plain
from spgrad.errors import StateError
from spgrad.linalg.solvers.iterative import Problem, iterate
from spgrad.linalg.solvers.minres import MINRES
from spgrad.linalg.solvers.operators import Operator
from spgrad.linalg.spectral.arpack import Numbers

MOST_STEPS = 10_000
"""Steps of MINRES that one round of a derivative may take."""

ROUNDS = (0.85, 0.5, 0.5)
"""Each round solves for what the rounds before left over, to eps to this power.

Where an eigenvalue that was not found is near, MINRES can't reach the first tolerance, and its
steps beyond the best x spoil it. The second round then starts from zero.
"""

SETTLED = 16
"""A pair needs no further round if its residual is at most this many times the first tolerance."""


class Shifted(Operator):
    """e M - A for each pair (e, x) on the complement of all x, as the matrices of a batch.

    With sigma, both sides are multiplied with M (A - sigma M)^-1: the matrix is then
    (e - sigma) M (A - sigma M)^-1 M - M, whose preconditioned eigenvalues (e - e_j) / (e_j - sigma)
    are near -1 for all e_j far from sigma. No solve with A - e M itself is needed.
    """

    def __init__(
        self, numbers: Numbers, X: torch.Tensor, E: torch.Tensor, BX: torch.Tensor | None = None
    ) -> None:
        self.numbers, self.X, self.E = numbers, X, E
        self.BX = numbers.weigh(X) if BX is None else BX
        self.hermitian = True

    def part(self, at: torch.Tensor) -> Shifted:
        """The matrices of some of the pairs."""
        if at.shape == self.E.shape:
            return self
        return Shifted(self.numbers, self.X, self.E[at], self.BX)

    def dual(self, r: torch.Tensor) -> torch.Tensor:
        """The part of right-hand sides (m, k) that is orthogonal to the found eigenvectors.

        The rest is subtracted twice. Of a right-hand side that is nearly a found eigenvector, the
        first subtraction leaves rounding errors, in part along that eigenvector, where the system
        has no solution.
        """
        r = r - self.BX @ (self.X.mH @ r)
        return r - self.BX @ (self.X.mH @ r)

    def outside(self, y: torch.Tensor) -> torch.Tensor:
        """The part of vectors (m, k) that is M-orthogonal to the found eigenvectors."""
        return y - self.X @ (self.BX.mH @ y)

    def counts(self, g: torch.Tensor) -> torch.Tensor:
        """Which columns of a cotangent g (m, k) have more than rounding on the complement.

        Of a multiple of a found eigenvector, `dual` leaves a far smaller multiple of it, if no
        rounding of other elements hides that. The system is singular along that vector, so that
        it would answer with a number of any size.
        """
        eps = torch.finfo(self.E.dtype).eps
        taken = self.BX.norm(dim=0) @ (self.X.mH @ g).abs()
        return self.dual(g).norm(dim=0) > eps * (g.norm(dim=0) + taken)

    def right(self, g: torch.Tensor) -> torch.Tensor:
        """The right-hand side (m, k) for a cotangent g."""
        r = self.dual(g)
        if self.numbers.sigma is not None:
            r = self.dual(self.numbers.weigh(self.outside(self.numbers.inverse(r))))
        return r

    def product(self, y: torch.Tensor) -> torch.Tensor:
        """The matrices times their columns (m, k)."""
        numbers = self.numbers
        My = numbers.weigh(y)
        if numbers.sigma is None:
            return self.dual(My * self.E - numbers.times(y))
        turned = numbers.weigh(numbers.inverse(My))
        return self.dual(turned * (self.E - numbers.sigma) - My)

    def times(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """`product` for (k, m, 1), one column for each matrix of the batch."""
        return batched(self.product(columns(x)))

    def precondition(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """M^-1 r on the complement, for (k m, 1)."""
        k = self.E.shape[0]
        z = self.outside(self.numbers.weight_inverse(columns(r.view(k, -1, 1))))
        return batched(z).reshape(r.shape)


def columns(x: torch.Tensor) -> torch.Tensor:
    """(k, m, 1) as (m, k)."""
    return x.squeeze(-1).mT.contiguous()


def batched(y: torch.Tensor) -> torch.Tensor:
    """(m, k) as (k, m, 1)."""
    return y.mT.contiguous().unsqueeze(-1)


def complement_of(
    numbers: Numbers, g: torch.Tensor, X: torch.Tensor, E: torch.Tensor
) -> torch.Tensor:
    """Column by column, the sum over the eigenvectors not found of x_j (x_j^H g) / (e - e_j).

    MINRES solves for all columns at once; further rounds solve for the residual that it left,
    until that is rounding.
    """
    with torch.no_grad():
        g, X, E = (plain(t.detach()) for t in (g, X, E))
        y = torch.zeros_like(g)
        if X.shape[0] == X.shape[1]:
            return y
        matrix = Shifted(numbers, X, E)
        going = torch.nonzero(matrix.counts(g)).squeeze(-1)
        if going.numel():
            y[:, going] = _solved(matrix.part(going), g[:, going], going)
        return y


def _solved(matrix: Shifted, g: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    right = matrix.right(g)
    eps = torch.finfo(matrix.E.dtype).eps
    size = right.norm(dim=0)
    size = size.clamp(min=max(eps * float(size.max()), torch.finfo(matrix.E.dtype).tiny))
    y, left = torch.zeros_like(g), torch.ones_like(size)
    going = torch.arange(g.shape[1], device=g.device)
    most = min(MOST_STEPS, 10 * g.shape[0] + 100)
    rest = right
    for turn, rtol in enumerate(ROUNDS):
        part = matrix.part(going)
        options = MINRES(rtol=eps**rtol, max_iter=most, strict=False)
        apply = None if matrix.numbers.b is None else part.precondition
        found, _ = iterate(options, Problem(part, batched(rest), None, False, apply))
        trial = part.outside(y[:, going] + columns(found))
        after = part.dual(right[:, going] - part.product(trial))
        now = after.norm(dim=0) / size[going]
        better = now < left[going]
        y[:, going[better]], left[going[better]] = trial[:, better], now[better]
        rest = torch.where(better, after, rest)
        more = ~(now <= SETTLED * eps ** ROUNDS[0]) & (better | (turn == 0))
        if not bool(more.any()):
            break
        going, rest = going[more], rest[:, more]
    p, told = int(left.nan_to_num(nan=math.inf).argmax()), matrix.numbers.pencil.told
    if not float(left[p]) <= eps**0.6:
        place = told.place(int(pairs[p]), matrix.X.shape[1])
        raise StateError(
            f"the gradient of {told.vector} {place} did not converge (relative residual "
            f"{float(left[p]):.1e}): its {told.value} {told.number(float(matrix.E[p])):.8g} is "
            "nearly equal to one that was not asked for; a larger difference is accepted. Change "
            f"`k`, so that {told.value}s near one another are all found, or none of them.",
            function=told.function,
        )
    return y
