"""Random walks on a graph, of first and second order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import View
from spgrad.core.tensor import SparseTensor
from spgrad.data.arguments import random_key, require_count, require_graph, require_members
from spgrad.errors import ArgumentValueError
from spgrad.lowering.views import rows
from spgrad.public import public_as

_TRIES = 8
"""If this many proposals for a step are rejected, the weights of all neighbours are computed."""


@public_as("data.random_walk")
def random_walk(
    A: SparseTensor,
    starts: torch.Tensor | Sequence[int],
    length: int,
    *,
    p: float = 1.0,
    q: float = 1.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Walks from each start: every step goes to a random neighbour, a column of the node's row.

    With p or q other than 1 a step depends on the one before, as in node2vec: from v, reached from
    t, the weight of a neighbour x is 1/p if x is t, 1 if A has an entry (t, x), and 1/q otherwise.
    Steps are proposed and accepted or rejected. After 8 rejections, all weights of the row are
    computed, so a step ends for every p and q. The values of A are not read.

    Args:
        A: Sparse matrix (n, n) in COO, CSR or CSC, coalesced.
        starts: Rows of A (s,); they may repeat.
        length: Number of steps.
        p: With a large p, a walk seldom returns to the node that it came from.
        q: With a large q, a walk stays near its start.
        generator: Source of the random numbers; None takes torch's default generator.

    Returns:
        The nodes of each walk (s, length + 1), int64. A walk stays in a node without neighbours.

    Cost:
        O(s * length) for p = q = 1; with others O(log(longest row)) for each proposal.

    Raises:
        ValueError: A start is out of range, or p or q is not positive and finite.

    Source:
        Grover and Leskovec, node2vec: Scalable Feature Learning for Networks (2016).

    Example:
        >>> ring = torch.eye(4).roll(1, 1)
        >>> A = spgrad.from_dense(ring).to_sparse_csr()
        >>> spgrad.data.random_walk(A, [0, 2], 3)
        tensor([[0, 1, 2, 3],
                [2, 3, 0, 1]])
    """
    pattern = require_graph(A, square=True)
    now = require_members("starts", starts, pattern.matrix[0])
    require_count("length", length, 0, "a number of steps")
    checks.require_generator(generator)
    for name, number in (("p", p), ("q", q)):
        checks.require_number(name, number, "1.0 is neutral.")
        if not 0 < number < float("inf"):
            raise ArgumentValueError(
                f"`{name}` is {number}; a positive finite number is accepted. 1.0 is neutral."
            )
    view = rows(pattern)
    walk = [now]
    for step in range(length):
        if step == 0 or p == q == 1:
            walk.append(_neighbour(view, walk[-1], generator))
        else:
            walk.append(_second_order(view, walk[-2], walk[-1], p, q, generator))
    return torch.stack(walk, 1)


def _neighbour(view: View, now: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """A neighbour of each node, drawn uniformly; the node itself if it has no neighbour."""
    if view.idx.numel() == 0:
        return now
    begin = view.ptr[now].long()
    degree = view.ptr[now + 1].long() - begin
    part = torch.rand(now.numel(), dtype=torch.float64, generator=generator)
    entry = begin + (part * degree).long()
    there = degree > 0
    return torch.where(there, view.idx[torch.where(there, entry, 0)].long(), now)


def _weights(
    view: View, before: torch.Tensor, to: torch.Tensor, p: float, q: float
) -> torch.Tensor:
    """The weights of steps to `to`, where the walk came from `before`."""
    near = kernels.locate(view.ptr, view.idx, before, to) >= 0
    one = torch.ones(to.numel(), dtype=torch.float64)
    return torch.where(to == before, one / p, torch.where(near, one, one / q))


def _second_order(
    view: View,
    before: torch.Tensor,
    now: torch.Tensor,
    p: float,
    q: float,
    generator: torch.Generator | None,
) -> torch.Tensor:
    most = max(1 / p, 1.0, 1 / q)
    found = now.clone()
    open_ = (view.ptr[now + 1] > view.ptr[now]).nonzero().squeeze(1)
    for _ in range(_TRIES):
        to = _neighbour(view, now[open_], generator)
        chance = torch.rand(to.numel(), dtype=torch.float64, generator=generator)
        taken = chance * most < _weights(view, before[open_], to, p, q)
        found[open_[taken]] = to[taken]
        open_ = open_[~taken]
    if open_.numel():
        found[open_] = _among_all(view, before[open_], now[open_], p, q, generator)
    return found


def _among_all(
    view: View,
    before: torch.Tensor,
    now: torch.Tensor,
    p: float,
    q: float,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """A step by the weights of all entries of each row; no row is empty."""
    made, to, _, _ = kernels.sample_lines(view.ptr, view.idx, None, now, 0, -1, False, 0)
    line = kernels.expand(made, to.numel()).long()
    weight = _weights(view, before[line], to.long(), p, q)
    lines = torch.arange(now.numel())
    key = random_key(generator)
    return kernels.sample_lines(made, to, weight, lines, 0, 1, True, key)[1].long()
