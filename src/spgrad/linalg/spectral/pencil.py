"""The matrices of an eigenvalue problem: products, solves, and gradients at their patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import PivotError
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.solvers.protocol import Assume
from spgrad.linalg.spectral.repeated import Told
from spgrad.lowering.products.diagonals import Repeated
from spgrad.lowering.products.spmm import repeated_spmm, sddmm, spmm
from spgrad.ops import add, cat, mul, to_sparse
from spgrad.ops.creation.create import eye

Apply = Callable[[torch.Tensor], torch.Tensor]
"""A linear map of dense (m, n), without gradient."""


class Pencil:
    """A x = e M x for hermitian A and positive definite M, by their patterns; None: the identity.

    `a` and `b` are the flat values of the two. Products and gradients are differentiable.
    """

    def __init__(self, told: Told, A: Pattern, M: Pattern | None = None) -> None:
        self.told, self.A, self.M = told, A, M

    @property
    def size(self) -> int:
        """Rows of the problem."""
        return self.A.matrix[1]

    def applied(self, a: torch.Tensor) -> Apply:
        """A y for one vector after another, without gradient."""
        A = Repeated(a, self.A)
        return lambda y: repeated_spmm(A, y)

    def weigh(self, b: torch.Tensor | None, y: torch.Tensor) -> torch.Tensor:
        """M y."""
        return y if self.M is None or b is None else spmm(b, y, self.M)

    def sampled(self, a: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Values at A of (x y^H + y x^H) / 2: the gradient of `a` if that of A is x y^H."""
        return mean_sampled(x, y, self.A)

    def squares_sampled(self, a: torch.Tensor, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`sampled` for the sum of h x x^H over the columns x, with real h, at half the cost."""
        return sddmm(x * h, x.conj(), self.A)

    def weight_sampled(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Values at M of (x y^H + y x^H) / 2."""
        assert self.M is not None
        return mean_sampled(x, y, self.M)

    def scale(self, a: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        """The magnitude to which the rounding errors of eigenvalues are relative: |A| over |M|."""
        size = a.detach().abs().max()
        return size if b is None else size / b.detach().abs().max()

    def refined(
        self, a: torch.Tensor, E: torch.Tensor, X: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The pairs that ARPACK found; a subclass that can refine them cheaply does so."""
        return E, X

    def dense_pairs(
        self, a: torch.Tensor, b: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All eigenvalues and vectors, by the dense matrices."""
        A = _sparse(a, self.A).to_dense()
        if self.M is None or b is None:
            return torch.linalg.eigh(A)
        L, failed = torch.linalg.cholesky_ex(_sparse(b, self.M).to_dense())
        if int(failed):
            raise PivotError(
                "`M` is not positive definite; positive definite matrices are accepted. Exchange "
                "`A` and `M` if the other one is."
            )
        half = torch.linalg.solve_triangular(L, A, upper=False)
        E, U = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.mH, upper=False))
        return E, torch.linalg.solve_triangular(L.mH, U, upper=True)

    def inverse(self, a: torch.Tensor, b: torch.Tensor | None, sigma: float) -> Apply:
        """(A - sigma M)^-1, by a factor."""
        A = to_sparse(_sparse(a, self.A), layout=torch.sparse_csr)
        if self.M is None or b is None:
            pattern = self.A.derive(kept.IDENTITY, _identity)
            M = _sparse(a.new_ones(pattern.matrix[0]), pattern)
        else:
            M = to_sparse(_sparse(b, self.M), layout=torch.sparse_csr)
        try:
            return _factored(cast(SparseTensor, add(A, mul(M, -sigma))), "hermitian")
        except PivotError as error:
            raise PivotError(
                f"`sigma` is {sigma}, and A - sigma M is singular there; a number that is no "
                "eigenvalue is accepted. Take one beside it: for positive semidefinite A a small "
                "negative number."
            ) from error

    def weight_inverse(self, b: torch.Tensor) -> Apply:
        """M^-1, by a factor."""
        assert self.M is not None
        return _factored(_sparse(b, self.M), "positive definite")


class Gram(Pencil):
    """A^H A for an A of at least as many rows as columns."""

    def applied(self, a: torch.Tensor) -> Apply:
        """A^H A y for one vector after another, without gradient."""
        A = Repeated(a, self.A)
        conj = Repeated(plain(a.conj()), self.A) if a.is_complex() else A
        return lambda y: repeated_spmm(conj, repeated_spmm(A, y), True)

    def sampled(self, a: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Values at A of A (x y^H + y x^H): the gradient of `a` if that of A^H A is x y^H."""
        left = spmm(a, torch.cat([x, y], 1), self.A)
        return sddmm(left, torch.cat([y, x], 1).conj(), self.A)

    def squares_sampled(self, a: torch.Tensor, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`sampled` for the sum of h x x^H over the columns x, with real h, at half the cost."""
        return sddmm(spmm(a, 2 * x * h, self.A), x.conj(), self.A)

    def scale(self, a: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        """The magnitude to which the rounding errors of eigenvalues are relative: |A|^2."""
        return super().scale(a, b) ** 2

    def refined(
        self, a: torch.Tensor, E: torch.Tensor, X: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Refines the pairs by the singular values of A X, which lose no digits by squaring A."""
        _, S, Wh = torch.linalg.svd(spmm(a, X, self.A), full_matrices=False)
        return S * S, X @ Wh.mH

    def dense_pairs(
        self, a: torch.Tensor, b: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The squares of all singular values, and right vectors."""
        _, S, Vh = torch.linalg.svd(_sparse(a, self.A).to_dense(), full_matrices=False)
        return S * S, Vh.mH

    def inverse(self, a: torch.Tensor, b: torch.Tensor | None, sigma: float) -> Apply:
        """(A^H A)^-1: by a factor of A if it is square, else of the matrix of normal equations."""
        A = to_sparse(_sparse(a, self.A), layout=torch.sparse_csr)
        m, n = self.A.matrix
        if m == n:
            factored = SuperLU().prepare(A)
            return lambda y: factored.solve(factored.solve(y, adjoint=True)[0])[0]
        # r + A x = 0 and A^H r = y give x = -(A^H A)^-1 y
        scale = float(plain(a).abs().max())
        one = mul(eye(m, dtype=a.dtype, device=a.device), scale)
        none = mul(eye(n, dtype=a.dtype, device=a.device), 0)
        AH = to_sparse(A.mH, layout=torch.sparse_csr)
        both = cat([cat([one, A], 1), cat([AH, none], 1)], 0)
        solve = _factored(both, "general")

        def apply(y: torch.Tensor) -> torch.Tensor:
            # with the first block scaled: scale r + A x = 0, so that x = -scale (A^H A)^-1 y
            right = torch.cat([y.new_zeros(m, y.shape[1]), y])
            return solve(right)[m:] * (-1 / scale)

        return apply


def _identity(pattern: Pattern) -> Pattern:
    return eye(pattern.matrix[0], device=pattern.device)._pattern


def _sparse(vals: torch.Tensor, pattern: Pattern) -> SparseTensor:
    return SparseTensor(plain(vals.detach()).view(pattern.values_shape), pattern)


def _factored(A: SparseTensor, assume: Assume) -> Apply:
    factored = SuperLU().prepare(A, assume)
    return lambda y: factored.solve(y)[0]


def mean_sampled(x: torch.Tensor, y: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Flat values at the pattern of (x y^H + y x^H) / 2."""
    left, right = torch.cat([x, y], 1) / 2, torch.cat([y, x], 1)
    return sddmm(left, right.conj(), pattern)
