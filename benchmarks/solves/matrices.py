"""Matrices of linear systems, whose values are given too."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import scipy
import scipy.sparse as sp

ROOT = Path(__file__).parents[2]
_KEPT = 100  # side of the grid from which on a factor is kept in a file


def poisson(side: int, rng: np.random.Generator) -> sp.csr_array:
    """The five-point Laplacian of a square grid, zero outside: 4 on the diagonal, -1 beside it."""
    one, edge = sp.eye_array(side), sp.eye_array(side, k=1)
    line = 2 * one - edge - edge.T
    return sp.csr_array(sp.kron(line, one) + sp.kron(one, line))


def factor(side: int, rng: np.random.Generator) -> sp.csr_array:
    """L of P A P^T = L U for that Laplacian, by SuperLU in the order of least degree.

    For a large grid it is made when it is first used, and kept in build/benchmarks.
    """
    if side < _KEPT:
        return _lower(side, rng)
    path = ROOT / "build" / "benchmarks" / f"factor-{side}-scipy-{scipy.__version__}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"{os.getpid()}-{path.name}")
        sp.save_npz(made, _lower(side, rng))
        made.replace(path)
    return sp.csr_array(sp.load_npz(path))


def _lower(side: int, rng: np.random.Generator) -> sp.csr_array:
    from scipy.sparse.linalg import splu

    A = poisson(side, rng).tocsc()
    options = {"SymmetricMode": True}
    made = splu(A, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    return sp.csr_array(made.L)
