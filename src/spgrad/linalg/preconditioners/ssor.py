"""Symmetric successive over-relaxation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad.core.checks import require_number
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError
from spgrad.linalg.assume import diagonal_places, flat_diagonal
from spgrad.linalg.solvers.protocol import Applied, Preconditioner, named_options
from spgrad.ops.solves.triangular import KeptTriangle, Triangle


@named_options
@dataclass(frozen=True)
class SSOR(Preconditioner):
    """Symmetric successive over-relaxation (Young, 1971): two triangular solves.

    M = (D/w + L) (w / (2 - w)) D^-1 (D/w + U) for A = L + D + U; hermitian positive definite where
    A is.

    Attributes:
        omega: w, between 0 and 2; 1 is symmetric Gauss-Seidel.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> solver = spgrad.linalg.CG(preconditioner=spgrad.linalg.SSOR())
        >>> spgrad.linalg.solve(A, torch.tensor([5.0, 4.0]), solver).round(decimals=4)
        tensor([1., 1.])
    """

    omega: float = 1.0

    def prepare(self, A: SparseTensor) -> Applied:
        """Scales the diagonal."""
        require_number("omega", self.omega, "For example 1.0.")
        if not 0 < self.omega < 2:
            raise ArgumentValueError(
                f"`omega` is {self.omega}; numbers between 0 and 2 are accepted. For example 1.0."
            )
        return _Relaxed(A, self.omega)


class _Relaxed(Applied):
    def __init__(self, A: SparseTensor, omega: float) -> None:
        pattern = A._pattern
        diagonal = flat_diagonal(A)
        self.middle = ((2 - omega) / omega * diagonal)[:, None]
        vals = plain(A._vals).reshape(-1).clone()
        vals[diagonal_places(pattern)[1]] /= omega
        self.lower = KeptTriangle(vals, Triangle(pattern, False, False))
        self.upper = KeptTriangle(vals, Triangle(pattern, True, False))

    def apply(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        first, second = (self.upper, self.lower) if adjoint else (self.lower, self.upper)
        middle = self.middle.conj() if adjoint else self.middle
        return second.solve(first.solve(r, adjoint) * middle, adjoint)
