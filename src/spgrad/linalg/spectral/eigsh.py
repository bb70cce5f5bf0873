"""Some eigenvalues and eigenvectors of a hermitian matrix, by ARPACK."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, overload

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.linalg.assume import require_true
from spgrad.linalg.solve import require_finite
from spgrad.linalg.solvers.protocol import Assume
from spgrad.linalg.solvers.units import PencilUnits
from spgrad.linalg.spectral.arpack import Options, Problem, random_start
from spgrad.linalg.spectral.derivative import eigenpairs
from spgrad.linalg.spectral.pencil import Pencil
from spgrad.linalg.spectral.repeated import Told
from spgrad.lowering.operands import dense_operand, require_int
from spgrad.ops.products.broadcast import flat
from spgrad.ops.solves.triangular import square_operand
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision

_WHICH = ("LM", "SM", "LA", "SA", "BE")


class Eigenpairs(NamedTuple):
    """Eigenvalues, ascending, and eigenvectors as columns."""

    eigenvalues: torch.Tensor
    eigenvectors: torch.Tensor


@overload
def eigsh(
    A: torch.Tensor,
    k: int = 6,
    M: torch.Tensor | None = None,
    sigma: float | None = None,
    which: str = "LM",
    v0: torch.Tensor | None = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    return_eigenvectors: Literal[True] = True,
    *,
    generator: torch.Generator | None = None,
) -> Eigenpairs: ...
@overload
def eigsh(
    A: torch.Tensor,
    k: int = 6,
    M: torch.Tensor | None = None,
    sigma: float | None = None,
    which: str = "LM",
    v0: torch.Tensor | None = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    *,
    return_eigenvectors: Literal[False],
    generator: torch.Generator | None = None,
) -> torch.Tensor: ...
@public_as("linalg.eigsh")
@in_given_precision
def eigsh(
    A: torch.Tensor,
    k: int = 6,
    M: torch.Tensor | None = None,
    sigma: float | None = None,
    which: str = "LM",
    v0: torch.Tensor | None = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0.0,
    return_eigenvectors: bool = True,
    *,
    generator: torch.Generator | None = None,
) -> Eigenpairs | torch.Tensor:
    """k eigenvalues e with vectors x of a symmetric or hermitian matrix: A x = e x, or e M x.

    Runs SciPy's ARPACK (Lehoucq, Sorensen and Yang, 1998), with the names of
    `scipy.sparse.linalg.eigsh`, on products and factors of spgrad. For the smallest eigenvalues,
    and those inside of the spectrum, a `sigma` near them is fastest. ``which="SM"`` may miss an
    eigenvalue that lies between others, as in SciPy: of 500 random indefinite float64 matrices of
    45 rows, it missed one of two eigenvalues for 19. Pass ``sigma=0.0`` with "LM" instead.

    Args:
        A: Sparse hermitian (m, m) of any layout; float32, float64, complex64 or complex128.
        k: Number of eigenvalues, from 1 to m.
        M: Sparse hermitian positive definite (m, m) of the same dtype; None for the identity.
        sigma: Finds the eigenvalues nearest to this number, by a factor of A - sigma M; `which`
            then applies to 1 / (e - sigma).
        which: "LM" or "SM" for the largest or smallest absolute values, "LA" or "SA" for the
            largest or smallest, "BE" for half of them from each end (for real matrices).
        v0: Dense (m,), where the iteration starts. By default a random vector, the same in each
            call, so that calls give the same bits. With `sigma` the result of the first call on a
            `Pattern` may differ by rounding from those of later calls, which use the order of rows
            that the first call found.
        ncv: Number of vectors of the iteration, between k and m; by default SciPy's.
        maxiter: Most restarts; by default SciPy's, 10 m.
        tol: Relative accuracy of the eigenvalues; 0 for that of the dtype.
        return_eigenvectors: False returns the eigenvalues alone.
        generator: Draws the vector to start from if `v0` is None.

    Returns:
        (eigenvalues, eigenvectors): (k,), real and ascending as those of `torch.linalg.eigh`, and
        (m, k) with X^H M X = 1. The first element of each vector that has at least 0.9 of its
        largest absolute value is real and positive.

    Gradient:
        For eigenvalues: x x^H at the elements of A and -e x x^H at those of M, for each pair; it
        is right for repeated eigenvalues too if the loss is symmetric in these, such as their sum.
        For eigenvectors: MINRES solves one linear system for each, all at once, on the complement
        of the found ones. It uses the factor of A - sigma M, or, with M and without `sigma`, the
        factor of M. Vectors of eigenvalues that differ by rounding alone are refused, unless the
        loss is the same for every basis of these vectors. The derivative of complex vectors is
        that of vectors with the stated phase; if a loss does not depend on the phase, its
        derivative is that of `torch.linalg.eigh`. Of any order, forward mode and torch.func too.
        The gradients of A and M are hermitian, because A and M are assumed to stay so.

    Cost:
        A product with A for each step, or, with `sigma`, one factor and a solve for each step;
        O(m ncv) memory. If m is at most 32, or k at least m - 1, the dense matrix is used: O(m^3)
        time and O(m^2) memory. Gradients of eigenvalues take O(nse k). Gradients of eigenvectors
        take a product or solve of k columns in each step of MINRES; the nearer an eigenvalue that
        was not found, the more steps.

    Raises:
        TypeError: `A` or `M` is not sparse, or an argument of another kind.
        ValueError: `A` is not square or not hermitian, sizes or dtypes don't fit, an element is not
            finite, or `k`, `which`, `v0`, `ncv`, `maxiter` or `tol` is out of its range.
        NotImplementedError: `A` is a batch.
        PivotError: `sigma` is an eigenvalue, or `M` not positive definite.
        ConvergenceError: ARPACK ended before its tolerance.
        RuntimeError: In the backward: the vectors of repeated eigenvalues are differentiated.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(torch.diag(torch.tensor([1.0, 2.0, 5.0]))).requires_grad_()
        >>> E, X = spgrad.linalg.eigsh(A, k=2)
        >>> E.detach()
        tensor([2., 5.])
        >>> E.sum().backward()
        >>> A.grad.values()
        tensor([0., 1., 1.])
    """
    T, W = matrix_of("A", A), None if M is None else matrix_of("M", M)
    if W is not None:
        checks.require_same_dtype(A=T._vals, M=W._vals)
        checks.require_same_device(A=T._vals, M=W._vals)
        if W._pattern.matrix != T._pattern.matrix:
            accepted = f"{tuple(T._pattern.shape)}, the shape of `A`,"
            raise checks.bad_shape("M", tuple(W._pattern.shape), accepted, "Check the sizes.")
    options = _options(T, k, sigma, which, v0, ncv, maxiter, tol, generator)
    a, b = flat(T), None if W is None else flat(W)
    units = PencilUnits.of(a, b)
    if options.sigma is not None:
        options = options._replace(sigma=options.sigma / units.of_values)
    told = Told("linalg.eigsh", unit=units.of_values)
    pencil = Pencil(told, T._pattern, None if W is None else W._pattern)

    def check(a: torch.Tensor, b: torch.Tensor | None) -> None:
        _require_hermitian("A", a, pencil.A, "hermitian")
        if b is not None and pencil.M is not None:
            _require_hermitian("M", b, pencil.M, "positive definite")

    found = units.outside(*eigenpairs(*units.inside(a, b), Problem(pencil, options, check)))
    return Eigenpairs(*found) if return_eigenvectors else found[0]


def matrix_of(arg: str, A: Any) -> SparseTensor:
    """A square sparse matrix, and no batch."""
    T = square_operand(arg, A)
    require_one(arg, T)
    return T


def _require_hermitian(arg: str, vals: torch.Tensor, pattern: Pattern, needs: Assume) -> None:
    T = SparseTensor(plain(vals).view(pattern.values_shape), pattern)
    require_finite(arg, T._vals)
    instead = "find all eigenvalues by torch.linalg.eig of the dense matrix"
    require_true(T, needs, f"eigsh needs `{arg}` to be", arg, instead)


def require_one(arg: str, T: SparseTensor) -> None:
    """Refuses a batch."""
    if T._pattern.batch:
        raise UnsupportedError(
            f"`{arg}` is a batch of shape {tuple(T._pattern.shape)}; one matrix is accepted. Call "
            "it once for each item."
        )


def _options(
    A: SparseTensor,
    k: Any,
    sigma: Any,
    which: Any,
    v0: Any,
    ncv: Any,
    maxiter: Any,
    tol: Any,
    generator: Any,
) -> Options:
    m = A._pattern.matrix[0]
    if which not in _WHICH:
        accepted = ", ".join(f'"{word}"' for word in _WHICH)
        raise ArgumentValueError(
            f"`which` is {which!r}; {accepted} are accepted. They ask for the largest or smallest "
            "magnitude, the largest or smallest number, or both ends."
        )
    if which == "BE" and A._vals.is_complex():
        raise ArgumentValueError(
            '`which` is "BE" for a complex matrix; "LM", "SM", "LA" and "SA" are accepted for '
            'these. Call it with "LA" and with "SA".'
        )
    if sigma is not None and (
        isinstance(sigma, bool) or not isinstance(sigma, (int, float)) or not math.isfinite(sigma)
    ):
        raise ArgumentKindError(
            f"`sigma` is {sigma!r}; a finite real number or None is accepted. For example 0.0."
        )
    if which == "BE" and k == 1:  # one more from the upper end if k is odd, which ARPACK refuses
        which = "LA"
    start = start_vector(A, m, v0, generator)
    shift = None if sigma is None else float(sigma)
    return Options(*iteration(m, k, ncv, maxiter, tol, start, which, shift))


def iteration(
    m: int,
    k: Any,
    ncv: Any,
    maxiter: Any,
    tol: Any,
    start: torch.Tensor | None,
    which: str,
    sigma: float | None,
) -> Options:
    """Checked options of ARPACK for m rows."""
    if not 1 <= require_int("k", k) <= m:
        accepted = f"an int from 1 to {m}" if m else "no number"
        raise ArgumentValueError(
            f"`k` is {k} for {m} values; {accepted} is accepted. Ask for fewer."
        )
    if ncv is not None and not k < require_int("ncv", ncv) <= m:
        raise ArgumentValueError(
            f"`ncv` is {ncv} for k={k} and {m} rows; ints from {k + 1} to {m} are accepted. Leave "
            "it out for SciPy's choice."
        )
    if maxiter is not None and require_int("maxiter", maxiter) < 1:
        raise ArgumentValueError(
            f"`maxiter` is {maxiter}; ints from 1 are accepted. Leave it out for SciPy's choice."
        )
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not tol >= 0:
        raise ArgumentValueError(f"`tol` is {tol!r}; numbers from 0 are accepted. For example 0.")
    if maxiter is not None:
        maxiter = min(maxiter, 2**31 - 1)  # ARPACK's ints have 32 bits
    return Options(k, sigma, which, start, ncv, maxiter, float(tol))


def start_vector(A: SparseTensor, m: int, v0: Any, generator: Any) -> torch.Tensor | None:
    """`v0` as it goes to ARPACK, or a vector from the generator; None without both."""
    checks.require_generator(generator)
    if v0 is None:
        return None if generator is None else random_start(m, A.dtype, generator)
    start = dense_operand("v0", v0).detach()
    checks.require_same_dtype(A=A._vals, v0=start)
    if tuple(start.shape) != (m,):
        raise checks.bad_shape("v0", tuple(start.shape), f"({m},)", "It has an element for a row.")
    require_finite("v0", start)
    if not bool(start.any()):
        raise ArgumentValueError("`v0` is zero; any other vector is accepted. Leave it out.")
    return start.cpu().contiguous()
