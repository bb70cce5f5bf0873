"""Constraints on sparse parameters of distributions, as in torch.distributions.constraints."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch.distributions.constraints import Constraint

from spgrad import kernels
from spgrad.core.tensor import SparseTensor
from spgrad.distributions.root import Root
from spgrad.errors import ArgumentValueError, PivotError
from spgrad.linalg.assume import flat_diagonal, in_view, require_true
from spgrad.lowering.views import rows
from spgrad.ops.solves.triangular import square_operand
from spgrad.public import public_as


class _Sparse(Constraint, ABC):
    """A condition on a sparse square matrix (*b, m, m); `check` says for each item if it holds."""

    event_dim = 2
    name: ClassVar[str]

    def check(self, value: Any) -> torch.Tensor:
        """Whether each item satisfies the constraint (*b,), bool."""
        return public_as(f"distributions.{self.name}.check")(self._check)(value)

    def _check(self, value: Any) -> torch.Tensor:
        A = square_operand("value", value)
        A = cast(SparseTensor, A.detach()) if A.requires_grad else A
        found = self._holds(A).view(A._pattern.batch)
        finite = torch.isfinite(A._vals).all()
        return found & finite

    @abstractmethod
    def _holds(self, A: SparseTensor) -> torch.Tensor:
        """Whether each item of a square matrix without a graph satisfies it, flat."""


class _LowerTriangular(_Sparse):
    name = "sparse_lower_triangular"

    def _holds(self, A: SparseTensor) -> torch.Tensor:
        view = rows(A._pattern)
        row = kernels.expand(view.ptr, view.idx.shape[0]).to(torch.int64)
        items = math.prod(A._pattern.batch)
        found = (view.idx > row) & (in_view(A._vals.reshape(-1), view.perm) != 0)
        above = row[found] // max(A._pattern.matrix[0], 1)
        return torch.bincount(above, minlength=items)[:items] == 0


class _LowerCholesky(_LowerTriangular):
    name = "sparse_lower_cholesky"

    def _holds(self, A: SparseTensor) -> torch.Tensor:
        diagonal = flat_diagonal(A)
        positive = diagonal.real > 0
        if diagonal.is_complex():
            positive &= diagonal.imag == 0
        shape = math.prod(A._pattern.batch), A._pattern.matrix[0]
        return super()._holds(A) & positive.view(shape).all(-1)


class _PositiveDefinite(_Sparse):
    name = "sparse_positive_definite"

    def _holds(self, A: SparseTensor) -> torch.Tensor:
        items = math.prod(A._pattern.batch)
        try:
            require_true(A, "positive definite")
        except (ArgumentValueError, PivotError):  # not symmetric, or a diagonal not positive
            holds = False
        else:
            holds = Root(A).failed is None
        return torch.full((items,), holds, device=A.device)


sparse_lower_triangular = _LowerTriangular()
"""No element above the diagonal, other than zeros."""

sparse_lower_cholesky = _LowerCholesky()
"""No element above the diagonal, other than zeros, and positive ones on it."""

sparse_positive_definite = _PositiveDefinite()
"""Symmetric and positive definite; of a batch, all items or none."""
