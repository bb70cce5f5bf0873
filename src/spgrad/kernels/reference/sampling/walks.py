"""Reference of the kernel that walks on a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.indexing.select import locate
from spgrad.kernels.reference.sampling.random import below, draws, line_starts, parts_of_one

_TRIES = 8
_DRAWS = 2 * _TRIES + 1
"""Random numbers of a step: an entry and a chance for each proposal, and a part of a sum."""


def _fake_walks(
    ptr: Tensor, idx: Tensor, starts: Tensor, length: int, p: float, q: float, key: int
) -> Tensor:
    return starts.new_empty(starts.shape[0], length + 1)


@kernel(
    "random_walks(Tensor ptr, Tensor idx, Tensor starts, SymInt length, float p, float q,"
    " SymInt key) -> Tensor",
    fake=_fake_walks,
)
def random_walks(
    ptr: Tensor, idx: Tensor, starts: Tensor, length: int, p: float, q: float, key: int
) -> Tensor:
    """Random walks: every step goes to an index of the line of the node; see `data.random_walk`.

    Walk i takes the random numbers of line i. In a step of second order, an entry is proposed and
    accepted in proportion to its weight, up to 8 times; then the weights of all entries are summed.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of each entry (nse,), below m, ascending in each line.
        starts: The first node of each walk (s,), int64.
        length: Number of steps.
        p: A step back to the node before has the weight 1 / p. With p = q = 1, steps are of first
            order.
        q: A step to a node that the node before has no entry for has the weight 1 / q.
        key: Seed of the random numbers.

    Returns:
        The nodes of each walk (s, length + 1), int64; it stays in a node without entries.
    """
    stream = line_starts(key, 0, len(starts), starts)
    walk = [starts]
    for step in range(length):
        now, draw = walk[-1], step * _DRAWS
        begin, count = ptr[now].long(), ptr[1:][now].long() - ptr[now]
        to = _entry(idx, now, begin, count, draws(stream, draw))
        if step > 0 and not p == q == 1:
            to = _second_order(ptr, idx, walk[-2], to, (begin, count), (stream, draw), p, q)
        walk.append(to)
    return torch.stack(walk, 1)


def _entry(idx: Tensor, now: Tensor, begin: Tensor, count: Tensor, bits: Tensor) -> Tensor:
    """The index of a random entry of each line; the node itself where there is none."""
    if idx.numel() == 0:
        return now
    there = count > 0
    at = torch.where(there, begin + below(bits, count), 0)
    return torch.where(there, idx[at].long(), now)


def _weights(ptr: Tensor, idx: Tensor, before: Tensor, to: Tensor, p: float, q: float) -> Tensor:
    near = locate(ptr, idx, before, to) >= 0
    one = torch.ones(to.shape, dtype=torch.float64, device=to.device)
    return torch.where(to == before, one / p, torch.where(near, one, one / q))


def _second_order(
    ptr: Tensor,
    idx: Tensor,
    before: Tensor,
    to: Tensor,
    line: tuple[Tensor, Tensor],
    random: tuple[Tensor, int],
    p: float,
    q: float,
) -> Tensor:
    """The step of each walk from a line, of which the node `to` is proposed first."""
    (begin, count), (stream, draw), to = line, random, to.clone()
    most = max(1 / p, 1.0, 1 / q)
    rest = (count > 0).nonzero().squeeze(1)
    for i in range(_TRIES):
        if i > 0:
            bits = draws(stream[rest], draw + 2 * i)
            to[rest] = _entry(idx, to[rest], begin[rest], count[rest], bits)
        chance = parts_of_one(draws(stream[rest], draw + 2 * i + 1))
        taken = chance * most < _weights(ptr, idx, before[rest], to[rest], p, q)
        rest = rest[~taken]
    for i in rest.tolist():
        near = idx[begin[i] : begin[i] + count[i]].long()
        sums = _weights(ptr, idx, before[i].repeat(len(near)), near, p, q).cumsum(0)
        part = parts_of_one(draws(stream[i], draw + 2 * _TRIES)) * sums[-1]
        at = torch.searchsorted(sums, part, right=True).clamp(max=len(near) - 1)
        to[i] = near[at]
    return to
