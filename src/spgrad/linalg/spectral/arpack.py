"""Some eigenvalues and vectors of a pencil: SciPy's ARPACK on products and solves of spgrad."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch

from spgrad.core import checks
from spgrad.core.values import plain
from spgrad.errors import ConvergenceError, PivotError
from spgrad.linalg.solve import same_numbers
from spgrad.linalg.spectral.pencil import Apply, Pencil

SMALL = 32
"""For matrices of at most this many rows, the dense matrix gives all eigenvalues."""

Check = Callable[[torch.Tensor, torch.Tensor | None], None]
"""A function that raises if values of A and M are not accepted."""

_ANCHOR = 0.9
"""The anchor of a vector is its first element of at least this share of the largest one."""


class Options(NamedTuple):
    """Which eigenvalues are found, and how; the names are SciPy's."""

    k: int
    sigma: float | None
    which: str
    start: torch.Tensor | None  # (m,); None: random numbers that are the same in each call
    ncv: int | None
    maxiter: int | None
    tol: float


class Numbers:
    """A pencil with its values: products and solves without gradient, each factor found once."""

    def __init__(
        self, pencil: Pencil, a: torch.Tensor, b: torch.Tensor | None, sigma: float | None
    ) -> None:
        self.pencil, self.sigma = pencil, sigma
        self.a, self.b = plain(a.detach()), None if b is None else plain(b.detach())

    def times(self, y: torch.Tensor) -> torch.Tensor:
        """A y."""
        return self._applied(y)

    @cached_property
    def _applied(self) -> Apply:
        return self.pencil.applied(self.a)

    def weigh(self, y: torch.Tensor) -> torch.Tensor:
        """M y."""
        return self.pencil.weigh(self.b, y)

    @cached_property
    def inverse(self) -> Apply:
        """(A - sigma M)^-1."""
        assert self.sigma is not None
        return self.pencil.inverse(self.a, self.b, self.sigma)

    @cached_property
    def weight_inverse(self) -> Apply:
        """M^-1."""
        assert self.b is not None
        return self.pencil.weight_inverse(self.b)


class Problem:
    """A pencil, which of its eigenvalues are wanted, and the numbers of the values met so far.

    Values are checked when they are met; more than one set is met only where torch.func.vmap runs
    over them.
    """

    def __init__(self, pencil: Pencil, options: Options, check: Check) -> None:
        self.pencil, self.options, self.check = pencil, options, check
        self.met: list[tuple[tuple[torch.Tensor | None, ...], list[int], Numbers]] = []

    def numbers(self, a: torch.Tensor, b: torch.Tensor | None) -> Numbers:
        """The products and solves of the pencil with these values."""
        given = a, b
        versions = [0 if t is None or t.is_inference() else t._version for t in given]
        for known, at, numbers in self.met:
            pairs = zip(known, given, strict=True)
            if at == versions and all(
                x is y or (x is not None and y is not None and same_numbers(x, y)) for x, y in pairs
            ):
                return numbers
        with torch.no_grad():
            self.check(*given)
            numbers = Numbers(self.pencil, a, b, self.options.sigma)
        self.met.append((given, versions, numbers))
        return numbers


