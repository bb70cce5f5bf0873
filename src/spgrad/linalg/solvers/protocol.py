"""What `spgrad.linalg.solve` asks of a solver, and an iterative solver of a preconditioner.

Neither of them uses autograd: the one derivative of all solvers is in `spgrad.linalg.solve`.

A matrix arrives as a SparseTensor (*b, m, m) without repeated elements and without a gradient. A
batch stands for the block-diagonal matrix of its items, so that right-hand sides are always of two
dimensions, (items m, n): those of the first item, then those of the second.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.public import public_as

Class = TypeVar("Class", bound=type)
Assume = Literal["general", "symmetric", "hermitian", "positive definite", "triangular"]
"""What the caller declares of a matrix; positive definite includes hermitian."""


def named_options(made: Class) -> Class:
    """A dataclass of options of `spgrad.linalg`, whose errors name it and list its options."""
    init: Any = made.__init__  # type: ignore[misc]
    made.__init__ = public_as(f"linalg.{made.__name__}")(init)  # type: ignore[misc]
    return made


@dataclass(frozen=True)
class Info:
    """How a solve ended.

    Attributes:
        iterations: Steps of the column that took most steps; 0 for a direct solver.
        residuals: Norm of b - A x over that of b, for each column of each item. NaN for direct
            solvers, which don't compute it.
        converged: Bool of the same shape: whether the residual is within the tolerances; True for
            direct solvers.
        reason: "direct", "converged", or why the iteration ended.
    """

    iterations: int
    residuals: torch.Tensor
    converged: torch.Tensor
    reason: str


class Prepared(ABC):
    """A solver with a matrix: its factor, its preconditioner, or anything else worth keeping."""

    @abstractmethod
    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        """x with A x = b, or A^H x = b with `adjoint`.

        Args:
            b: Dense (items m, n), of the dtype and on the device of the matrix.
            x0: Where an iteration starts, of the shape of `b`; direct solvers ignore it.
            adjoint: True solves with the conjugate transpose.

        Returns:
            x of the shape of `b`, and how it was found; ``residuals`` and ``converged`` there have
            the shape (items, n).
        """


class Solver(ABC):
    """Options of a way to solve linear systems; a frozen dataclass."""

    reads_matrix: ClassVar[bool] = True
    """False for one that has its result already, whatever has become of the matrix."""

    @abstractmethod
    def prepare(self, A: SparseTensor, assume: Assume) -> Prepared:
        """Does the work on A that all right-hand sides share, such as a factorisation."""


class Applied(ABC):
    """A preconditioner with a matrix."""

    @abstractmethod
    def apply(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """M^-1 r, or M^-H r with `adjoint`, where M approximates A and r is (items m, n).

        Without gradient: `spgrad.linalg.solve` has the derivative.
        """


class Preconditioner(ABC):
    """Options of an approximate inverse; a frozen dataclass."""

    @abstractmethod
    def prepare(self, A: SparseTensor) -> Applied:
        """Does the work on A that all applications share, such as a factorisation."""


def direct_info(b: torch.Tensor, items: int) -> Info:
    """The Info of a direct solver for right-hand sides (items m, n)."""
    shape = items, b.shape[1]
    unknown = torch.full(shape, math.nan, dtype=torch.float64, device=b.device)
    return Info(0, unknown, torch.ones(shape, dtype=torch.bool, device=b.device), "direct")
