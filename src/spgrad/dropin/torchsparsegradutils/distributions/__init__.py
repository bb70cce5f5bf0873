"""Multivariate normals with a sparse factor."""

from spgrad.dropin.torchsparsegradutils.distributions.sparse_multivariate_normal import (
    SparseMultivariateNormal,
    SparseMultivariateNormalNative,
)

__all__ = ["SparseMultivariateNormal", "SparseMultivariateNormalNative"]
