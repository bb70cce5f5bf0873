"""A factor that its user keeps, for many solves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, from_values, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.linalg.assume import require_declared, require_true
from spgrad.linalg.determinant import diagonal_by, inverse_by, logarithm, slogdet_by
from spgrad.linalg.direct.cholmod import CHOLMOD
from spgrad.linalg.direct.engines import Engine, Factored
from spgrad.linalg.direct.pardiso import PARDISO
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.solve import Kept, System, require_finite, solve_with, system_operands
from spgrad.linalg.solvers.protocol import Applied, Assume, Prepared, Solver
from spgrad.lowering.operands import dense_operand
from spgrad.ops.products.broadcast import flat, in_columns
from spgrad.ops.solves.triangular import square_operand
from spgrad.public import public_as
from spgrad.torch_protocol.compile import keep_outside

_ENGINES: tuple[type[Engine], ...] = (SuperLU, CHOLMOD, PARDISO)


class _Given(Solver):
    """A solver whose factor is there already: `prepare` returns it."""

    reads_matrix = False

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    def prepare(self, A: SparseTensor, assume: Assume) -> Prepared:
        return self.prepared


class Factor(Applied):
    """Factors of a sparse matrix; `spgrad.linalg.factor` makes them.

    `solve`, `logdet`, `slogdet`, `inverse_at` and `inverse_diagonal` have the gradients of the
    functions of the same names, also with respect to the matrix.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [2.0, 3.0]]))
        >>> F = spgrad.linalg.factor(A)
        >>> F.solve(torch.tensor([5.0, 5.0]))
        tensor([1., 1.])
    """

    def __init__(
        self,
        A: SparseTensor,
        assume: Assume,
        engine: Engine,
        factored: SparseTensor | None = None,
    ) -> None:
        self._matrix = A
        self._assume: Assume = assume
        self._engine = engine
        self._solver: Solver = engine
        self._numbers = factored
        """A as it is factored, which a later change of A in place leaves as it is."""
        # the functions of torch.func know the numbers only in each operation, which factors then;
        # a matrix without rows has nothing to factor
        if is_functorch_wrapped_tensor(A._vals) or A._pattern.extent[0] == 0:
            return
        if factored is None:
            factored = SparseTensor(A._vals.detach().clone(), A._pattern)
            require_finite("A", factored._vals)
            require_true(factored, assume)
        self._numbers = factored
        self._solver = _Given(engine.prepare(factored, assume))

    def __repr__(self) -> str:
        pattern = self._matrix._pattern
        sizes = f"shape={tuple(pattern.shape)}, nse={pattern.nse}"
        return f"Factor({sizes}, assume={self._assume!r}, engine={type(self._engine).__name__})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is factored anew, as the packages that factor do not let their factors be read."""
        return Factor, (self._matrix, self._assume, self._engine, self._numbers)

    def _factored(self) -> Factored:
        if not isinstance(self._solver, _Given):
            raise UnsupportedError(
                "the factor was made inside of a transform of torch.func, such as vmap, where its "
                "numbers are not known; one from outside is accepted. Call "
                "spgrad.linalg.factor before."
            )
        return cast(Factored, self._solver.prepared)

    @public_as("linalg.Factor.solve")
    def solve(self, b: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """x with A x = b, or A^H x = b with `adjoint`; b is (*b, m) or (*b, m, n)."""
        T, right, _, vectors = system_operands(self._matrix, b, None, True)
        pattern = T._pattern
        columns, unfold = in_columns(pattern, right, pattern.matrix[0])
        system = System(pattern, Kept(self._solver, self._assume, pattern), adjoint)
        x = unfold(solve_with(flat(T), columns, system), pattern.matrix[0])
        return as_result(x.squeeze(-1)) if vectors else x

    @public_as("linalg.Factor.apply")
    def apply(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """A^-1 r, or A^-H r with `adjoint`, as a preconditioner applies it; without gradient.

        r is (rows, n), with the rows of all matrices of a batch one after the other. The result has
        its dtype, so that a factor of float32 may serve a system of float64.
        """
        own, rows = self._matrix._vals, self._matrix._pattern.extent[0]
        if dense_operand("r", r).dim() != 2 or r.shape[0] != rows:
            hint = f"The factor is that of {rows} rows; `solve` takes other shapes."
            raise checks.bad_shape("r", tuple(r.shape), f"({rows}, n)", hint)
        checks.require_same_device(A=own, r=r)
        if r.is_complex() and not own.is_complex():
            parts = self.apply(torch.cat([r.real, r.imag], 1), adjoint)
            return torch.complex(*parts.chunk(2, 1))
        if r.dtype != own.dtype:
            if own.is_complex() and not r.is_complex():
                raise ArgumentValueError(
                    f"`r` has dtype {checks.short(r.dtype)}, and the factor is that of a "
                    f"{checks.short(own.dtype)} matrix; a complex dtype is accepted. Factor a real "
                    "matrix, or convert the system."
                )
            return self.apply(r.to(own.dtype), adjoint).to(r.dtype)
        return self._factored().solve(r, adjoint=adjoint)[0] if r.numel() else r.clone()

    @public_as("linalg.Factor.logdet")
    def logdet(self) -> torch.Tensor:
        """As `spgrad.linalg.logdet`."""
        return logarithm(*self.slogdet())

    @public_as("linalg.Factor.slogdet")
    def slogdet(self) -> Any:
        """As `spgrad.linalg.slogdet`."""
        return slogdet_by(self._matrix, self._solver, self._assume)

    @public_as("linalg.Factor.inverse_at")
    def inverse_at(self, pattern: Any) -> torch.Tensor:
        """As `spgrad.linalg.inverse_at`."""
        return inverse_by(self._matrix, pattern, self._solver, self._assume)

    @public_as("linalg.Factor.inverse_diagonal")
    def inverse_diagonal(self) -> torch.Tensor:
        """As `spgrad.linalg.inverse_diagonal`."""
        return diagonal_by(self._matrix, self._solver, self._assume)

    @public_as("linalg.Factor.sample")
    def sample(
        self, shape: int | Sequence[int] = (), generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draws from the Gaussian of mean 0 and precision A, so of covariance A^-1.

        With P A P^T = L L^H and z of independent standard normal numbers, a draw is P^T L^-H z; for
        a complex A it is circularly symmetric, E[x x^H] = A^-1. A draw has no gradient with respect
        to A. The log density has one, by `logdet`; mean + draw has one with respect to the mean.

        Args:
            shape: Leading dimensions of the result, as ``sample_shape`` in torch.distributions.
            generator: Source of the random numbers; None takes torch's default generator.

        Returns:
            Dense (*shape, *b, m).

        Raises:
            PivotError: A is not hermitian positive definite.
            NotImplementedError: The engine is PARDISO, and A was not declared positive definite.
        """
        front = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        checks.require_generator(generator)
        if not all(type(size) is int and size >= 0 for size in front):
            raise ArgumentValueError(
                f"`shape` is {front}; non-negative sizes are accepted. The shape of the matrix "
                "comes behind it."
            )
        T = self._matrix
        if self._assume not in ("hermitian", "positive definite"):
            checked = T.detach() if self._numbers is None else self._numbers
            require_true(checked, "positive definite", _DRAWS, instead=_PRECISION)
        draws = torch.Size(front).numel()
        where = {"dtype": T.dtype, "device": T.device}
        z = torch.randn(T._pattern.extent[0], draws, generator=generator, **where)
        x = self._factored().inverse_root(z) if z.numel() else z
        return x.mT.reshape(*front, *T._pattern.shape[:-1])

    @public_as("linalg.Factor.refactor")
    def refactor(self, A: torch.Tensor) -> Factor:
        """The factor of a matrix of the same pattern, without a new search for an order."""
        T = square_operand("A", A)
        layout, own = T._pattern.name, self._matrix._pattern.name
        if layout != own:
            raise ArgumentValueError(
                f"`A` has layout {layout}; {own}, that of the factor, is accepted. Convert it with "
                f"A.to_sparse(layout={self._matrix._pattern.layout})."
            )
        if T._pattern is not self._matrix._pattern and not T._pattern.same_as(
            self._matrix._pattern
        ):
            raise ArgumentValueError(
                "`A` has another pattern than the factor; the same elements are accepted. Take "
                "spgrad.linalg.factor(A)."
            )
        if T._pattern is not self._matrix._pattern:
            T = from_values(stored_values(T), self._matrix._pattern)
        return Factor(T, self._assume, self._engine)


for _method in (
    *(Factor.solve, Factor.apply, Factor.logdet, Factor.slogdet),
    *(Factor.inverse_at, Factor.inverse_diagonal, Factor.sample, Factor.refactor),
):
    keep_outside(_method, "its factors are outside of torch")

_DRAWS = "sample draws for matrices that are"
_PRECISION = "factor the precision of a Gaussian, the inverse of its covariance"


@public_as("linalg.factor")
def factor(
    A: torch.Tensor, assume: Assume | None = None, engine: str | Solver | None = None
) -> Factor:
    """Factors of A, for many solves with one matrix; the order of its rows is kept.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        assume: What is known of A, as for `spgrad.linalg.solve`.
        engine: "superlu" or None, which is the same: SciPy's SuperLU. "cholmod" for positive
            definite matrices of float64 or complex128, "pardiso" for any; or one of
            `spgrad.linalg.SuperLU`, `spgrad.linalg.CHOLMOD` and `spgrad.linalg.PARDISO` with its
            options.

    Returns:
        A `Factor`, with ``solve``, ``logdet``, ``slogdet``, ``inverse_at``, ``inverse_diagonal``,
        ``sample`` and ``refactor``.

    Gradient:
        The methods have gradients of A, at its pattern, and of the right-hand sides.

    Cost:
        That of the engine. A second factor on the same `Pattern` object does not search for an
        order again.

    Raises:
        TypeError: `A` is not sparse, or `engine` is neither an engine nor a name of one.
        ValueError: `A` is not square or has an element that is not finite, `engine` is unknown, or
            the engine does not take the dtype of A.
        PivotError: `A` is singular, or not positive definite for an engine that needs it.
        ImportError: The package of the engine is not installed; the text names the extra.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [2.0, 3.0]]))
        >>> F = spgrad.linalg.factor(A)
        >>> F.refactor(A * 2).solve(torch.tensor([5.0, 5.0]))
        tensor([0.5000, 0.5000])
    """
    found = _engine(engine)
    T = square_operand("A", A)
    return Factor(T, require_declared(assume), found)


def _engine(engine: Any) -> Engine:
    """The engine with a name; an engine itself is returned as it is."""
    if isinstance(engine, Engine):
        return engine
    names = ", ".join(f'"{known.name}"' for known in _ENGINES)
    if engine is not None and not isinstance(engine, str):
        raise ArgumentKindError(
            f"`engine` is {checks.describe_kind(engine)}; {names}, None or an engine such as "
            "spgrad.linalg.SuperLU() is accepted. Call the class if you passed one."
        )
    for known in _ENGINES:
        if engine in (None, known.name):
            return known()
    raise ArgumentValueError(
        f"`engine` is {engine!r}; {names} or None is accepted. None takes SciPy's SuperLU."
    )
