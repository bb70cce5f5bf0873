"""The matrices: real graphs packed in `data/`, and generated ones, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

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
            microseconds; or "tiny", for tests.
    """

    make: Make
    shape: tuple[int, int]
    entries: int
    group: str


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


def _spread(m: int, n: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """`per_row` entries in each row, one anywhere in each of as many equal parts of it.

    In order and apart from one another as they are drawn, so 10^8 of them take seconds.
    """
    bounds = np.linspace(0, n, per_row + 1).astype(np.int32)
    col = rng.integers(bounds[:-1], bounds[1:], (m, per_row), dtype=np.int32)
    ptr = np.arange(0, m * per_row + 1, per_row, dtype=np.int32)
    S = sp.csr_array((np.ones(m * per_row, np.float32), col.reshape(-1), ptr), shape=(m, n))
    S.has_canonical_format = True
    return S


def _power_law(n: int, nse: int, power: float, rng: np.random.Generator) -> sp.csr_array:
    """Rows and columns drawn with probability proportional to rank^-power, the ranks shuffled."""
    weight = np.arange(1, n + 1) ** -power
    ends = rng.choice(n, size=(2, nse), p=weight / weight.sum())
    rank = rng.permutation(n)
    return _from_pairs(rank[ends[0]], rank[ends[1]], (n, n))


def _social(n: int, edges: int, rng: np.random.Generator) -> sp.csr_array:
    """A symmetric graph whose degrees spread as those of friendships do: lognormal, from 1 up."""
    drawn = _distinct_pairs(_lognormal(n, 0.95, rng), _lognormal(n, 0.95, rng), edges, rng)
    low, high = np.minimum(*drawn), np.maximum(*drawn)
    return _from_pairs(np.r_[low, high], np.r_[high, low], (n, n))


def _bipartite(users: int, items: int, edges: int, rng: np.random.Generator) -> sp.csr_array:
    """The symmetric matrix of a graph between users and items, both with degrees far apart."""
    parts = _lognormal(users, 0.9, rng), _lognormal(items, 1.1, rng)
    user, item = _distinct_pairs(*parts, edges, rng)
    item = item + users
    n = users + items
    return _from_pairs(np.r_[user, item], np.r_[item, user], (n, n))


def _lognormal(n: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Probabilities, in no order."""
    weight = rng.lognormal(0, sigma, n)
    return weight / weight.sum()


def _distinct_pairs(
    p: np.ndarray, q: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """So many pairs of different numbers, drawn by two distributions; none is there twice."""
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        a, b = (rng.choice(len(w), size=count + count // 2, p=w) for w in (p, q))
        if len(p) == len(q):
            a, b = np.minimum(a, b), np.maximum(a, b)
        new = (a * len(q) + b)[a != b]
        keys = np.unique(np.concatenate([keys, new]))
    keys = rng.permutation(keys)[:count]
    return keys // len(q), keys % len(q)


def _grid(side: int, rng: np.random.Generator) -> sp.csr_array:
    """The five-point stencil on a square grid."""
    one = sp.eye_array(side)
    line = sp.eye_array(side, k=-1) + one + sp.eye_array(side, k=1)
    S = sp.csr_array(sp.kron(line, one) + sp.kron(one, line))
    S.data[:] = 1
    return S


def _banded(n: int, reach: int, rng: np.random.Generator) -> sp.csr_array:
    """All elements that are at most `reach` away from the diagonal."""
    offsets = range(-reach, reach + 1)
    return sp.csr_array(sp.diags_array([np.ones(n - abs(i)) for i in offsets], offsets=offsets))


def _blocks(count: int, side: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """Dense blocks, about `per_row` of them in each row of blocks, anywhere."""
    places = _uniform(count, count, per_row, rng)
    return sp.csr_array(sp.kron(places, np.ones((side, side)), format="csr"))


def _dense_row(n: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """Few entries in each row, and one row with all of them."""
    row, col = _uniform(n, n, per_row, rng).tocoo().coords
    other = row != n // 2
    full = np.full(n, n // 2)
    return _from_pairs(np.r_[row[other], full], np.r_[col[other], np.arange(n)], (n, n))


def _tiny(rng: np.random.Generator) -> sp.csr_array:
    """A row with all entries, and one without any."""
    row, col = _dense_row(60, 4, rng).tocoo().coords
    return _from_pairs(row[row != 7], col[row != 7], (60, 60))


def _from_pairs(row: np.ndarray, col: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    return sp.csr_array(sp.coo_array((np.ones(len(row)), (row, col)), shape=shape))


def _real(name: str, n: int, entries: int) -> Matrix:
    return Matrix(partial(_packed, name), (n, n), entries, "real")


def _generated(make: Make, shape: tuple[int, int], entries: int) -> Matrix:
    return Matrix(make, shape, entries, "generated")


def _square(make: Make, n: int, entries: int) -> Matrix:
    return _generated(make, (n, n), entries)


_PER_ROW = 32  # of the matrices that grow


def _grown(exponent: int) -> Matrix:
    n = 10**exponent // _PER_ROW
    return Matrix(partial(_spread, n, n, _PER_ROW), (n, n), n * _PER_ROW, "growth")


def _small(n: int) -> Matrix:
    return Matrix(partial(_spread, n, n, 5), (n, n), 5 * n, "small")


MATRICES: dict[str, Matrix] = {
    "MIT8": _real("MIT8", 6440, 502_504),
    "astro-ph": _real("astro-ph", 16_706, 242_502),
    "wing": _real("wing", 62_032, 243_088),
    "memplus": _real("memplus", 17_758, 126_150),
    # As large as well-known ones, whose files are not ours to pass on.
    "social": _square(partial(_social, 18_660, 790_777), 18_660, 1_581_554),
    "bipartite": _square(partial(_bipartite, 29_858, 40_981, 810_128), 70_839, 1_620_256),
    "power-law-2m": _square(partial(_power_law, 100_000, 2_000_000, 0.7), 100_000, 1_957_787),
    "grid-250k": _square(partial(_grid, 500), 250_000, 1_248_000),
    "uniform": _square(partial(_uniform, 20_000, 20_000, 12), 20_000, 240_000),
    "power-law": _square(partial(_power_law, 20_000, 300_000, 1.0), 20_000, 195_407),
    "grid": _square(partial(_grid, 250), 62_500, 311_500),
    "banded": _square(partial(_banded, 50_000, 8), 50_000, 850_000),
    "blocks": _square(partial(_blocks, 3_000, 16, 4), 48_000, 3_070_000),
    "tall": _generated(partial(_uniform, 100_000, 1_000, 3), (100_000, 1_000), 300_000),
    "wide": _generated(partial(_uniform, 1_000, 100_000, 300), (1_000, 100_000), 300_000),
    "dense-row": _square(partial(_dense_row, 20_000, 6), 20_000, 140_000),
    **{f"uniform-1e{exponent}": _grown(exponent) for exponent in range(4, 9)},
    **{f"small-{n}": _small(n) for n in (64, 256, 1024, 4096)},
    "tiny": Matrix(_tiny, (60, 60), 290, "tiny"),
}
"""Name -> matrix."""


def _in_group(*groups: str) -> tuple[str, ...]:
    return tuple(name for name, matrix in MATRICES.items() if matrix.group in groups)


REAL, GROWTH, SMALL = _in_group("real"), _in_group("growth"), _in_group("small")
ALL_KINDS = _in_group("real", "generated")
"""What every operation is measured on."""
GROUPS = {
    "real": REAL,
    "generated": _in_group("generated"),
    "growth": GROWTH,
    "small": SMALL,
    "all": ALL_KINDS,
}
"""Name -> matrices that go by it."""


def shape_of(name: str) -> tuple[int, int]:
    return MATRICES[name].shape


def load(name: str, dtype: str) -> sp.csr_array:
    """A matrix by name: CSR with sorted unique int32 indices and seeded normal values."""
    rng = np.random.default_rng(0)
    return with_values(MATRICES[name].make(rng), rng, dtype)


def with_values(S: sp.csr_array, rng: np.random.Generator, dtype: str) -> sp.csr_array:
    """The pattern of S, as `load` gives it, with normal values."""
    S.sum_duplicates()
    val = rounded(rng.standard_normal(S.nnz), dtype)
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
