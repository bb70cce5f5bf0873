"""Determinants, and elements of the inverse at a pattern."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values
from spgrad.errors import ArgumentKindError
from spgrad.linalg.assume import require_declared
from spgrad.linalg.direct.engines import Factored, coordinates
from spgrad.linalg.direct.inverse import inverse_elements
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.solve import Kept, System, solve_with
from spgrad.linalg.solvers.protocol import Assume, Solver
from spgrad.linalg.spectral.lanczos import lanczos_logdet, require_factor
from spgrad.lowering.spmm import spmm, wants_grad
from spgrad.ops.creation.create import eye
from spgrad.ops.products.broadcast import flat
from spgrad.ops.solves.triangular import square_operand
from spgrad.public import public_op
from spgrad.torch_protocol.func_transforms import Function

_COLUMNS = 64
"""Columns of the matrix of a second derivative that are found at once."""


class Wanted(NamedTuple):
    """Elements of the inverse of the matrix that `kept` factors, at a pattern of its size."""

    kept: Kept
    pattern: Pattern
    transpose: bool  # element (j, i) for every (i, j) of the pattern


@public_op
def slogdet(A: torch.Tensor, *, assume: Assume | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sign and logarithm of the absolute value of the determinant, by an LU factor.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        assume: What is known of A, as for `spgrad.linalg.solve`.

    Returns:
        sign (*b,), of absolute value 1, and logabsdet (*b,), real.

    Gradient:
        A^-H at the pattern of A, by selected inversion. The second derivative takes 2 m solves, of
        64 columns at once.

    Cost:
        A factor; for the gradient at most the operations of the factor again, on one thread.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or has an element that is not finite.
        PivotError: `A` is singular.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [1.0, 3.0]]))
        >>> spgrad.linalg.slogdet(A)[0]
        tensor(-1.)
    """
    return slogdet_by(square_operand("A", A), SuperLU(), require_declared(assume))


@public_op
def logdet(
    A: torch.Tensor,
    *,
    assume: Assume | None = None,
    method: str = "factor",
    probes: int | None = None,
    steps: int | None = None,
    generator: torch.Generator | None = None,
    solver: Solver | None = None,
    return_error: bool = False,
) -> Any:
    """Logarithm of the determinant, by an LU factor; NaN where a real determinant is negative.

    Where the factor of a positive definite matrix does not fit in memory, ``method="lanczos"``
    gives an estimate: stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017) with random
    vectors of +-1.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128. Hermitian
            positive definite for "lanczos".
        assume: What is known of A, as for `spgrad.linalg.solve`.
        method: "factor" or "lanczos"; the other arguments are for "lanczos".
        probes: Number of random vectors, by default 32: the error falls with its square root.
        steps: Of the Lanczos process; by default 16, doubled up to 512 until a doubling changes
            the estimate by less than a tenth of its standard error.
        generator: Draws the random vectors; by default torch's own.
        solver: What the gradient solves with; by default ``spgrad.linalg.CG()``.
        return_error: True returns (value, standard error over the probes), 0 for "factor".

    Returns:
        (*b,), of the dtype of A.

    Gradient:
        As `spgrad.linalg.slogdet`. With "lanczos" the mean of A^-1 z z^H over the same random
        vectors z, an estimate without bias, made hermitian; all systems at once by `solver`.

    Cost:
        As `spgrad.linalg.slogdet`. With "lanczos" a product of A with all random vectors for each
        step, and O(m probes) memory, however many steps: two vectors of each probe are kept.

    Raises:
        TypeError: `A` is not sparse, or `generator` or `solver` is of another kind.
        ValueError: `A` is not square, or has an element that is not finite; with "lanczos" `A` is
            not hermitian; `method` is unknown, or an argument is not for it.
        PivotError: `A` is singular; with "lanczos", not positive definite.
        ConvergenceError: In the backward of "lanczos": `solver` did not converge.
        ImportError: SciPy is not installed, for "factor".

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        >>> spgrad.linalg.logdet(A)
        tensor(0.)
        >>> spgrad.linalg.logdet(spgrad.eye(1000) * 2.0, method="lanczos", return_error=True)
        (tensor(693.147...), tensor(0.))
    """
    if method == "lanczos":
        found = lanczos_logdet(square_operand("A", A), probes, steps, generator, solver)
        return found if return_error else found[0]
    require_factor(method, probes=probes, steps=steps, generator=generator, solver=solver)
    value = logarithm(*slogdet(A, assume=assume))
    return (value, torch.zeros_like(value.detach().real)) if return_error else value


