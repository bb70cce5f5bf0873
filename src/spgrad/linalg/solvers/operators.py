"""Matrices as the iterative solvers know them: by their products with vectors (items, k, n)."""

from __future__ import annotations

from abc import abstractmethod

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.linalg.solvers.vectors import dot
from spgrad.lowering.products.diagonals import Repeated
from spgrad.lowering.products.spmm import multiply_and_dot, repeated_spmm, spmm


class Operator:
    """A matrix, or batch, known by its products with vectors (items, k, n).

    If a process has only some rows of the vectors, a subclass overrides `total` and `size`.
    """

    has_elements = False
    """Whether there is `magnitudes`, without which residuals can't be told from rounding."""

    @abstractmethod
    def times(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """A x, or A^H x."""

    def times_and_dot(
        self, x: torch.Tensor, adjoint: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A x, or A^H x, and the scalar product of x with it, of each column."""
        y = self.times(x, adjoint)
        return y, self.total(dot(x, y))

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """A sum over all rows of vectors, from the sum over the rows in this process."""
        return part

    def size(self, v: torch.Tensor) -> int:
        """The number of rows of vectors (items, m, n)."""
        return v.shape[1]

    @abstractmethod
    def magnitudes(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """|A| x, or |A^H| x, by the absolute values of the elements."""


class Matrix(Operator):
    """A square matrix or batch in this process."""

    has_elements = True

    def __init__(self, A: SparseTensor, hermitian: bool) -> None:
        pattern = A._pattern
        self.own = Repeated(plain(A._vals).reshape(-1), pattern)
        self.conj: Repeated | None = None
        self.hermitian = hermitian
        self.items = pattern.extent[0] // max(pattern.matrix[0], 1)

    def forget(self) -> None:
        """Drops the values in other orders: a backward needs that memory for its results."""
        self.own, self.conj = Repeated(self.own.vals, self.own.pattern), None

    def times(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """A x, or A^H x."""
        adjoint = adjoint and not self.hermitian
        matrix = self.own
        if adjoint and matrix.vals.is_complex():
            if self.conj is None:
                self.conj = Repeated(plain(matrix.vals.conj()), matrix.pattern)
            matrix = self.conj
        y = repeated_spmm(matrix, x.reshape(-1, x.shape[2]), adjoint)
        return y.view(self.items, -1, x.shape[2])

    def magnitudes(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """As `Operator.magnitudes`; takes O(nse) memory."""
        y = spmm(self.own.vals.abs(), x.reshape(-1, x.shape[2]), self.own.pattern, adjoint)
        return y.view(self.items, -1, x.shape[2])

    def times_and_dot(
        self, x: torch.Tensor, adjoint: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Operator.times_and_dot`."""
        found = None
        if self.hermitian or not adjoint:
            found = multiply_and_dot(self.own, x)
        return super().times_and_dot(x, adjoint) if found is None else found
