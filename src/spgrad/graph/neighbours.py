"""The nodes that are a few edges away from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from spgrad import data
from spgrad.data.arguments import require_count, require_members
from spgrad.graph.operands import matrix_of_graph
from spgrad.linalg.structure import require_square
from spgrad.lowering.views import rows
from spgrad.public import public_as


class Neighbourhood(NamedTuple):
    """The nodes within some edges of the seeds."""

    nodes: torch.Tensor
    """Numbers of the nodes (s,), int64, sorted by distance, then by number."""
    hops: torch.Tensor
    """Number of edges from the nearest seed to each node (s,), int64."""


@public_as("graph.k_hop")
def k_hop(A: torch.Tensor, seeds: torch.Tensor | Sequence[int] | int, k: int) -> Neighbourhood:
    """The nodes that at most k edges lead to from any of the seeds.

    ``spgrad.graph.subgraph(A, found.nodes)`` gives the edges between them.

    Args:
        A: Sparse (n, n) of any layout: an edge from i to j for each specified element (i, j). For
            edges in the other direction pass its transpose.
        seeds: Rows of A, one row, or a bool mask (n,).
        k: Most edges from a seed to a node.

    Returns:
        A `Neighbourhood`: the nodes, the seeds among them, and the distance of each.

    Cost:
        O(n + entries of the rows that are reached) time and memory.

    Raises:
        TypeError: `A` is not sparse, or `k` is not an int.
        ValueError: `A` is not square, or `k` is below 0.
        IndexError: A seed is out of range.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 1, 2], [1, 2, 3]]))
        >>> spgrad.graph.k_hop(A, 1, 1)
        Neighbourhood(nodes=tensor([1, 2]), hops=tensor([0, 1]))
    """
    M = matrix_of_graph(A)
    require_square(M)
    pattern = M._pattern
    front = require_members("seeds", seeds, pattern.matrix[0], one=True).unique()
    require_count("k", k, 0, "a number of edges of 0 or more")
    view = rows(pattern)
    ptr, idx = view.ptr.to(torch.int64), view.idx
    front = front.to(ptr.device)
    seen = torch.zeros(pattern.matrix[0], dtype=torch.bool, device=ptr.device)
    seen[front] = True
    found = [front]
    while len(found) <= k and front.numel():
        start, count = ptr[front], ptr[front + 1] - ptr[front]
        ends = count.cumsum(0)
        entry = torch.arange(int(ends[-1]), device=ptr.device)
        entry += (start - ends + count).repeat_interleave(count)
        near = idx[entry].to(torch.int64)
        front = near[~seen[near]].unique()
        seen[front] = True
        found.append(front)
    hops = [torch.full_like(nodes, hop) for hop, nodes in enumerate(found)]
    return Neighbourhood(torch.cat(found), torch.cat(hops))


subgraph = public_as("graph.subgraph")(data.subgraph)
subgraph.__module__ = __name__  # where pickle looks for it
