"""Rows that travel, balance and time of a product in larger groups, computed from patterns.

Each family of graphs grows with the number of processes, so a process always has about the same
number of entries (weak scaling). Real graphs are scaled up by copies, between which a share of the
edges is moved. Three ways to share a matrix out are compared, in rows of x that arrive in a
product:

* an all-gather of x: the one-dimensional algorithm of CAGNET (Tripathy, Yelick and Buluc, 2020);
* the rows that entries name, with contiguous shares: the sparsity-aware one-dimensional algorithm
  (Mukhodopadhyay et al., 2024), and `partition="nse"` here;
* the same with METIS, `partition="metis"` here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

import spgrad
from benchmarks import patterns
from benchmarks.matrices import load
from spgrad.data import partition
from spgrad.distributed import exchange

MOVED = 0.1
"""Share of the edges of a scaled graph that lead to another copy."""


class Rates(NamedTuple):
    """Speed of one process: seconds an entry and column, and bytes a second from others."""

    entry: float
    sent: float
    latency: float


def grid(world: int) -> sp.csr_array:
    """A five-point grid of 64 x 64 cells for each process."""
    side = round(64 * world**0.5)
    return patterns.grid(side, np.random.default_rng(0))


def social(world: int) -> sp.csr_array:
    """A graph with hubs, of 250 nodes and 2500 edges for each process."""
    return patterns.social(250 * world, 2_500 * world, np.random.default_rng(0))


def _copies(name: str, world: int) -> sp.csr_array:
    """A copy of a real graph for each 16 processes, a tenth of whose edges lead to other copies."""
    S = sp.coo_array(load(name, "float32"))
    n, count = S.shape[0], max(world // 16, 1)
    rng = np.random.default_rng(0)
    rows, cols = [], []
    for copy in range(count):
        target = np.full(S.nnz, copy)
        moved = rng.random(S.nnz) < MOVED
        if name == "wing":  # a mesh: what is moved goes to the copy beside this one
            target[moved] = (copy + rng.choice([-1, 1], moved.sum())) % count
        else:
            target[moved] = rng.integers(count, size=moved.sum())
        rows.append(S.coords[0].astype(np.int64) + copy * n)
        cols.append(S.coords[1].astype(np.int64) + target * n)
    r, c = np.concatenate(rows), np.concatenate(cols)
    return sp.csr_array((np.ones(len(r), np.float32), (r, c)), shape=(n * count, n * count))


FAMILIES = {
    "grid": grid,
    "social": social,
    "wing, scaled": lambda world: _copies("wing", world),
    "astro-ph, scaled": lambda world: _copies("astro-ph", world),
}


class Volume(NamedTuple):
    """What a product with one column costs in a group of processes."""

    arriving: np.ndarray  # rows of x that arrive in each process
    entries: np.ndarray  # of each process
    receiver: np.ndarray  # the process that receives, for each pair of processes
    pairs: np.ndarray  # the rows that arrive there from the other one


def volume(S: sp.csr_array, part: np.ndarray, world: int) -> Volume:
    """Distinct remote columns of each process, for the process of each row."""
    owner = np.repeat(part, np.diff(S.indptr))
    entries = np.bincount(owner, minlength=world)
    remote = owner != part[S.indices]
    named = np.unique(owner[remote].astype(np.int64) * S.shape[0] + S.indices[remote])
    receiver, row = np.divmod(named, S.shape[0])
    pairs, counts = np.unique(receiver * world + part[row], return_counts=True)
    return Volume(np.bincount(receiver, minlength=world), entries, pairs // world, counts)


def contiguous(S: sp.csr_array, world: int) -> np.ndarray:
    """The process of each row, with equal shares of entries."""
    middle = (S.indptr[:-1] + S.indptr[1:]) / 2
    return np.minimum((middle * world / max(S.nnz, 1)).astype(np.int64), world - 1)


def metis(S: sp.csr_array, world: int) -> np.ndarray:
    """The process of each row, by METIS, with about equal shares of entries."""
    A = spgrad.from_scipy(sp.csr_array(S.astype(np.float32)))
    return partition(A, world, weights=torch.from_numpy(np.diff(S.indptr)) + 1).numpy()


def seconds(found: Volume, columns: int, rates: Rates, itemsize: int = 4) -> float:
    """Time of the product in the slowest process; rows are sent while local ones are multiplied."""
    compute = found.entries * columns * rates.entry
    row = columns * itemsize
    count = np.ones_like(found.pairs)
    if found.arriving.max(initial=0) * row > exchange._FEW * exchange._MESSAGE:
        step = np.maximum(exchange._MESSAGE // row, -(-found.pairs // exchange._SHARE))
        count = -(-found.pairs // step)
    messages = np.bincount(found.receiver, weights=count, minlength=len(found.entries))
    sent = found.arriving * row / rates.sent + messages * rates.latency
    return float(np.maximum(compute, sent).max())


def table(worlds: list[int], columns: int, rates: Rates) -> Iterator[dict[str, Any]]:
    """A row for each family, number of processes and way to share rows out."""
    for family, make in FAMILIES.items():
        for world in worlds:
            S = sp.csr_array(make(world))
            S.sum_duplicates()
            n = S.shape[0]
            share = -(-n // world)
            whole = Volume(
                np.full(world, n - share),
                np.bincount(contiguous(S, world), weights=np.diff(S.indptr), minlength=world),
                np.repeat(np.arange(world), world - 1),
                np.full(world * (world - 1), share),
            )
            ways = {
                "all-gather": whole,
                "contiguous": volume(S, contiguous(S, world), world),
                "METIS": volume(S, metis(S, world), world),
            }
            for way, found in ways.items():
                yield {
                    "family": family,
                    "world": world,
                    "way": way,
                    "rows": n,
                    "entries": S.nnz,
                    "arriving": int(found.arriving.sum()),
                    "most": int(found.arriving.max()),
                    "balance": float(found.entries.max() / max(found.entries.mean(), 1e-9)),
                    "seconds": seconds(found, columns, rates),
                }


def measured_rates(columns: int) -> Rates:
    """Of this machine: a product in one thread, and an assumed network of 10 GB/s and 5 us."""
    from benchmarks.measure import interleave

    torch.set_num_threads(1)
    A = spgrad.from_scipy(load("social", "float32"))
    x = torch.randn(A.shape[1], columns)
    times = interleave({"A x": lambda: A @ x}, 9, 5.0)["A x"]
    return on_network(sorted(times)[len(times) // 2] / (A.nse * columns))


def on_network(entry: float) -> Rates:
    """A process with this time for an entry and column, on the assumed network."""
    return Rates(entry, 10e9, 5e-6)
