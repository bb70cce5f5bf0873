"""The matrices: real graphs packed in `data/`, and generated ones, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

DATA = Path(__file__).parent / "data"


def _packed(name: str, rng: np.random.Generator) -> sp.csr_array:
    """The pattern of a real matrix, undirected graphs symmetrised."""
    with np.load(DATA / f"{name}.npz") as file:
        ones = np.ones(len(file["idx"]))
        S = sp.csr_array((ones, file["idx"], file["ptr"]), shape=tuple(file["shape"]))
        return S + sp.triu(S, 1).T if file["symmetric"] else S


def _uniform(m: int, n: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """About `per_row` entries in each row, anywhere."""
    row = np.repeat(np.arange(m), per_row)
    return _from_pairs(row, rng.integers(0, n, len(row)), (m, n))


def _power_law(n: int, nse: int, rng: np.random.Generator) -> sp.csr_array:
    """Rows and columns drawn with probability proportional to 1 / rank, the ranks shuffled."""
    weight = 1 / np.arange(1, n + 1)
    ends = rng.choice(n, size=(2, nse), p=weight / weight.sum())
    rank = rng.permutation(n)
    return _from_pairs(rank[ends[0]], rank[ends[1]], (n, n))


def _grid(side: int, rng: np.random.Generator) -> sp.csr_array:
    """The five-point stencil on a square grid."""
    one = sp.eye_array(side)
    line = sp.eye_array(side, k=-1) + one + sp.eye_array(side, k=1)
    S = sp.csr_array(sp.kron(line, one) + sp.kron(one, line))
    S.data[:] = 1
    return S


def _dense_row(n: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """Few entries in each row, and one row with all of them."""
    S = _uniform(n, n, per_row, rng).tolil()
    S[n // 2] = 1.0
    return sp.csr_array(S)


def _tiny(rng: np.random.Generator) -> sp.csr_array:
    """A row with all entries, and one without any."""
    row, col = _dense_row(60, 4, rng).tocoo().coords
    return _from_pairs(row[row != 7], col[row != 7], (60, 60))


def _from_pairs(row: np.ndarray, col: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    return sp.csr_array(sp.coo_array((np.ones(len(row)), (row, col)), shape=shape))


REAL = ("MIT8", "astro-ph", "wing", "memplus")

MATRICES: dict[str, Callable[[np.random.Generator], sp.csr_array]] = {
    **{name: partial(_packed, name) for name in REAL},
    "uniform": partial(_uniform, 20_000, 20_000, 12),
    "power-law": partial(_power_law, 20_000, 300_000),
    "grid": partial(_grid, 250),
    "tall": partial(_uniform, 100_000, 1_000, 3),
    "dense-row": partial(_dense_row, 20_000, 6),
    "tiny": _tiny,
}
"""Name -> what makes its pattern; `tiny` is for tests and warm-up."""


def load(name: str, dtype: str) -> sp.csr_array:
    """A matrix by name: CSR with sorted unique int32 indices and seeded normal values."""
    rng = np.random.default_rng(0)
    return with_values(MATRICES[name](rng), rng, dtype)


def with_values(S: sp.csr_array, rng: np.random.Generator, dtype: str) -> sp.csr_array:
    """The pattern of S, as `load` gives it, with normal values."""
    S.sum_duplicates()
    val = rng.standard_normal(S.nnz).astype(dtype)
    ptr, idx = S.indptr.astype(np.int32), S.indices.astype(np.int32)
    return sp.csr_array((val, idx, ptr), shape=S.shape)
