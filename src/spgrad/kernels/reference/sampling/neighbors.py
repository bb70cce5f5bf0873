"""References of the kernels that sample the entries of lines, and number the nodes they reach."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_numbers
from spgrad.kernels.reference.sampling.random import (
    below,
    draws,
    line_starts,
    minus_log,
    parts_of_one,
    shifted,
)

_Sample = tuple[Tensor, Tensor, Tensor, Tensor]


def _fake_sample(
    ptr: Tensor,
    idx: Tensor,
    weight: Tensor | None,
    lines: Tensor,
    first: int,
    fanout: int,
    replace: bool,
    key: int,
) -> _Sample:
    size = torch.library.get_ctx().new_dynamic_size()
    return (
        ptr.new_empty(lines.shape[0] + 1),
        idx.new_empty(size),
        idx.new_empty(size),
        lines.new_empty(1),
    )


@kernel(
    "sample_lines(Tensor ptr, Tensor idx, Tensor? weight, Tensor lines, SymInt first,"
    " SymInt fanout, bool replace, SymInt key) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_sample,
)
def sample_lines(
    ptr: Tensor,
    idx: Tensor,
    weight: Tensor | None,
    lines: Tensor,
    first: int,
    fanout: int,
    replace: bool,
    key: int,
) -> _Sample:
    """A random sample of the entries of each line.

    Without weights and without replacement, each set of min(fanout, entries) entries is as likely
    as any other (Floyd's algorithm). With weights, entries are drawn one after the other, each with
    a probability in proportion to its weight among those that are left; an entry of weight 0 is
    never drawn. With replacement there are `fanout` independent draws where there is an entry.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of each entry (nse,).
        weight: Weight of each entry (nse,), float32 or float64, or None.
        lines: Numbers of lines (l,), int64, in any order; they may repeat.
        first: Number of the first of them for the random numbers.
        fanout: Entries to draw of each line; -1 takes all of them, whatever the weights.
        replace: Draw with replacement.
        key: Seed of the random numbers.

    Returns:
        Line pointers (l + 1,), indices (n,) and which entry each is (n,), of the dtype of `ptr`;
        and the first entry in these lines whose weight is negative or not finite (1,), int64, -1
        if there is none; if there is one, there is no sample.
    """
    begin, count = ptr[lines].long(), ptr.diff()[lines].long()
    start = line_starts(key, first, len(lines), ptr)
    bad = lines.new_full((1,), -1)
    if fanout < 0:
        made, entry = _whole(begin, count)
    elif weight is None:
        made, entry = (_uniform_replaced if replace else _uniform)(begin, count, start, fanout)
    else:
        all_made, all_entry = _whole(begin, count)
        wrong = all_entry[~((weight >= 0) & (weight < torch.inf))[all_entry]]
        if wrong.numel():
            bad = wrong.min().reshape(1)
            made, entry = torch.zeros_like(all_made), all_entry[:0]
        else:
            draw = _weighted_replaced if replace else _weighted
            made, entry = draw(all_made, all_entry, weight.double(), start, fanout)
    entry = entry.to(idx.dtype)
    return made.to(ptr.dtype), idx[entry], entry, bad


_Drawn = tuple[Tensor, Tensor]


def _pointers(count: Tensor) -> Tensor:
    return torch.cat([count.new_zeros(1), count.cumsum(0)])


def _whole(begin: Tensor, count: Tensor) -> _Drawn:
    made = _pointers(count)
    line = row_numbers(made, int(made[-1]))
    return made, torch.arange(len(line), device=begin.device) + (begin - made[:-1])[line]


def _uniform_replaced(begin: Tensor, count: Tensor, start: Tensor, fanout: int) -> _Drawn:
    made = _pointers(fanout * (count > 0))
    line = row_numbers(made, int(made[-1]))
    draw = torch.arange(len(line), device=begin.device) - made[line]
    return made, begin[line] + below(draws(start[line], draw), count[line])


def _uniform(begin: Tensor, count: Tensor, start: Tensor, fanout: int) -> _Drawn:
    """Floyd's sample of long lines; short ones give all of their entries, in order.

    Draw j is among the first count - fanout + j + 1 entries; if it came before, the last of these
    replaces it.
    """
    made = _pointers(count.clamp(max=fanout))
    long = count > fanout
    drawn = torch.arange(fanout, device=begin.device).expand(len(count), fanout).clone()
    for j in range(fanout):
        last = (count - fanout + j).clamp(min=0)
        at = below(draws(start, j), last + 1)
        before = (drawn[:, :j] == at[:, None]).any(1)
        drawn[:, j] = torch.where(long, torch.where(before, last, at), drawn[:, j])
    kept = drawn < count[:, None]
    return made, (drawn + begin[:, None])[kept]


def _weighted(made: Tensor, entry: Tensor, weight: Tensor, start: Tensor, fanout: int) -> _Drawn:
    """The entries whose exponential clocks of rate `weight` ring first (Efraimidis, Spirakis)."""
    line = row_numbers(made, len(entry))
    bits = draws(start[line], torch.arange(len(entry), device=entry.device) - made[line])
    clock = minus_log((shifted(bits, 11) + 1).double() * 2.0**-53) / weight[entry]
    order = torch.argsort(clock, stable=True)
    order = order[torch.argsort(line[order], stable=True)]
    rank = torch.arange(len(entry), device=entry.device) - made[line]
    order = order[(rank < fanout) & (weight[entry[order]] > 0)]
    count = torch.bincount(line[order], minlength=len(made) - 1)
    return _pointers(count), entry[order]


def _weighted_replaced(
    made: Tensor, entry: Tensor, weight: Tensor, start: Tensor, fanout: int
) -> _Drawn:
    """The first entry whose running sum of weights is above a random part of the whole sum."""
    drawn, counts = [entry[:0]], []
    for i, (a, b) in enumerate(zip(made[:-1].tolist(), made[1:].tolist(), strict=True)):
        sums = weight[entry[a:b]].cumsum(0)
        counts.append(fanout if b > a and sums[-1] > 0 else 0)
        if counts[-1]:
            draw = torch.arange(fanout, device=entry.device)
            part = parts_of_one(draws(start[i].expand(fanout), draw)) * sums[-1]
            at = torch.searchsorted(sums, part, right=True).clamp(max=b - a - 1)
            drawn.append(entry[a:b][at])
    return _pointers(made.new_tensor(counts, dtype=torch.int64)), torch.cat(drawn)


def _fake_relabel(
    nodes: Tensor, ptr: Tensor, idx: Tensor, entry: Tensor, ascending: bool
) -> tuple[Tensor, Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return nodes.new_empty(size), torch.empty_like(idx), torch.empty_like(entry)


@kernel(
    "relabel_lines(Tensor nodes, Tensor ptr, Tensor idx, Tensor entry, bool ascending)"
    " -> (Tensor, Tensor, Tensor)",
    fake=_fake_relabel,
)
def relabel_lines(
    nodes: Tensor, ptr: Tensor, idx: Tensor, entry: Tensor, ascending: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers nodes in the order in which they first appear: first `nodes`, then `idx`.

    Args:
        nodes: Nodes that are numbered before the others (s,).
        ptr: Line pointers (l + 1,).
        idx: Node of each entry (n,), of the dtype of `ptr`, as the two others are.
        entry: What goes with each entry (n,).
        ascending: Order the entries of each line by their new numbers.

    Returns:
        The node of each number (c,), and for each entry its number and what goes with it (n,).
    """
    named, number = torch.unique(torch.cat([nodes, idx]), return_inverse=True)
    place = torch.arange(len(number), device=idx.device)
    found = torch.full_like(named, len(number), dtype=torch.int64)
    found.scatter_reduce_(0, number, place, "amin")
    order = torch.argsort(found)
    local = torch.empty_like(order).index_copy_(
        0, order, torch.arange(len(order), device="cpu").to(order)
    )
    made = local[number[len(nodes) :]]
    if ascending:
        by = torch.argsort(made, stable=True)
        by = by[torch.argsort(row_numbers(ptr, len(idx))[by], stable=True)]
        made, entry = made[by], entry[by]
    return named[order], made.to(idx.dtype), entry.clone()