@public_op
def det(A: torch.Tensor, *, assume: Assume | None = None) -> torch.Tensor:
    """Determinant, by an LU factor; `spgrad.linalg.slogdet` does not overflow.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        assume: What is known of A, as for `spgrad.linalg.solve`.

    Returns:
        (*b,), of the dtype of A.

    Gradient:
        As `spgrad.linalg.slogdet`.

    Cost:
        As `spgrad.linalg.slogdet`.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or has an element that is not finite.
        PivotError: `A` is singular; its determinant, 0, is not given, nor a gradient.
        ImportError: SciPy is not installed.

    Example:
        >>> spgrad.linalg.det(spgrad.from_dense(torch.tensor([[2.0, 0.0], [1.0, 3.0]])))
        tensor(6.)
    """
    sign, size = slogdet(A, assume=assume)
    return sign * size.exp()


@public_op
def inverse_at(A: torch.Tensor, pattern: Any, *, assume: Assume | None = None) -> torch.Tensor:
    """The elements of A^-1 at a pattern, without the others.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        pattern: A `Pattern` of the shape of A, or a sparse tensor that has it.
        assume: What is known of A, as for `spgrad.linalg.solve`.

    Returns:
        Sparse, at `pattern`.

    Gradient:
        Of A, at its pattern; it takes 2 m solves, of 64 columns at once.

    Cost:
        A factor. Elements at the transposed pattern of the factors, such as the diagonal and the
        transposed pattern of A, take at most the operations of the factor again. Each column with
        other elements takes a solve.

    Raises:
        TypeError: `A` is not sparse, or `pattern` no pattern.
        ValueError: `A` is not square or has an element that is not finite, or shapes differ.
        PivotError: `A` is singular.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
        >>> spgrad.linalg.inverse_at(A, A.pattern).values()
        tensor([0.5000, 0.2500])
    """
    return inverse_by(square_operand("A", A), pattern, SuperLU(), require_declared(assume))


@public_op
def inverse_diagonal(A: torch.Tensor, *, assume: Assume | None = None) -> torch.Tensor:
    """The diagonal of A^-1, such as the variances of a Gaussian of precision A.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        assume: What is known of A, as for `spgrad.linalg.solve`.

    Returns:
        Dense (*b, m).

    Gradient:
        As `spgrad.linalg.inverse_at`.

    Cost:
        As `spgrad.linalg.inverse_at`.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or has an element that is not finite.
        PivotError: `A` is singular.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
        >>> spgrad.linalg.inverse_diagonal(A)
        tensor([0.5000, 0.2500])
    """
    T = square_operand("A", A)
    m = T._pattern.extent[0]
    if m == 0:
        vals = flat(T)  # of no numbers, for the graph
        return vals.new_zeros(T._pattern.shape[:-1]) + vals.sum()
    diagonal = eye(m, device=T.device)._pattern
    kept = Kept(SuperLU(), require_declared(assume), T._pattern)
    found = _inverse(flat(T), Wanted(kept, diagonal, False))
    return found.view(*T._pattern.batch, T._pattern.matrix[0])


def inverse_by(T: SparseTensor, pattern: Any, solver: Solver, assume: Assume) -> torch.Tensor:
    """`inverse_at` of a matrix by this direct solver."""
    target = pattern._pattern if isinstance(pattern, SparseTensor) else pattern
    if not isinstance(target, Pattern):
        raise ArgumentKindError(
            f"`pattern` is {checks.describe_kind(pattern)}; a Pattern or a SparseTensor is "
            "accepted, such as A.pattern."
        )
    if tuple(target.shape) != tuple(T._pattern.shape):
        hint = "It names elements of the inverse."
        raise checks.bad_shape("pattern", tuple(target.shape), "the shape of `A`", hint)
    vals = _inverse(flat(T), Wanted(Kept(solver, assume, T._pattern), target, False))
    return from_values(vals.view(target.values_shape), target)


