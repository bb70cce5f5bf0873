"""Determinants, and elements of the inverse at a pattern."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, from_values
from spgrad.errors import ArgumentKindError
from spgrad.linalg.assume import require_declared
from spgrad.linalg.direct.determinants import determinants, log_determinants, signs
from spgrad.linalg.direct.engines import SingularError
from spgrad.linalg.direct.inverse import Wanted, inverse_values
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.solve import Kept
from spgrad.linalg.solvers.protocol import Assume, Solver
from spgrad.linalg.spectral.lanczos import lanczos_logdet, require_factor
from spgrad.lowering.coalesce import pattern_without_repeats
from spgrad.ops.creation.create import eye
from spgrad.ops.products.broadcast import flat
from spgrad.ops.solves.triangular import square_operand
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import transforming


@public_as("linalg.slogdet")
def slogdet(A: torch.Tensor, *, assume: Assume | None = None) -> Any:
    """Sign and logarithm of the absolute value of the determinant, by an LU factor.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        assume: What is known of A, as for `spgrad.linalg.solve`.

    Returns:
        torch.return_types.linalg_slogdet: sign (*b,), of absolute value 1, and logabsdet (*b,),
        real; 0 and -inf where A is singular.

    Gradient:
        A^-H at the pattern of A, by selected inversion. The second derivative takes 2 m solves, of
        64 columns at once. The logarithm has no gradient where A is singular, and the backward
        raises an error; `spgrad.linalg.det` has a gradient there.

    Cost:
        One factorisation; the gradient takes at most as many operations again, on one thread. If a
        matrix of a batch is singular, each item is factored on its own.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or has an element that is not finite.
        PivotError: The diagonal of `A` is not positive where it was declared definite.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [1.0, 3.0]]))
        >>> spgrad.linalg.slogdet(A).sign
        tensor(-1.)
    """
    return slogdet_by(square_operand("A", A), SuperLU(), require_declared(assume))


@public_as("linalg.logdet")
@in_given_precision
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
        steps: Steps of the Lanczos process; by default 16, doubled up to 512 until a doubling
            changes the estimate by less than a tenth of its standard error.
        generator: Draws the random vectors; by default torch's own.
        solver: What the gradient solves with; by default ``spgrad.linalg.CG()``.
        return_error: True returns (value, standard error over the probes); the error is 0 for
            "factor".

    Returns:
        (*b,), of the dtype of A; -inf where A is singular.

    Gradient:
        As `spgrad.linalg.slogdet`. With "lanczos", the hermitian part of the mean of A^-1 z z^H
        over the same random vectors z, an unbiased estimate; `solver` solves all systems at once.

    Cost:
        As `spgrad.linalg.slogdet`. With "lanczos" a product of A with all random vectors for each
        step, and O(m probes) memory, however many steps: two vectors of each probe are kept.

    Raises:
        TypeError: `A` is not sparse, or `generator` or `solver` is of another kind.
        ValueError: `A` is not square, or has an element that is not finite; with "lanczos" `A` is
            not hermitian; `method` is unknown, or does not take an argument that is given.
        PivotError: `A` is not positive definite, with "lanczos" or where it was declared so.
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


@public_as("linalg.det")
def det(A: torch.Tensor, *, assume: Assume | None = None) -> torch.Tensor:
    """Determinant, by an LU factor; `spgrad.linalg.slogdet` does not overflow.

    Args:
        A: As for `spgrad.linalg.slogdet`.
        assume: As for `spgrad.linalg.slogdet`.

    Returns:
        (*b,), of the dtype of A; 0 where A is singular.

    Gradient:
        The conjugate of the adjugate, transposed, at the pattern of A: det A times A^-1, as for
        `spgrad.linalg.slogdet`. Where A is singular, a factor of A with one more row and column
        gives it (torch.linalg.det returns 0 there), and a second derivative raises an error.

    Cost:
        As `spgrad.linalg.slogdet`.

    Raises:
        PivotError: As `spgrad.linalg.slogdet`, whose other errors `det` raises too.

    Example:
        >>> spgrad.linalg.det(spgrad.from_dense(torch.tensor([[2.0, 0.0], [1.0, 3.0]])))
        tensor(6.)
    """
    T, known = square_operand("A", A), require_declared(assume)
    pattern, vals = T._pattern, flat(T)
    if pattern.extent[0] == 0:
        return vals.new_ones(pattern.batch) + vals.sum()  # an empty sum keeps the graph
    kept = Kept(SuperLU(), known, pattern)
    if _one_is_singular(kept, vals):
        return _of_items(T, lambda item: det(item, assume=assume))
    return as_result(determinants(vals, kept), pattern.batch)


@public_as("linalg.inverse_at")
def inverse_at(A: torch.Tensor, pattern: Any, *, assume: Assume | None = None) -> torch.Tensor:
    """The elements of A^-1 at a pattern, without the others.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        pattern: A `Pattern` of the shape of A, or a sparse tensor that has it.
        assume: What is known of A, as for `spgrad.linalg.solve`.

    Returns:
        Sparse (*b, m, m), in the layout and at the elements of `pattern`; elements that `pattern`
        repeats are in the result once.

    Gradient:
        Of A, at its pattern; the backward takes 2 m solves, of 64 columns at once.

    Cost:
        One factorisation. Elements at the transposed pattern of the factors, such as the diagonal
        and the transposed pattern of A, take at most as many operations again. Each column with
        other elements takes a solve.

    Raises:
        TypeError: `A` is not sparse, or `pattern` is not a pattern.
        ValueError: `A` is not square or has an element that is not finite, or shapes differ.
        PivotError: `A` is singular.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
        >>> spgrad.linalg.inverse_at(A, A.pattern).values()
        tensor([0.5000, 0.2500])
    """
    return inverse_by(square_operand("A", A), pattern, SuperLU(), require_declared(assume))


@public_as("linalg.inverse_diagonal")
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
    return diagonal_by(square_operand("A", A), SuperLU(), require_declared(assume))


def diagonal_by(T: SparseTensor, solver: Solver, assume: Assume) -> torch.Tensor:
    """`inverse_diagonal` of a matrix by this direct solver."""
    m = T._pattern.extent[0]
    if m == 0:
        vals = flat(T)  # its empty sum keeps the graph
        return vals.new_zeros(T._pattern.shape[:-1]) + vals.sum()
    diagonal = eye(m, device=T.device)._pattern
    kept = Kept(solver, assume, T._pattern)
    found = inverse_values(flat(T), Wanted(kept, diagonal, False))
    return found.view(*T._pattern.batch, T._pattern.matrix[0])


def inverse_by(T: SparseTensor, pattern: Any, solver: Solver, assume: Assume) -> torch.Tensor:
    """`inverse_at` of a matrix by this direct solver."""
    target = pattern._pattern if isinstance(pattern, SparseTensor) else pattern
    if not isinstance(target, Pattern):
        raise ArgumentKindError(
            f"`pattern` is {checks.describe_kind(pattern)}; a Pattern or a SparseTensor is "
            f"accepted, such as A.pattern. {checks.sparse_hint('pattern', pattern)}"
        )
    if tuple(target.shape) != tuple(T._pattern.shape):
        hint = "It names elements of the inverse."
        raise checks.bad_shape("pattern", tuple(target.shape), "the shape of `A`", hint)
    checks.require_same_device(A=T._vals, pattern=target.indices[0])
    target = pattern_without_repeats(target)
    vals = inverse_values(flat(T), Wanted(Kept(solver, assume, T._pattern), target, False))
    return from_values(vals.view(target.values_shape), target)


def logarithm(sign: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """The logarithm of determinants, from their sign and the logarithm of their size."""
    if sign.is_complex():
        return torch.complex(size, sign.angle())
    return size.where(sign >= 0, torch.nan)


def slogdet_by(T: SparseTensor, solver: Solver, assume: Assume) -> Any:
    """`slogdet` of a matrix by this direct solver, with torch's names of the two results."""
    return torch.return_types.linalg_slogdet(  # type: ignore[attr-defined]
        _slogdet(T, solver, assume)
    )


