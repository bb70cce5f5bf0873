"""Distributions of torch.distributions whose parameters are sparse."""

from spgrad.distributions import divergence as _divergence  # noqa: F401  # registers with torch
from spgrad.distributions.constraints import (
    sparse_lower_cholesky,
    sparse_lower_triangular,
    sparse_positive_definite,
)
from spgrad.distributions.normal import SparseMultivariateNormal

__all__ = [
    "SparseMultivariateNormal",
    "sparse_lower_cholesky",
    "sparse_lower_triangular",
    "sparse_positive_definite",
]