def logarithm(sign: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """The logarithm of determinants, from their sign and the logarithm of their size."""
    if sign.is_complex():
        return torch.complex(size, sign.angle())
    return size.where(sign > 0, torch.nan)


def slogdet_by(
    T: SparseTensor, solver: Solver, assume: Assume
) -> tuple[torch.Tensor, torch.Tensor]:
    """`slogdet` of a matrix by this direct solver."""
    pattern, vals = T._pattern, flat(T)
    if pattern.extent[0] == 0:
        one = vals.new_ones(pattern.batch) + vals.sum()  # of no numbers, for the graph
        return one, one.abs().log()
    sign, size = _LogDet.apply(vals, Kept(solver, assume, pattern))  # type: ignore[misc]
    if sign.is_complex():  # size is the logarithm of the determinant
        sign, size = torch.polar(torch.ones_like(size.real), size.imag), size.real
    return sign.view(pattern.batch), size.view(pattern.batch)


class _LogDet(Function):
    """Sign and logarithm of determinants: d log det A = tr(A^-1 dA), so that the gradient is A^-H.

    The logarithm is that of the absolute determinant where A is real.
    """

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, kept: Kept) -> Any:  # type: ignore[override]
        with torch.no_grad():
            sign, size = cast(Factored, kept.prepared(vals)).log_determinant()
            if sign.is_complex():
                size = torch.complex(size, sign.angle())
            sign, size = (t.to(vals.device, vals.dtype) for t in (sign, size))
        ctx.save_for_backward(vals)
        ctx.mark_non_differentiable(sign)
        ctx.kept = kept
        return sign, size

    @staticmethod
    def backward(ctx: Any, _: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        (vals,) = ctx.saved_tensors
        pattern = ctx.kept.pattern
        inverse = _inverse(vals, Wanted(ctx.kept, pattern, True))
        row, _ = coordinates(pattern)
        return g[row // pattern.matrix[0]] * inverse.conj(), None


def _inverse(vals: torch.Tensor, wanted: Wanted) -> torch.Tensor:
    """Flat values of the inverse at a pattern.

    d(A^-1) = -A^-1 dA A^-1, so the gradient for a cotangent G on the pattern is -A^-H G A^-H, of
    which the elements at the pattern of A are found.
    """
    if wants_grad(vals):
        return _Inverse.apply(vals, wanted)  # type: ignore[return-value]
    return _found(vals, wanted)


def _found(vals: torch.Tensor, wanted: Wanted) -> torch.Tensor:
    row, column = coordinates(wanted.pattern)
    if row.numel() == 0:
        return vals.new_empty(0)
    if wanted.transpose:
        row, column = column, row
    with torch.no_grad():
        found = cast(Factored, wanted.kept.prepared(vals))
        return inverse_elements(found, row, column).to(vals.device)


class _Inverse(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, wanted: Wanted) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(vals)
        ctx.wanted = wanted
        return _found(vals, wanted)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        (vals,) = ctx.saved_tensors
        return -_sandwich(vals, g, ctx.wanted), None


def _sandwich(vals: torch.Tensor, g: torch.Tensor, wanted: Wanted) -> torch.Tensor:
    """A^-H G A^-H at the pattern of A, in blocks of columns; G has the values g at the pattern."""
    pattern = wanted.kept.pattern
    size, m = pattern.extent[0], pattern.matrix[0]
    row, column = coordinates(pattern)
    system = System(pattern, wanted.kept, adjoint=True)
    order = torch.argsort(column % m, stable=True)
    row, column = row[order], column[order] % m
    line = torch.arange(size, device=vals.device)
    parts = []
    for start in range(0, m, _COLUMNS):
        width = min(_COLUMNS, m - start)
        bounds = torch.tensor([start, start + width], device=column.device)
        a, b = torch.searchsorted(column, bounds).tolist()
        unit = vals.new_zeros(size, width)
        inside = (line % m >= start) & (line % m < start + width)
        unit[line[inside], line[inside] % m - start] = 1
        middle = spmm(g, solve_with(vals, unit, system), wanted.pattern, wanted.transpose)
        parts.append(solve_with(vals, middle, system)[row[a:b], column[a:b] - start])
    return torch.cat(parts)[torch.argsort(order)]
