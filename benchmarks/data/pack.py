"""Packs the real matrices from the files of their sources: ``python benchmarks/data/pack.py DIR``.

DIR holds networkit/MIT8.edgelist, networkit/astro-ph.graph, networkit/wing.graph and
memplus/memplus.mtx. Each becomes an .npz with the pattern in CSR form: `ptr` and `idx` (int32),
`shape`, and `symmetric`, where only the upper triangle is stored. Values are not kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

HERE = Path(__file__).parent


def edge_list(path: Path) -> sp.coo_array:
    """Whitespace-separated pairs from 0, one undirected edge a line."""
    pairs = np.loadtxt(path, dtype=np.int32, comments="#")
    n = int(pairs.max()) + 1
    return sp.coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))


def metis(path: Path) -> sp.coo_array:
    """METIS adjacency lists: a header with n, then line i has the neighbours of i, from 1."""
    header, *lines = [line for line in path.read_text().split("\n") if not line.startswith("%")]
    n = int(header.split()[0])
    neighbours = [np.array(line.split(), dtype=np.int32) - 1 for line in lines[:n]]
    col = np.concatenate(neighbours)
    row = np.repeat(np.arange(n, dtype=np.int32), [len(found) for found in neighbours])
    return sp.coo_array((np.ones(len(col)), (row, col)), shape=(n, n))


SOURCES = {
    "MIT8": ("networkit/MIT8.edgelist", edge_list, True),
    "astro-ph": ("networkit/astro-ph.graph", metis, True),
    "wing": ("networkit/wing.graph", metis, True),
    "memplus": ("memplus/memplus.mtx", scipy.io.mmread, False),
}


def pack(source: Path) -> None:
    for name, (path, read, symmetric) in SOURCES.items():
        found = sp.coo_array(read(source / path))
        found.data[:] = 1  # an entry that is zero is an entry
        S = sp.csr_array(found)
        if symmetric:
            S = sp.csr_array(sp.triu(S + S.T))
        S.sum_duplicates()
        np.savez_compressed(
            HERE / f"{name}.npz",
            ptr=S.indptr.astype(np.int32),
            idx=S.indices.astype(np.int32),
            shape=np.array(S.shape, dtype=np.int32),
            symmetric=np.array(symmetric),
        )
        print(f"{name}: {S.shape}, {S.nnz} entries stored")


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
