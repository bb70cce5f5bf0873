"""Computations of a multivariate normal with its covariance or precision.

`Triangular` has a triangular factor, with which it multiplies and solves by substitution. `Full`
has the matrix itself, which it factors. Vectors are (*sample, *b, m), for a matrix or batch
(*b, m, m). All read the matrix when they are called, because an optimizer changes it in place.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, cast

import torch

from spgrad import linalg
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.distributions.root import ByRoot, Root
from spgrad.errors import in_gradient_of
from spgrad.linalg.assume import triangle_of, with_symmetric_derivatives
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.solve import Kept, System, solve_with
from spgrad.lowering.products.spmm import sddmm, wants_grad
from spgrad.ops import broadcast_to, diagonal, eye, matmul, mul, solve_triangular, tril
from spgrad.ops.products.broadcast import flat, in_columns
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.compile import keep_outside
from spgrad.torch_protocol.func_transforms import Function, is_transformed


class Parameter(ABC):
    """The covariance S, or with `precision` its inverse, of a Gaussian."""

    precision: bool

    @abstractmethod
    def matrix(self) -> SparseTensor:
        """The covariance or precision as a sparse matrix or batch."""

    @abstractmethod
    def half_log_det(self) -> torch.Tensor:
        """Half the logarithm of the determinant of S (*b,)."""

    @abstractmethod
    def quadratic(self, v: torch.Tensor) -> torch.Tensor:
        """v^T S^-1 v (*sample, *b)."""

    @abstractmethod
    def draw(self, z: torch.Tensor) -> torch.Tensor:
        """A draw of covariance S for independent standard normal numbers z."""

    @abstractmethod
    def variance(self) -> torch.Tensor:
        """The diagonal of S (*b, m)."""


class Triangular(Parameter):
    """S or S^-1 is L L^T; or L D L^T, where the diagonal of L is of ones, stored or not.

    Zeros above the diagonal, as blocks have them, are no parameters: their gradient is 0.
    """

    def __init__(self, L: SparseTensor, D: torch.Tensor | None, precision: bool) -> None:
        self.precision, self.D, self.unit = precision, D, D is not None
        self.given = L

    @property
    def L(self) -> Any:  # noqa: N802  # a matrix
        """The factor without what is no parameter: elements above the diagonal, and ones on it."""
        if not self.unit and triangle_of(self.given._pattern) == "lower":
            return self.given
        return tril(self.given, -1 if self.unit else 0)

    def matrix(self) -> SparseTensor:
        """L L^T or L D L^T, which has more elements than L."""
        L = self.L
        if self.D is None:
            return cast(SparseTensor, matmul(L, L.mT))
        shape = torch.broadcast_shapes(L.shape[:-2], self.D.shape[:-1])
        size = (*shape, *L.shape[-2:])
        ones = eye(size[-1], dtype=L.dtype, device=L.device, layout=torch.sparse_csr)
        L = broadcast_to(L.to_sparse_csr(), size) + broadcast_to(ones, size)
        return cast(SparseTensor, matmul(mul(L, self.D.unsqueeze(-2)), L.mT))

    def half_log_det(self) -> torch.Tensor:
        """Found from the diagonal of L, or from D."""
        if self.D is None:
            half = diagonal(self.L, 0, -2, -1).log().sum(-1)
        else:
            half = 0.5 * self.D.log().sum(-1)
        return -half if self.precision else half

    def quadratic(self, v: torch.Tensor) -> torch.Tensor:
        """The squared norm of D^-1/2 L^-1 v, or for a precision of D^1/2 L^T v."""
        w = self._times(v, True) if self.precision else self._solve(v, False)
        square = w.square()
        if self.D is not None:
            square = square * self.D if self.precision else square / self.D
        return square.sum(-1)

    def draw(self, z: torch.Tensor) -> torch.Tensor:
        """L D^1/2 z, or for a precision L^-T D^-1/2 z."""
        if self.D is not None:
            z = z / self.D.sqrt() if self.precision else z * self.D.sqrt()
        return self._solve(z, True) if self.precision else self._times(z, False)

    def variance(self) -> torch.Tensor:
        """Sums of squares of the rows of L D^1/2; for a precision elements of the inverse."""
        if self.precision:
            return linalg.inverse_diagonal(self.matrix(), assume="positive definite")
        L = self.L
        D = torch.ones_like(diagonal(L, 0, -2, -1)) if self.D is None else self.D
        found = matmul(L * L, D.unsqueeze(-1)).squeeze(-1)
        return found + D if self.unit else found

    def _times(self, v: torch.Tensor, transpose: bool) -> torch.Tensor:
        L = self.L.mT if transpose else self.L
        found = matmul(L, v.unsqueeze(-1)).squeeze(-1)
        return found + v if self.unit else found

    def _solve(self, v: torch.Tensor, transpose: bool) -> torch.Tensor:
        L = self.L.mT if transpose else self.L
        found = solve_triangular(L, v.unsqueeze(-1), upper=transpose, unitriangular=self.unit)
        return found.squeeze(-1)


class Full(Parameter):
    """S or S^-1 is a symmetric positive definite sparse matrix A, and A^T another name of A.

    So results are functions of (A + A^T) / 2, and their derivatives of every order symmetric.
    """

    def __init__(self, A: SparseTensor, precision: bool) -> None:
        self.precision, self.A = precision, A
        self._found: tuple[int | None, Root, System] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_found": None}  # SuperLU's factors can't be copied

    @property
    def root(self) -> Root:
        """The root of A; solves and draws share it until A changes."""
        root = self._factored()[1]
        assert root is not None  # which only a transform has
        return root

    def _factored(self) -> tuple[int | None, Root | None, System]:
        vals, pattern = self.A._vals, self.A._pattern
        if is_transformed(vals):  # the numbers are known inside of operations alone
            return None, None, System(pattern, Kept(SuperLU(), "positive definite", pattern))
        version = None if vals.is_inference() else vals._version  # None: changes are not counted
        if self._found is None or version is None or self._found[0] != version:
            root = Root(self.A)
            system = System(pattern, Kept(ByRoot(root), "general", pattern))
            self._found = version, root, system
        return self._found

    def matrix(self) -> SparseTensor:
        """The matrix as it was given, with symmetric derivatives."""
        return on_pattern(self._values().view(self.A._pattern.values_shape), self.A._pattern)

    def _values(self) -> torch.Tensor:
        return with_symmetric_derivatives(flat(self.A), self.A._pattern)

    def half_log_det(self) -> torch.Tensor:
        """Found by a factorisation; its gradient is the inverse at the pattern of A."""
        half = 0.5 * linalg.logdet(self.matrix(), assume="positive definite")
        return -half if self.precision else half

    def quadratic(self, v: torch.Tensor) -> torch.Tensor:
        """v^T A v, or for a covariance v^T A^-1 v."""
        if self.precision:
            w = matmul(self.matrix(), v.unsqueeze(-1)).squeeze(-1)
        else:
            columns, unfold = in_columns(self.A._pattern, v.unsqueeze(-1), v.shape[-1])
            w = unfold(solve_with(self._values(), columns, self._factored()[2]), v.shape[-1])
            w = w.squeeze(-1)
        return (v * w).sum(-1)

    def draw(self, z: torch.Tensor) -> torch.Tensor:
        """Multiplies z with the root; the gradient is that of `_Draw`."""
        vals, m = self._values(), z.shape[-1]
        columns, unfold = in_columns(self.A._pattern, z.unsqueeze(-1), m)
        _, root, system = self._factored()
        how = _How(root, system, self.precision)
        recorded = wants_grad(vals) or root is None
        x = _Draw.apply(vals, columns, how) if recorded else _drawn(vals, columns, how)
        return unfold(x, m).squeeze(-1)

    def variance(self) -> torch.Tensor:
        """The diagonal of A, or for a precision that of its inverse."""
        return self._inverse_diagonal() if self.precision else diagonal(self.A, 0, -2, -1)

    def _inverse_diagonal(self) -> torch.Tensor:
        return linalg.inverse_diagonal(self.matrix(), assume="positive definite")


for _method in (Full.half_log_det, Full.quadratic, Full.draw, Full._inverse_diagonal):
    keep_outside(_method, "SuperLU factors the covariance or precision")


class _How(NamedTuple):
    """The root and the solver of a matrix, from which draws are made."""

    root: Root | None  # None: it is found inside of the operation
    system: System
    precision: bool


def _drawn(vals: torch.Tensor, z: torch.Tensor, how: _How) -> torch.Tensor:
    z, root = z.detach(), how.root
    if root is None:
        pattern = how.system.pattern
        root = Root(SparseTensor(vals.view(pattern.values_shape), pattern))
    return root.inverse_times(z) if how.precision else root.times(z)


class _Draw(Function):
    """A draw x of covariance S, and how it moves with S.

    Moving every draw by dx = dS S^-1 x / 2 changes E[x x^T] by dS / 2 + dS / 2: x + dx is Gaussian
    and has the covariance S + dS, to first order. So the derivative of the mean of f(x) is the mean
    of that of f along dx, although dx is not what the derivative of a triangular root of S gives.
    For A = S it is <g, dx> = <g, dA A^-1 x> / 2, so that the gradient of A is g u^T / 2 with
    A u = x. For A = S^-1, dS = -A^-1 dA A^-1, so that it is -u x^T / 2 with A u = g. This holds
    for every f, so for derivatives of f too, and in every order.
    """

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, z: torch.Tensor, how: _How) -> torch.Tensor:  # type: ignore[override]
        x = _drawn(vals, z, how)
        ctx.save_for_backward(vals, x)
        ctx.how = how
        return x

    @staticmethod
    @in_gradient_of("distributions.SparseMultivariateNormal.rsample")
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, x = ctx.saved_tensors
        _, system, precision = ctx.how
        u = solve_with(vals, g if precision else x, system._replace(cotangent=precision))
        left, right = (-u, x) if precision else (g, u)
        return sddmm(left, right, system.pattern) / 2, None, None


def log_two_pi(m: int) -> float:
    """m log(2 pi)."""
    return m * math.log(2 * math.pi)
