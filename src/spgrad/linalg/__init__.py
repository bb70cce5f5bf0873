"""Solvers, decompositions and reorderings of sparse matrices, built on `spgrad.ops`."""

from spgrad.core.slots import above
from spgrad.linalg.determinant import det, inverse_at, inverse_diagonal, logdet, slogdet
from spgrad.linalg.direct.cholmod import CHOLMOD
from spgrad.linalg.direct.factor import Factor, factor
from spgrad.linalg.direct.pardiso import PARDISO
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.exponential import expm_multiply
from spgrad.linalg.lstsq import NormalEquations, lstsq
from spgrad.linalg.ordering import locality_order, reorder, reverse_cuthill_mckee
from spgrad.linalg.preconditioners.amg import AMG
from spgrad.linalg.preconditioners.incomplete import IC0, ILU0
from spgrad.linalg.preconditioners.jacobi import BlockJacobi, Jacobi
from spgrad.linalg.preconditioners.ssor import SSOR
from spgrad.linalg.solve import solve
from spgrad.linalg.solvers.bicgstab import BiCGSTAB
from spgrad.linalg.solvers.cg import CG
from spgrad.linalg.solvers.gmres import GMRES
from spgrad.linalg.solvers.lsmr import LSMR
from spgrad.linalg.solvers.minres import MINRES
from spgrad.linalg.solvers.protocol import Info
from spgrad.linalg.spectral.condition import cond, spectral_norm
from spgrad.linalg.spectral.eigsh import Eigenpairs, eigsh
from spgrad.linalg.spectral.lobpcg import lobpcg
from spgrad.linalg.spectral.lowrank import pca_lowrank, svd_lowrank
from spgrad.linalg.spectral.svds import SingularTriplets, svds
from spgrad.linalg.structure import connected_components, is_hermitian, is_symmetric
from spgrad.ops import register_family

__all__ = [
    "AMG",
    "CG",
    "CHOLMOD",
    "GMRES",
    "IC0",
    "ILU0",
    "LSMR",
    "MINRES",
    "PARDISO",
    "SSOR",
    "BiCGSTAB",
    "BlockJacobi",
    "Eigenpairs",
    "Factor",
    "Info",
    "Jacobi",
    "NormalEquations",
    "SingularTriplets",
    "SuperLU",
    "cond",
    "connected_components",
    "det",
    "eigsh",
    "expm_multiply",
    "factor",
    "inverse_at",
    "inverse_diagonal",
    "is_hermitian",
    "is_symmetric",
    "lobpcg",
    "locality_order",
    "logdet",
    "lstsq",
    "pca_lowrank",
    "reorder",
    "reverse_cuthill_mckee",
    "slogdet",
    "solve",
    "svd_lowrank",
    "svds",
]

register_family("linalg")

above.fill(spectral_norm=spectral_norm)
