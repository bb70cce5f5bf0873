"""Multivariate normals with a sparse factor of the covariance or of the precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributions import Distribution, constraints

from spgrad.distributions import SparseMultivariateNormal as _SparseMultivariateNormal

__all__ = ["SparseMultivariateNormal", "SparseMultivariateNormalNative"]


class SparseMultivariateNormal(_SparseMultivariateNormal):
    """`spgrad.distributions.SparseMultivariateNormal` with a native COO or CSR factor.

    With `diagonal` D, the matrix is L D L^T, where L has ones on its diagonal and the elements that
    are stored below it. Values are not checked. Log densities, entropies and divergences work too.

    Example:
        >>> L = torch.eye(3).to_sparse_csr()
        >>> SparseMultivariateNormal(torch.zeros(3), scale_tril=L).rsample((2,)).shape
        torch.Size([2, 3])
    """

    arg_constraints = {}  # noqa: RUF012

    def __init__(
        self,
        loc: torch.Tensor,
        diagonal: torch.Tensor | None = None,
        scale_tril: torch.Tensor | None = None,
        precision_tril: torch.Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        for name, x, least in (
            ("loc", loc, 1),
            ("diagonal", diagonal, 1),
            ("scale_tril", scale_tril, 2),
            ("precision_tril", precision_tril, 2),
        ):
            _require_one_batch(name, x, least)
        if (scale_tril is None) == (precision_tril is None):
            raise ValueError("one of scale_tril and precision_tril is taken, and not both")
        self._given = scale_tril if precision_tril is None else precision_tril
        super().__init__(
            loc,
            scale_tril=scale_tril,
            precision_tril=precision_tril,
            diagonal=diagonal,
            validate_args=False,
        )
        self.loc = loc
        self._validate_args = bool(validate_args)

    @property
    def scale_tril(self) -> Any:
        """The factor of the covariance as it was given, coalesced."""
        return self._native("scale_tril")

    @property
    def precision_tril(self) -> Any:
        """The factor of the precision as it was given, coalesced."""
        return self._native("precision_tril")

    def _native(self, name: str) -> Any:
        if self._name != name:
            raise AttributeError(f"the distribution is given by its {self._name}, not its {name}")
        given: Any = self._given
        coalesced = given.layout != torch.sparse_coo or given.is_coalesced()
        return given if coalesced else given.coalesce()

    @property
    def is_ldlt_parameterization(self) -> bool:
        """Whether `diagonal` was given."""
        return self.diagonal is not None


def _require_one_batch(name: str, x: torch.Tensor | None, least: int) -> None:
    if x is None:
        return
    if least == 2 and x.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ValueError(f"{name} has layout {x.layout}; COO and CSR are taken")
    if x.dim() not in (least, least + 1):
        raise ValueError(f"{name} has {x.dim()} dimensions; {least}, or one more, are taken")


class SparseMultivariateNormalNative(Distribution):
    """One Gaussian with a CSR factor of its covariance.

    Example:
        >>> L = torch.eye(3).to_sparse_csr()
        >>> SparseMultivariateNormalNative(torch.zeros(3), L).variance
        tensor([1., 1., 1.])
    """

    arg_constraints = {"loc": constraints.real_vector}  # noqa: RUF012  # type: ignore[assignment]
    support = constraints.real_vector  # type: ignore[assignment]
    has_rsample = True

    def __init__(
        self, loc: torch.Tensor, scale_tril: torch.Tensor, validate_args: bool | None = None
    ) -> None:
        if loc.dim() != 1:
            raise ValueError(f"loc must be one-dimensional; it has shape {tuple(loc.shape)}")
        if scale_tril.layout != torch.sparse_csr:
            raise ValueError(f"scale_tril must be sparse CSR; it has layout {scale_tril.layout}")
        if scale_tril.dim() != 2:
            raise ValueError(f"scale_tril must be two-dimensional, not {scale_tril.dim()}-d")
        if tuple(scale_tril.shape) != (loc.shape[0], loc.shape[0]):
            raise ValueError(f"scale_tril has shape {tuple(scale_tril.shape)} for {loc.shape}")
        self.loc, self.scale_tril = loc, scale_tril
        self._normal = SparseMultivariateNormal(loc, scale_tril=scale_tril)
        super().__init__(torch.Size(), loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> torch.Tensor:
        """`loc`."""
        return self.loc

    @property
    def mode(self) -> torch.Tensor:
        """`loc`."""
        return self.loc

    @property
    def variance(self) -> torch.Tensor:
        """The diagonal of the covariance."""
        return self._normal.variance

    @property
    def covariance_matrix(self) -> torch.Tensor:
        """The covariance, dense."""
        warnings.warn("covariance_matrix is dense", UserWarning, stacklevel=2)
        return self._normal.covariance_matrix.to_dense()

    def rsample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Draws (*sample_shape, m) with gradient."""
        return self._normal.rsample(sample_shape)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """The logarithm of the density at `value`."""
        if self._validate_args:
            self._validate_sample(value)
        return self._normal.log_prob(value)


def _batch_sparse_mv(
    op: Callable[..., torch.Tensor], bmat: torch.Tensor, bvec: torch.Tensor, **options: Any
) -> torch.Tensor:
    """`op(A, B, ...)` for vectors (*sample, *b, m) with at most one sample dimension."""
    if bmat.dim() not in (2, 3) or bvec.dim() not in (bmat.dim() - 1, bmat.dim()):
        raise ValueError(f"shapes {tuple(bmat.shape)} and {tuple(bvec.shape)} do not fit")
    if bvec.dim() < bmat.dim():
        return op(bmat, bvec.unsqueeze(-1), **options).squeeze(-1)
    return op(bmat, bvec.movedim(0, -1), **options).movedim(-1, 0)
