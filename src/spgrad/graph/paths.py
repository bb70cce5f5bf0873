"""The lengths of shortest paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch

from spgrad.core.pattern import Pattern, View
from spgrad.core.values import as_result, plain
from spgrad.data.arguments import require_members
from spgrad.errors import ArgumentValueError
from spgrad.graph.operands import weighted_graph
from spgrad.linalg.structure import require_square
from spgrad.lowering.convert import flat_values
from spgrad.lowering.views import cols
from spgrad.ops.products.extremal_sums import extremal_sums
from spgrad.public import public_as
from spgrad.torch_protocol.func_transforms import Function, mapped_over

_ROUNDING = 4
"""Lengths that differ by at most this many times eps of their size count as equal in a cycle."""


@public_as("graph.shortest_paths")
def shortest_paths(A: torch.Tensor, sources: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """The length of the shortest path from each of the sources to each node.

    The method is Bellman and Ford's; each step is one min-plus product for all sources at once.

    Args:
        A: Sparse (n, n) of any layout and a floating-point dtype: an edge from i to j of length
            a_ij for each specified element, explicit zeros too. Lengths may be negative.
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
        ValueError: `A` is not square, has no floating-point dtype, or an element that is NaN or
            -inf, or a source reaches a cycle of negative length, other than by rounding.
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
    vals = mapped_over(M._vals)
    if bool((vals.isnan() | (vals == -math.inf)).any()):  # -inf is NaN from where no path leads
        raise ArgumentValueError(
            "`A` has an element that is NaN or -inf; other numbers are accepted as lengths. Find "
            "it with torch.isnan(A.values()) or torch.isneginf(A.values())."
        )
    from_nodes = require_members("sources", sources, M._pattern.matrix[0]).to(M._pattern.device)
    lengths = cast(torch.Tensor, _Paths.apply(flat_values(M), M._pattern, from_nodes))
    return as_result(lengths.t())


def _relaxed(
    vals: torch.Tensor, pattern: Pattern, sources: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths (n, s), and the entry of the column view by which each path arrives, or -1."""
    n, view = pattern.matrix[0], cols(pattern)
    lengths = torch.full((n, sources.numel()), math.inf, dtype=vals.dtype, device=vals.device)
    lengths[sources, torch.arange(sources.numel(), device=vals.device)] = 0
    last = torch.full_like(lengths, -1, dtype=torch.int64)
    negative = bool((vals < 0).any())  # without negative lengths no path comes back shorter
    # n passes, and rarely more where paths wait because of cycles of length 0 with rounding. This
    # ends, because the edges by which paths arrive form no cycle: none gets shorter without end.
    while True:
        found, entry = extremal_sums(vals, lengths, view, False)
        shorter = found < lengths  # strictly, so that no path goes round a cycle of length 0
        more = shorter
        if negative:
            shorter = _outside_cycles(lengths, found, shorter, last, entry, view)
            # where rounding makes cycles of length 0 negative, paths may get shorter without end
            more = shorter & (lengths - found > _ROUNDING * _eps_of(found))
        if not bool(more.any()):
            return lengths, last
        lengths = torch.where(shorter, found, lengths)
        last = torch.where(shorter, entry.to(torch.int64), last)


def _in_cycles(last: torch.Tensor, view: View) -> torch.Tensor:
    """The nodes (n, s) that are in a cycle of the edges by which paths arrive."""
    before = torch.where(last >= 0, view.idx[last.clamp(min=0)].to(torch.int64), -1)
    # doubled until no path without a cycle has that many edges
    for _ in range(last.shape[0].bit_length()):
        at = before.clamp(min=0)
        before = torch.where(before >= 0, before.gather(0, at), -1)
    counts = torch.zeros_like(last).scatter_add(0, before.clamp(min=0), (before >= 0).long())
    return counts > 0


def _outside_cycles(
    lengths: torch.Tensor,
    found: torch.Tensor,
    shorter: torch.Tensor,
    last: torch.Tensor,
    entry: torch.Tensor,
    view: View,
) -> torch.Tensor:
    """Where paths are shorter, without those that would go round a cycle of length 0 with rounding.

    In a cycle of length 0, such as an edge there and back of opposite lengths, the paths that are
    made shorter in one step get shorter by rounding alone; in a negative one, by more at some step.
    """
    while True:
        cycles = _in_cycles(torch.where(shorter, entry.to(torch.int64), last), view)
        closing = shorter & cycles
        if not bool(closing.any()):
            return shorter
        units = torch.where(cycles, _eps_of(torch.where(closing, found, lengths)), 0).amax(0)
        if bool((closing & (lengths - found > _ROUNDING * cycles.sum(0) * units)).any()):
            raise _negative_cycle()
        shorter = shorter & ~closing


def _eps_of(lengths: torch.Tensor) -> torch.Tensor:
    """The rounding of finite lengths, and 0 for infinite ones."""
    return torch.where(lengths.isfinite(), lengths.abs(), 0) * torch.finfo(lengths.dtype).eps


def _negative_cycle() -> ArgumentValueError:
    return ArgumentValueError(
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
