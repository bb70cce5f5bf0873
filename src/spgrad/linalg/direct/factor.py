"""A factor that is kept by its user, for many solves."""

from __future__ import annotations

from typing import Any, cast

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, stored_values
from spgrad.errors import ArgumentValueError
from spgrad.linalg.assume import require_declared, require_true
from spgrad.linalg.determinant import inverse_by, logarithm, slogdet_by
from spgrad.linalg.direct.superlu import Factored, SuperLU
from spgrad.linalg.solve import Kept, System, require_finite, solve_with, system_operands
from spgrad.linalg.solvers.protocol import Applied, Assume, Prepared, Solver
from spgrad.ops.products.broadcast import flat, in_columns
from spgrad.ops.solves.triangular import square_operand
from spgrad.public import public_op


class _Given(Solver):
    """The solver that a factor is."""

    def __init__(self, prepared: Factored) -> None:
        self.prepared = prepared

    def prepare(self, A: SparseTensor, assume: Assume) -> Prepared:
        return self.prepared


class Factor(Applied):
    """LU factors of a sparse matrix; `spgrad.linalg.factor` makes them.

    Every method has the gradients of the function of its name, of the matrix too.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [2.0, 3.0]]))
        >>> F = spgrad.linalg.factor(A)
        >>> F.solve(torch.tensor([5.0, 5.0]))
        tensor([1., 1.])
    """

    def __init__(self, A: SparseTensor, assume: Assume) -> None:
        self._matrix = A
        self._assume: Assume = assume
        detached = SparseTensor(A._vals.detach(), A._pattern)
        require_finite("A", detached._vals)
        require_true(detached, assume)
        self._given = _Given(cast(Factored, SuperLU().prepare(detached, assume)))

    def solve(self, b: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """x with A x = b, or A^H x = b with `adjoint`; b is (*b, m) or (*b, m, n)."""
        T, right, _, vectors = system_operands(self._matrix, b, None, True)
        pattern = T._pattern
        columns, unfold = in_columns(pattern, right, pattern.matrix[0])
        system = System(pattern, Kept(self._given, "general", pattern), adjoint)
        x = unfold(solve_with(flat(T), columns, system), pattern.matrix[0])
        return x.squeeze(-1) if vectors else x

    def apply(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """What a preconditioner does; without gradient."""
        return self._given.prepared.solve(r, adjoint=adjoint)[0]

    def logdet(self) -> torch.Tensor:
        """As `spgrad.linalg.logdet`."""
        return logarithm(*self.slogdet())

    def slogdet(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As `spgrad.linalg.slogdet`."""
        return slogdet_by(self._matrix, self._given, "general")

    def inverse_at(self, pattern: Any) -> torch.Tensor:
        """As `spgrad.linalg.inverse_at`."""
        return inverse_by(self._matrix, pattern, self._given, "general")

    def refactor(self, A: torch.Tensor) -> Factor:
        """The factor of a matrix of the same pattern, without a new search for an order."""
        T = square_operand("A", A)
        if T._pattern is not self._matrix._pattern and not T._pattern.same_as(
            self._matrix._pattern
        ):
            raise ArgumentValueError(
                "`A` has another pattern than the factor; the same elements are accepted. Take "
                "spgrad.linalg.factor(A)."
            )
        if T._pattern is not self._matrix._pattern:
            T = from_values(stored_values(T), self._matrix._pattern)
        return Factor(T, self._assume)


@public_op
def factor(A: torch.Tensor, assume: Assume | None = None, engine: str | None = None) -> Factor:
    """LU factors of A, for many solves with one matrix; an order of its columns is kept.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        assume: What is known of A, as for `spgrad.linalg.solve`.
        engine: "superlu" or None, which is the same: SciPy's SuperLU.

    Returns:
        A `Factor`, with ``solve``, ``logdet``, ``slogdet``, ``inverse_at`` and ``refactor``.

    Gradient:
        That of the methods, of A at its pattern and of the right-hand sides.

    Cost:
        That of the engine. A second factor at the same `Pattern` object searches for no order.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square or has an element that is not finite, or `engine` is unknown.
        PivotError: `A` is singular.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [2.0, 3.0]]))
        >>> F = spgrad.linalg.factor(A)
        >>> F.refactor(A * 2).solve(torch.tensor([5.0, 5.0]))
        tensor([0.5000, 0.5000])
    """
    if engine not in (None, "superlu"):
        raise ArgumentValueError(f'`engine` is {engine!r}; "superlu" or None is accepted.')
    T = square_operand("A", A)
    if T._pattern.extent[0] == 0:
        hint = "An empty system needs no factor; spgrad.linalg.solve answers it."
        raise checks.bad_shape("A", tuple(T._pattern.shape), "a matrix with rows", hint)
    return Factor(T, require_declared(assume))
