"""Algorithms on sparse matrices, made of operations and without kernels of their own."""

from spgrad.linalg.exponential import expm_multiply
from spgrad.linalg.lobpcg import lobpcg
from spgrad.linalg.lowrank import pca_lowrank, svd_lowrank
from spgrad.linalg.ordering import locality_order, reorder, reverse_cuthill_mckee
from spgrad.linalg.structure import connected_components, is_hermitian, is_symmetric
from spgrad.ops import register
from spgrad.support import OPS

__all__ = [
    "connected_components",
    "expm_multiply",
    "is_hermitian",
    "is_symmetric",
    "lobpcg",
    "locality_order",
    "pca_lowrank",
    "reorder",
    "reverse_cuthill_mckee",
    "svd_lowrank",
]

for _name in __all__:
    register(OPS[_name])
