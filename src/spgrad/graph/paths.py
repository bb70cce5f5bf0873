"""The lengths of shortest paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from spgrad.core.pattern import Pattern, View
from spgrad.core.values import plain
from spgrad.data.arguments import require_members
from spgrad.errors import ArgumentValueError
from spgrad.graph.operands import weighted_graph
from spgrad.linalg.structure import require_square
from spgrad.lowering.convert import flat_values
from spgrad.lowering.views import cols
from spgrad.ops.products.extremal_sums import extremal_sums
from spgrad.public import public_as
from spgrad.torch_protocol.func_transforms import Function, mapped_over


@public_as("graph.shortest_paths")
def shortest_paths(A: torch.Tensor, sources: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """The length of the shortest path from each of the sources to each node.

    The method is Bellman and Ford's; each step is one min-plus product for all sources at once.

    Args:
        A: Sparse (n, n) of any layout and a real dtype: an edge from i to j of length a_ij for each
            specified element, explicit zeros too. Lengths may be negative.
        sources: Numbers of nodes (s,), or a bool mask (n,).

    Returns:
        Dense (s, n), inf where no path leads.

    Gradient:
        That of `A` on its pattern: at each edge, the sum of the cotangents of the paths that lead
        over it. Of paths of equal length, only the one that was found first counts.

    Cost:
        O(nse s) for each step, O(n s) memory, and as many steps as the shortest paths have edges,
        at most n: for a road network of a million nodes, prefer Dijkstra's algorithm, which is in
        `scipy.sparse.csgraph`.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or has no real dtype, or a source reaches a cycle of negative
            length.
        IndexError: A source is out of range.

    Source:
        Bellman, On a routing problem (1958).

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0, 1], [1, 2, 2]]), torch.tensor([1.0, 5, 2]))
        >>> spgrad.graph.shortest_paths(A, [0, 1])
        tensor([[0., 1., 3.],
                [inf, 0., 2.]])
    """
    M = weighted_graph(A)
    require_square(M)
    if bool(mapped_over(M._vals).isnan().any()):
        raise ArgumentValueError(
            "`A` has an element that is NaN; numbers are accepted as lengths. Find it with "
            "torch.isnan(A.values())."
        )
    from_nodes = require_members("sources", sources, M._pattern.matrix[0]).to(M._pattern.device)
    return _Paths.apply(flat_values(M), M._pattern, from_nodes).t()  # type: ignore[return-value, union-attr]


def _relaxed(
    vals: torch.Tensor, pattern: Pattern, sources: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths (n, s), and the entry of the column view by which each path arrives, or -1."""
    n, view = pattern.matrix[0], cols(pattern)
    lengths = torch.full((n, sources.numel()), math.inf, dtype=vals.dtype, device=vals.device)
    lengths[sources, torch.arange(sources.numel(), device=vals.device)] = 0
    last = torch.full_like(lengths, -1, dtype=torch.int64)
    for _ in range(n + 1):
        found, entry = extremal_sums(vals, lengths, view, False)
        shorter = found < lengths  # strictly, so that no path goes round a cycle of length 0
        if not bool(shorter.any()):
            return lengths, last
        lengths = torch.where(shorter, found, lengths)
        last = torch.where(shorter, entry.to(torch.int64), last)
    raise ArgumentValueError(
        "`A` has a cycle of negative length that a source reaches; a graph without one is "
        "accepted. Check the weights: each round of the cycle makes a path shorter."
    )


def _entries_on_paths(g: torch.Tensor, last: torch.Tensor, view: View, count: int) -> torch.Tensor:
    """The sum of the cotangents (n, s) of all paths over each stored element; linear in g."""
    total = g.new_zeros(count)
    while bool(mapped_over(last >= 0).any()):
        arrived = last >= 0
        at = last.clamp(min=0)
        flow = torch.where(arrived, g, 0)
        stored = at if view.perm is None else view.perm[at].to(torch.int64)
        total = total.index_add(0, stored.reshape(-1), flow.reshape(-1))
        # goes back along the last edge of each path; paths that are back at a source end
        before = view.idx[at].to(torch.int64)
        carried = torch.zeros_like(g).scatter_add(0, before, flow)
        reached = torch.zeros_like(g, dtype=torch.int64).scatter_add(0, before, arrived.long())
        g, last = carried, torch.where(reached > 0, last, -1)
    return total


class _Paths(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, pattern: Pattern, sources: torch.Tensor
    ) -> torch.Tensor:
        lengths, last = _relaxed(plain(vals), pattern, sources)
        ctx.save_for_backward(last)
        ctx.pattern = pattern
        return lengths

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        (last,) = ctx.saved_tensors
        pattern = ctx.pattern
        return _entries_on_paths(g, last, cols(pattern), pattern.elements), None, None
