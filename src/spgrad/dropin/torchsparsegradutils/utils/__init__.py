"""Iterative solvers, random matrices, block-diagonal matrices."""

from spgrad.dropin.torchsparsegradutils.utils.bicgstab import BICGSTABSettings, bicgstab
from spgrad.dropin.torchsparsegradutils.utils.dist_stats_helpers import (
    cov_nagao_test,
    mean_hotelling_t2_test,
)
from spgrad.dropin.torchsparsegradutils.utils.linear_cg import LinearCGSettings, linear_cg
from spgrad.dropin.torchsparsegradutils.utils.lsmr import lsmr
from spgrad.dropin.torchsparsegradutils.utils.minres import MINRESSettings, minres
from spgrad.dropin.torchsparsegradutils.utils.random_sparse import rand_sparse, rand_sparse_tri
from spgrad.dropin.torchsparsegradutils.utils.utils import (
    convert_coo_to_csr,
    convert_coo_to_csr_indices_values,
    sparse_block_diag,
    sparse_block_diag_split,
    sparse_eye,
    stack_csr,
)

__all__ = [
    "BICGSTABSettings",
    "LinearCGSettings",
    "MINRESSettings",
    "bicgstab",
    "convert_coo_to_csr",
    "convert_coo_to_csr_indices_values",
    "cov_nagao_test",
    "linear_cg",
    "lsmr",
    "mean_hotelling_t2_test",
    "minres",
    "rand_sparse",
    "rand_sparse_tri",
    "sparse_block_diag",
    "sparse_block_diag_split",
    "sparse_eye",
    "stack_csr",
]