def pairs_of(numbers: Numbers, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """The wanted eigenvalues (k,), ascending, with vectors (m, k) that M makes orthonormal."""
    m = numbers.pencil.size
    if m <= SMALL or options.k >= m - 1:
        E, X = numbers.pencil.dense_pairs(numbers.a, numbers.b)
        at = chosen(E, options)
        E, X = E[at], X[:, at]
    else:
        E, X = numbers.pencil.refined(numbers.a, *_iterated(numbers, options))
    E, order = torch.sort(E)
    X = X[:, order]
    return E, X * phase(X)


def chosen(E: torch.Tensor, options: Options) -> torch.Tensor:
    """The positions of the wanted eigenvalues among all of them (m,), by SciPy's rules."""
    theta = E if options.sigma is None else 1 / (E - options.sigma)
    k = options.k
    if options.which == "BE":
        order = torch.argsort(theta)
        return torch.cat([order[: k // 2], order[len(order) - (k - k // 2) :]])
    size = theta.abs() if options.which in ("LM", "SM") else theta
    return torch.argsort(size, descending=options.which[0] == "L", stable=True)[:k]


def phase(X: torch.Tensor) -> torch.Tensor:
    """For each column the number of modulus 1 that makes its anchor real and positive.

    The anchor is the first element of at least 0.9 of the largest absolute value, so that rounding
    does not decide which of several equal elements is the anchor.
    """
    if X.shape[0] == 0:
        return X.new_ones(X.shape[1])
    size = X.detach().abs()
    at = (size >= _ANCHOR * size.amax(0)).to(torch.uint8).argmax(0)
    anchor = X[at, torch.arange(X.shape[1], device=X.device)]
    return anchor.conj() / anchor.abs()


def _iterated(numbers: Numbers, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    checks.require_packages("scipy", "scipy", "numpy")
    from scipy.sparse.linalg import ArpackError, eigs, eigsh

    m, a = numbers.pencil.size, numbers.a
    if numbers.b is None and options.sigma is None and not bool(a.any()):  # ARPACK refuses these
        E = a.new_zeros(options.k, dtype=a.dtype.to_real())
        return E, torch.eye(m, options.k, dtype=a.dtype, device=a.device)
    start = options.start
    if start is None:
        start = random_start(m, a.dtype, torch.Generator().manual_seed(0))
    which, run = options.which, eigsh
    if a.is_complex():
        which, run = {"LA": "LR", "SA": "SR"}.get(which, which), eigs
    more: dict[str, Any] = {"rng": 0} if "rng" in inspect.signature(run).parameters else {}

    def linear(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return _linear(function, m, a)

    if options.sigma is not None:
        more |= {"sigma": options.sigma, "OPinv": linear(numbers.inverse)}
    elif numbers.b is not None:
        more["Minv"] = linear(numbers.weight_inverse)
    if numbers.b is not None:
        more["M"] = linear(numbers.weigh)
    try:
        E, X = cast(Any, run)(
            linear(numbers.times),
            options.k,
            which=which,
            v0=start.numpy(),
            ncv=options.ncv,
            maxiter=options.maxiter,
            tol=options.tol,
            **more,
        )
    except ArpackError as error:
        raise not_converged(options, error) from error
    if not bool(torch.isfinite(torch.from_numpy(E.real)).all()):
        raise PivotError(
            "the eigenvalues found are not finite, because `sigma` or `M` makes a matrix that is "
            "singular; a number that is no eigenvalue, and a positive definite M, are accepted. "
            "Move `sigma` a little."
        )
    E, X = torch.from_numpy(E.real.copy()), torch.from_numpy(X).to(a.device, a.dtype)
    if a.is_complex():  # ARPACK's vectors of equal eigenvalues are then not orthonormal
        e, U = torch.linalg.eigh(X.mH @ numbers.weigh(X))
        X = X @ ((U * e.rsqrt()) @ U.mH)
    return E.to(a.device, a.dtype.to_real()), X


def random_start(m: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A random vector (m,) to start from, with no preferred direction; on the CPU."""
    drawn = torch.randn(m, generator=generator, dtype=torch.float64, device=generator.device)
    return drawn.to("cpu", dtype)


def not_converged(options: Options, error: Any) -> ConvergenceError:
    """The error for an iteration that ARPACK ended before its tolerance."""
    found = getattr(error, "eigenvalues", None)
    x = None if found is None else torch.from_numpy(found.real.copy())
    count = 0 if x is None else len(x)
    return ConvergenceError(
        f"{count} of {options.k} eigenvalues were found. ARPACK says: {error}. Pass `sigma` near "
        "the wanted ones, a larger `ncv` or `maxiter`, or a larger `tol`.",
        x=x,
    )


def _linear(function: Callable[[torch.Tensor], torch.Tensor], m: int, like: torch.Tensor) -> Any:
    """A function of columns (m, 1) as a LinearOperator of SciPy."""
    import numpy as np
    from scipy.sparse.linalg import LinearOperator

    def matvec(v: Any) -> Any:
        v = np.ascontiguousarray(v)
        x = torch.from_numpy(v if v.flags.writeable else v.copy())
        with torch.no_grad():
            y = function(x.to(like.device, like.dtype).view(m, 1))
        return plain(y).cpu().numpy().reshape(v.shape)

    dtype = torch.empty(0, dtype=like.dtype, device="cpu").numpy().dtype
    return cast(Any, LinearOperator)((m, m), matvec=matvec, dtype=dtype)
