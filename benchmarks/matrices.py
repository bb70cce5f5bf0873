"""The matrices: real graphs packed in `data/`, and generated ones, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from benchmarks import patterns
from benchmarks.solves import matrices as systems

DATA = Path(__file__).parent / "data"

Make = Callable[[np.random.Generator], sp.csr_array]


@dataclass(frozen=True)
class Matrix:
    """What makes a pattern, and what is known before it is made.

    Attributes:
        make: The pattern, drawn by a generator of random numbers.
        shape: (m, n).
        entries: How many there are, about.
        group: "real"; "generated"; "growth", one kind in many sizes; "small", for calls that take
            microseconds; "blocked", stored in dense blocks; "solves", of linear systems; or "tiny",
            for tests.
        block: Side of its dense blocks; 0 where it is not stored in any.
        assume: What is known of its values, "positive definite" or "triangular", which `make` then
            gives; "" where they are random.
    """

    make: Make
    shape: tuple[int, int]
    entries: int
    group: str
    block: int = 0
    assume: str = ""


def _packed(name: str, rng: np.random.Generator) -> sp.csr_array:
    """The pattern of a real matrix, undirected graphs symmetrised."""
    with np.load(DATA / f"{name}.npz") as file:
        ones = np.ones(len(file["idx"]))
        S = sp.csr_array((ones, file["idx"], file["ptr"]), shape=tuple(file["shape"]))
        return S + sp.triu(S, 1).T if file["symmetric"] else S


def _real(name: str, n: int, entries: int) -> Matrix:
    return Matrix(partial(_packed, name), (n, n), entries, "real")


def _generated(make: Make, shape: tuple[int, int], entries: int) -> Matrix:
    return Matrix(make, shape, entries, "generated")


def _square(make: Make, n: int, entries: int) -> Matrix:
    return _generated(make, (n, n), entries)


_PER_ROW = 32  # of the matrices that grow
_SIZES = ("1e4", "1e5", "1e6", "1e7", "4e7", "1e8")
_FILLED = 0.05  # of the matrices in blocks


def _grown(entries: int) -> Matrix:
    n = entries // _PER_ROW
    return Matrix(partial(patterns.spread, n, n, _PER_ROW), (n, n), n * _PER_ROW, "growth")


def _small(n: int) -> Matrix:
    return Matrix(partial(patterns.spread, n, n, 5), (n, n), 5 * n, "small")


def _blocked(n: int, side: int) -> Matrix:
    make = partial(patterns.dense_blocks, n // side, side, _FILLED)
    return Matrix(make, (n, n), round(_FILLED * n * n), "blocked", side)


def _poisson(side: int, group: str = "solves") -> Matrix:
    n = side * side
    make = partial(systems.poisson, side)
    return Matrix(make, (n, n), 5 * n - 4 * side, group, assume="positive definite")


def _factor(side: int, entries: int, group: str = "solves") -> Matrix:
    n = side * side
    return Matrix(partial(systems.factor, side), (n, n), entries, group, assume="triangular")


MATRICES: dict[str, Matrix] = {
    "MIT8": _real("MIT8", 6440, 502_504),
    "astro-ph": _real("astro-ph", 16_706, 242_502),
    "wing": _real("wing", 62_032, 243_088),
    "memplus": _real("memplus", 17_758, 126_150),
    # As large as well-known ones, whose files are not ours to pass on.
    "social": _square(partial(patterns.social, 18_660, 790_777), 18_660, 1_581_554),
    "bipartite": _square(partial(patterns.bipartite, 29_858, 40_981, 810_128), 70_839, 1_620_256),
    "power-law-2m": _square(
        partial(patterns.power_law, 100_000, 2_000_000, 0.7), 100_000, 1_957_787
    ),
    "grid-250k": _square(partial(patterns.grid, 500), 250_000, 1_248_000),
    "uniform": _square(partial(patterns.uniform, 20_000, 20_000, 12), 20_000, 240_000),
    "power-law": _square(partial(patterns.power_law, 20_000, 300_000, 1.0), 20_000, 195_407),
    "grid": _square(partial(patterns.grid, 250), 62_500, 311_500),
    "fem": _square(partial(patterns.fem, 14), 8_232, 576_000),
    "fem-large": _square(partial(patterns.fem, 30), 81_000, 6_133_248),
    "banded": _square(partial(patterns.diagonals, 50_000, range(-8, 9)), 50_000, 850_000),
    "diagonals": _square(partial(patterns.diagonals, 8_700, range(-32, 32)), 8_700, 555_776),
    "blocks": _square(partial(patterns.blocks, 3_000, 16, 4), 48_000, 3_070_000),
    "tall": _generated(partial(patterns.uniform, 100_000, 1_000, 3), (100_000, 1_000), 300_000),
    "wide": _generated(partial(patterns.uniform, 1_000, 100_000, 300), (1_000, 100_000), 300_000),
    "dense-row": _square(partial(patterns.dense_row, 20_000, 20_000, 6), 20_000, 140_000),
    "huge-row": _generated(
        partial(patterns.dense_row, 2_000, 200_000, 4), (2_000, 200_000), 207_996
    ),
    "one-entry": _square(partial(patterns.one_entry, 200_000), 200_000, 200_000),
    "road": _square(partial(patterns.road, 124, 21_500, 115_000), 115_000, 242_248),
    "chemical": _square(partial(patterns.chemical, 70_000), 70_000, 1_251_731),
    **{f"uniform-{size}": _grown(int(float(size))) for size in _SIZES},
    **{f"blocks-{side}": _blocked(4_096, side) for side in (4, 16, 32)},
    **{f"small-{n}": _small(n) for n in (64, 256, 1024, 4096)},
    "poisson-250": _poisson(250),
    "poisson-1000": _poisson(1000),
    "factor-400": _factor(400, 4_848_099),
    "tiny-poisson": _poisson(24, "tiny"),
    "tiny-factor": _factor(24, 5_724, "tiny"),
    "tiny": Matrix(patterns.tiny, (60, 60), 290, "tiny", 4),
}
"""Name -> matrix."""


def _in_group(*groups: str) -> tuple[str, ...]:
    return tuple(name for name, matrix in MATRICES.items() if matrix.group in groups)


REAL, GROWTH, SMALL = _in_group("real"), _in_group("growth"), _in_group("small")
BLOCKED = _in_group("blocked")
SOLVES = _in_group("solves")
SMALLEST = {"": "tiny", "positive definite": "tiny-poisson", "triangular": "tiny-factor"}
"""What is known of a matrix -> one to try things on."""
LOCAL = ("fem", "fem-large", "banded", "diagonals", "grid", "grid-250k")
"""Those in which the rows of x that a row needs are near to those of the row before."""
ALL_KINDS = _in_group("real", "generated")
"""What every operation is measured on."""
GROUPS = {
    "real": REAL,
    "generated": _in_group("generated"),
    "growth": GROWTH,
    "small": SMALL,
    "blocked": BLOCKED,
    "solves": SOLVES,
    "local": LOCAL,
    "all": ALL_KINDS,
}
"""Name -> matrices that go by it."""


def shape_of(name: str) -> tuple[int, int]:
    return MATRICES[name].shape


def load(name: str, dtype: str) -> sp.csr_array:
    """A matrix by name: CSR with sorted unique int32 indices.

    Values are normal, from a fixed seed, where the matrix does not give its own.
    """
    rng = np.random.default_rng(0)
    S = MATRICES[name].make(rng)
    if not MATRICES[name].assume:
        return with_values(S, rng, dtype)
    S.sum_duplicates()
    return _stored(S, rounded(S.data, dtype))


def with_values(S: sp.csr_array, rng: np.random.Generator, dtype: str) -> sp.csr_array:
    """The pattern of S, as `load` gives it, with normal values."""
    S.sum_duplicates()
    return _stored(S, rounded(rng.standard_normal(S.nnz), dtype))


def _stored(S: sp.csr_array, val: np.ndarray) -> sp.csr_array:
    ptr, idx = S.indptr.astype(np.int32, copy=False), S.indices.astype(np.int32, copy=False)
    made = sp.csr_array((val, idx, ptr), shape=S.shape)
    made.has_canonical_format = True
    return made


def rounded(a: np.ndarray, dtype: str) -> np.ndarray:
    """In this dtype; numbers of bfloat16, which NumPy does not have, in float32."""
    if dtype != "bfloat16":
        return a.astype(dtype)
    import torch

    return torch.tensor(a).bfloat16().float().numpy()