def _slogdet(T: SparseTensor, solver: Solver, assume: Assume) -> tuple[torch.Tensor, torch.Tensor]:
    pattern, vals = T._pattern, flat(T)
    if pattern.extent[0] == 0:
        one = vals.new_ones(pattern.batch) + vals.sum()  # an empty sum keeps the graph
        return one, one.abs().log()
    kept = Kept(solver, assume, pattern)
    if _one_is_singular(kept, vals):
        both = _of_items(T, lambda item: torch.stack(_pair(_slogdet(item, solver, assume))))
        sign, size = both.unbind(-1)
        return sign, size.real
    size = log_determinants(vals, kept)
    if size.is_complex():  # the logarithm of the determinant
        length = torch.where(size.real > -torch.inf, torch.ones_like(size.real), 0)
        sign, size = torch.polar(length, size.imag), size.real
    else:
        sign = signs(vals, kept)
    return as_result(sign, pattern.batch), as_result(size, pattern.batch)


def _pair(found: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in the dtype of the first."""
    return found[0], found[1].to(found[0].dtype)


def _one_is_singular(kept: Kept, vals: torch.Tensor) -> bool:
    """Whether a batch can't be factored as a whole, so that each item must be on its own."""
    if kept.pattern.extent[0] == kept.pattern.matrix[0] or transforming():
        return False
    try:
        with torch.no_grad():
            kept.prepared(vals)
    except SingularError:
        return True
    return False


def _of_items(T: SparseTensor, function: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """The results of a function for each item of a batch, stacked in the batch dimensions."""
    batch = T._pattern.batch
    found = [function(T[index]) for index in itertools.product(*map(range, batch))]
    return torch.stack(found).view(*batch, *found[0].shape)
