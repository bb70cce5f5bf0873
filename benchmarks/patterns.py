"""Patterns of generated matrices: each one is drawn from a generator of random numbers."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order

_TILE = 8  # crossings along the side of a tile of a road map


def uniform(m: int, n: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """About `per_row` entries in each row, at random columns."""
    row = np.repeat(np.arange(m), per_row)
    return _from_pairs(row, rng.integers(0, n, len(row)), (m, n))


def spread(m: int, n: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """`per_row` entries in each row, one anywhere in each of as many equal parts of it.

    They are drawn in order and are distinct, so no sort is needed: 10^8 of them take seconds.
    """
    bounds = np.linspace(0, n, per_row + 1).astype(np.int32)
    col = rng.integers(bounds[:-1], bounds[1:], (m, per_row), dtype=np.int32)
    ptr = np.arange(0, m * per_row + 1, per_row, dtype=np.int32)
    S = sp.csr_array((np.ones(m * per_row, np.float32), col.reshape(-1), ptr), shape=(m, n))
    S.has_canonical_format = True
    return S


def power_law(n: int, nse: int, power: float, rng: np.random.Generator) -> sp.csr_array:
    """Rows and columns drawn with probability proportional to rank^-power, the ranks shuffled."""
    weight = np.arange(1, n + 1) ** -power
    ends = rng.choice(n, size=(2, nse), p=weight / weight.sum())
    rank = rng.permutation(n)
    return _from_pairs(rank[ends[0]], rank[ends[1]], (n, n))


def social(n: int, edges: int, rng: np.random.Generator) -> sp.csr_array:
    """A symmetric graph whose degrees spread as those of friendships do: lognormal, from 1 up."""
    drawn = _distinct_pairs(_lognormal(n, 0.95, rng), _lognormal(n, 0.95, rng), edges, rng)
    low, high = np.minimum(*drawn), np.maximum(*drawn)
    return _from_pairs(np.r_[low, high], np.r_[high, low], (n, n))


def bipartite(users: int, items: int, edges: int, rng: np.random.Generator) -> sp.csr_array:
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
    """So many distinct pairs of different numbers, drawn by two distributions."""
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        a, b = (rng.choice(len(w), size=count + count // 2, p=w) for w in (p, q))
        if len(p) == len(q):
            a, b = np.minimum(a, b), np.maximum(a, b)
        new = (a * len(q) + b)[a != b]
        keys = np.unique(np.concatenate([keys, new]))
    keys = rng.permutation(keys)[:count]
    return keys // len(q), keys % len(q)


def grid(side: int, rng: np.random.Generator) -> sp.csr_array:
    """The five-point stencil on a square grid."""
    one = sp.eye_array(side)
    line = sp.eye_array(side, k=-1) + one + sp.eye_array(side, k=1)
    S = sp.csr_array(sp.kron(line, one) + sp.kron(one, line))
    S.data[:] = 1
    return S


def fem(side: int, rng: np.random.Generator) -> sp.csr_array:
    """Finite elements in a cube of side^3 nodes, three unknowns each, coupled with 27 nodes."""
    line = diagonals(side, range(-1, 2), rng)
    nodes = sp.kron(sp.kron(line, line, format="csr"), line, format="csr")
    return sp.csr_array(sp.kron(nodes, np.ones((3, 3)), format="csr"))


def diagonals(n: int, offsets: range, rng: np.random.Generator) -> sp.csr_array:
    """All elements of these diagonals."""
    return sp.csr_array(sp.diags_array([np.ones(n - abs(i)) for i in offsets], offsets=offsets))


def road(side: int, roads: int, n: int, rng: np.random.Generator) -> sp.csr_array:
    """A network of n places: crossings, and the bends of the roads between them.

    Of the roads of a square grid with side^2 crossings so many are kept, and the other places are
    bends of these roads. Places are numbered tile by tile, and in a tile by breadth-first search.
    """
    crossing = np.arange(side * side).reshape(side, side)
    first = np.r_[crossing[:, :-1].ravel(), crossing[:-1].ravel()]
    last = np.r_[crossing[:, 1:].ravel(), crossing[1:].ravel()]
    kept = np.sort(rng.choice(len(first), size=roads, replace=False))
    first, last = first[kept], last[kept]
    length = rng.exponential(size=roads)
    bends = rng.multinomial(n - side * side, length / length.sum())
    begin = side * side + np.cumsum(bends) - bends  # the first bend of each road
    filled = bends > 0
    inside = np.delete(np.arange(side * side, n), (begin + bends - 1 - side * side)[filled])
    a = np.r_[np.where(filled, first, last), inside, (begin + bends - 1)[filled]]
    b = np.r_[np.where(filled, begin, first), inside + 1, last[filled]]
    S = _from_pairs(np.r_[a, b], np.r_[b, a], (n, n))
    near = np.r_[np.arange(side * side), np.repeat(first, bends)]
    tile = near // side // _TILE * side + near % side // _TILE
    reached = breadth_first_order(S, n // 2 % (side * side), return_predecessors=False)
    distance = np.full(n, n)
    distance[reached] = np.arange(len(reached))
    order = np.lexsort((distance, tile))
    return sp.csr_array(S[order][:, order])


def one_entry(n: int, rng: np.random.Generator) -> sp.csr_array:
    """One entry in each row, and in each column."""
    col = rng.permutation(n).astype(np.int32)
    return sp.csr_array((np.ones(n), col, np.arange(n + 1)), shape=(n, n))


def chemical(n: int, rng: np.random.Generator) -> sp.csr_array:
    """Equations of a plant: each unit's own, in clusters, and streams from units before and after.

    Units have 16 to 64 unknowns. An equation has three runs of its unit's unknowns, the diagonal,
    and every other one about an unknown elsewhere, mostly of a unit near by. Not symmetric.
    """
    sizes = rng.integers(16, 65, n // 16)
    ends = np.cumsum(sizes)
    unit = np.searchsorted(ends, np.arange(n), side="right")
    begin, end = (ends - sizes)[unit], np.minimum(ends[unit], n)
    rows = np.arange(n)
    lengths = rng.geometric(0.125, 3 * n)
    start = rng.integers(np.tile(begin, 3), np.tile(end, 3))
    row = np.repeat(np.tile(rows, 3), lengths)
    run = np.repeat(np.arange(3 * n), lengths)
    col = start[run] + np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    own = col < end[row]
    linked = rows[rng.random(n) < 0.5]
    away = 64 * rng.geometric(0.1, len(linked)) * rng.choice([-1, 1], len(linked))
    other = (linked + away + rng.integers(-32, 32, len(linked))) % n
    return _from_pairs(np.r_[row[own], rows, linked], np.r_[col[own], rows, other], (n, n))


def blocks(count: int, side: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """Dense blocks, about `per_row` of them in each row of blocks, anywhere."""
    places = uniform(count, count, per_row, rng)
    return sp.csr_array(sp.kron(places, np.ones((side, side)), format="csr"))


def dense_blocks(count: int, side: int, share: float, rng: np.random.Generator) -> sp.csr_array:
    """This share of the count x count blocks, anywhere."""
    places = rng.choice(count * count, size=round(share * count * count), replace=False)
    grid = _from_pairs(places // count, places % count, (count, count))
    return sp.csr_array(sp.kron(grid, np.ones((side, side)), format="csr"))


def dense_row(m: int, n: int, per_row: int, rng: np.random.Generator) -> sp.csr_array:
    """Few entries in each row, and one row with all of them."""
    row, col = uniform(m, n, per_row, rng).tocoo().coords
    other = row != m // 2
    full = np.full(n, m // 2)
    return _from_pairs(np.r_[row[other], full], np.r_[col[other], np.arange(n)], (m, n))


def tiny(rng: np.random.Generator) -> sp.csr_array:
    """A row with all entries, and one without any."""
    row, col = dense_row(60, 60, 4, rng).tocoo().coords
    return _from_pairs(row[row != 7], col[row != 7], (60, 60))


def _from_pairs(row: np.ndarray, col: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    return sp.csr_array(sp.coo_array((np.ones(len(row)), (row, col)), shape=shape))
