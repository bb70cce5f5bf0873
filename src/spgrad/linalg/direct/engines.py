"""What spgrad asks of an engine: a package that factors sparse matrices.

An engine is a `Solver`, so that `solve` takes it, and its work has two parts. The part that needs
the pattern alone, such as an order of the rows, is kept on the `Pattern` and serves the factors of
all matrices on this pattern. The part that needs the values is a `Factored`. Neither part uses
autograd.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError, PivotError
from spgrad.linalg.solvers.protocol import Prepared, Solver
from spgrad.linalg.structure import LARGEST
from spgrad.lowering.views import cols, rows


class SingularError(PivotError):
    """A matrix has no factor because it is singular; its determinant is 0."""


class Triangles(NamedTuple):
    """L without its unit diagonal and U, element by element, and the order of rows and columns."""

    row: torch.Tensor
    column: torch.Tensor
    val: torch.Tensor
    to_row: torch.Tensor  # where each row of A stands in L U
    to_column: torch.Tensor


class Columns(NamedTuple):
    """L with its unit diagonal and U in CSC (ptr, idx, val), and the order of rows and columns."""

    lower: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    upper: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    to_row: torch.Tensor
    to_column: torch.Tensor
    mirror: int
    """1 if L U is symmetric, 2 if it is hermitian, else 0; for `kernels.supernodal_inverse`."""


@dataclass(frozen=True)
class Selected(ABC):
    """Elements of the inverse (L U)^-1 at the pattern of the factors."""

    to_row: torch.Tensor  # where each row of A stands in L U
    to_column: torch.Tensor

    @abstractmethod
    def elements(
        self, row: torch.Tensor, column: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Elements (row, column), and the position of each among those found; -1 if not found."""


class Factored(Prepared):
    """A factor of a matrix, or of the block-diagonal matrix of a batch.

    Attributes:
        items: Number of matrices in the batch.
        size: Rows of the block-diagonal matrix.
        dtype: Of the matrix.
        selected: Elements of the inverse, once they were asked for.
        determinant: What `log_determinant` gives, once it was asked for.
    """

    selected: Selected | None = None
    determinant: tuple[torch.Tensor, torch.Tensor] | None = None

    def __init__(self, A: SparseTensor) -> None:
        self.size, self.dtype = A._pattern.extent[0], A._vals.dtype
        self.items = self.size // max(A._pattern.matrix[0], 1)

    @abstractmethod
    def log_determinant(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sign and logarithm of the absolute determinant of every item (items,)."""

    @abstractmethod
    def inverse_root(self, z: torch.Tensor) -> torch.Tensor:
        """B z with B B^H = A^-1, for a hermitian positive definite A; z is (items m, n)."""

    def columns(self) -> Columns | None:
        """The factors of the matrix in CSC; None if the engine does not give them so."""
        return None

    def triangles(self) -> Triangles | None:
        """The factors of the matrix; None if the engine does not give them."""
        return None


@dataclass(frozen=True)
class Engine(Solver):
    """Options of a package that factors matrices."""

    name: ClassVar[str]
    """What `spgrad.linalg.factor` calls it."""


class Lines(NamedTuple):
    """A matrix by rows or by columns, in order, with every element of the diagonal."""

    ptr: torch.Tensor
    idx: torch.Tensor
    places: torch.Tensor  # of each element among the flat values; their number if A lacks it


def lines_of(pattern: Pattern, *, by_rows: bool, half: bool) -> Lines:
    """The lines of a matrix, or with `half` the part from the diagonal on; int64, on the CPU."""
    view = rows(pattern) if by_rows else cols(pattern)
    size, elements = pattern.extent[0], view.idx.shape[0]
    line = kernels.expand(view.ptr, elements).to("cpu", torch.int64)
    across = view.idx.to("cpu", torch.int64)
    place = (
        torch.arange(elements, device="cpu")
        if view.perm is None
        else view.perm.to("cpu", torch.int64)
    )
    if half:
        kept = torch.nonzero(across >= line).squeeze(-1)
        line, across, place = line[kept], across[kept], place[kept]
    absent = torch.ones(size, dtype=torch.bool, device="cpu")
    absent[line[line == across]] = False
    added = torch.nonzero(absent).squeeze(-1)
    line, across = torch.cat((line, added)), torch.cat((across, added))
    place = torch.cat((place, torch.full_like(added, elements)))
    key = line * size + across
    if not bool((key[1:] > key[:-1]).all()):
        order = torch.argsort(key)
        line, across, place = line[order], across[order], place[order]
    ptr = torch.zeros(size + 1, dtype=torch.int64, device="cpu")
    ptr[1:] = torch.bincount(line, minlength=size).cumsum(0)
    return Lines(ptr, across, place)


def values_at(A: SparseTensor, lines: Lines) -> torch.Tensor:
    """The values of these lines, 0 where A has no element; on the CPU."""
    vals = plain(A._vals).reshape(-1).cpu()
    return torch.cat((vals, vals.new_zeros(1)))[lines.places]


def coordinates(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column, in the block-diagonal matrix, of each flat value."""
    view = rows(pattern)
    row = kernels.expand(view.ptr, view.idx.shape[0]).to(torch.int64)
    column = view.idx.to(torch.int64)
    if view.perm is None:
        return row, column
    perm = view.perm.to(torch.int64)
    return torch.empty_like(row).scatter_(0, perm, row), torch.empty_like(row).scatter_(
        0, perm, column
    )


_ITERATIVE = "Take an iterative solver, such as solver=spgrad.linalg.BiCGSTAB()."


def require_int32(engine: str, pattern: Pattern, hint: str = _ITERATIVE) -> None:
    """Refuses a matrix with more elements than an engine's 32-bit integers can count."""
    if pattern.elements > LARGEST:
        raise ArgumentValueError(
            f"`A` has {pattern.elements} elements; {engine} accepts at most 2^31 - 1. {hint}"
        )


_DECLARED = "Leave `assume` out and take engine=None, which is spgrad.linalg.SuperLU()."


def indefinite(engine: str, hint: str = _DECLARED) -> PivotError:
    """The error for a matrix that has to be positive definite, as was declared, and is not."""
    return PivotError(
        f"`A` is not positive definite: {engine} found a pivot that is not positive; positive "
        f"definite matrices are accepted. {hint}"
    )
