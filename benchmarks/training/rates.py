"""Edges that a sampler of neighbours draws a second, beside samplers in NumPy and networkx."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch

import spgrad
from benchmarks.matrices import load
from benchmarks.training.programs import OWN, Unavailable, edges_of, geometric
from benchmarks.training.sampling import Sampler

GRAPHS = ("social", "power-law-2m", "uniform", "road")
HOPS = {"one hop": [15], "two hops": [15, 10]}
SEEDS = 1024

Draw = Callable[[], int]


@cache
def _graph(name: str) -> spgrad.SparseTensor:
    return spgrad.from_scipy(load(name, "float32")).to_sparse_csr()


@cache
def _seeds(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(_graph(name).shape[0], generator=generator)[:SEEDS]


def _own(name: str, fanout: list[int]) -> Draw:
    A, seeds = _graph(name), _seeds(name)
    return lambda: len(spgrad.data.sample_neighbors(A, seeds, fanout).e_id)


def _with_replacement(name: str, fanout: list[int]) -> Draw:
    """All rows of a hop at once: the fastest that NumPy does, but neighbours repeat."""
    sampler, seeds = Sampler(_graph(name), fanout), _seeds(name)
    return lambda: sum(block.edges.shape[1] for block in sampler.blocks(seeds)[1])


def _hops(seeds: list[int], fanout: list[int], draw: Callable[[int, int], Any]) -> int:
    """Samples the rows of each hop one by one, each node once; the number of edges."""
    number = {node: place for place, node in enumerate(seeds)}
    edges, front = [], seeds
    for count in fanout:
        found = []
        for target in front:
            for source in draw(target, count):
                if source not in number:
                    number[source] = len(number)
                    found.append(source)
                edges.append((number[source], number[target]))
        front = found
    return len(edges)


def _by_choice(name: str, fanout: list[int]) -> Draw:
    A, rng = _graph(name), np.random.default_rng(0)
    ptr, idx = A.crow_indices().numpy(), A.col_indices().numpy()

    def draw(row: int, count: int) -> list[int]:
        neighbours = idx[ptr[row] : ptr[row + 1]]
        if len(neighbours) > count:
            neighbours = rng.choice(neighbours, count, replace=False, shuffle=False)
        return neighbours.tolist()

    seeds = _seeds(name).tolist()
    return lambda: _hops(seeds, fanout, draw)


def _networkx(name: str, fanout: list[int]) -> Draw:
    try:
        import networkx as nx
    except ImportError as error:
        raise Unavailable("networkx is not installed") from error
    rows, columns = _graph(name).coo_indices().tolist()
    graph = nx.DiGraph()
    graph.add_edges_from(zip(rows, columns, strict=True))
    graph.add_nodes_from(range(_graph(name).shape[0]))

    def draw(node: int, count: int) -> list[int]:
        neighbours = list(graph[node])
        return random.sample(neighbours, count) if len(neighbours) > count else neighbours

    seeds = _seeds(name).tolist()
    return lambda: _hops(seeds, fanout, draw)


def _geometric(name: str, fanout: list[int]) -> Draw:
    geometric()
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    A, seeds = _graph(name), _seeds(name)
    data = Data(edge_index=edges_of(A).flip(0), num_nodes=A.shape[0])
    loader = NeighborLoader(data, num_neighbors=fanout, batch_size=SEEDS, input_nodes=seeds)
    try:
        next(iter(loader))
    except ImportError as error:
        raise Unavailable(str(error)) from error
    return lambda: next(iter(loader)).num_edges


RATES: dict[str, dict[str, Callable[[], Draw]]] = {
    f"{hops}, {name}": {
        contender: partial(make, name, fanout)
        for contender, make in {
            OWN: _own,
            "NumPy, repeats": _with_replacement,
            "NumPy choice": _by_choice,
            "networkx": _networkx,
            "torch_geometric": _geometric,
        }.items()
    }
    for hops, fanout in HOPS.items()
    for name in GRAPHS
}
"""By hops and graph, and contender: functions that draw once, and say how many edges they drew."""
