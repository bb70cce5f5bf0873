"""References of the kernels that check index structures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


def _first(bad: Tensor) -> Tensor:
    """The position (1,) of the first true element of a vector, its length if there is none."""
    ended = torch.cat([bad, bad.new_ones(1)])
    return ended.view(torch.uint8).max(0, keepdim=True).indices


def _fake_check_compressed(ptr: Tensor, idx: Tensor, n: int) -> Tensor:
    return ptr.new_empty(2, dtype=torch.int64)


@kernel("check_compressed(Tensor ptr, Tensor idx, SymInt n) -> Tensor", fake=_fake_check_compressed)
def check_compressed(ptr: Tensor, idx: Tensor, n: int) -> Tensor:
    """[code, position] of the first defect of a compressed structure, [0, -1] if it has none.

    The codes, in the order of the checks: 1 ptr[0] is not 0; 2 ptr decreases after `position`;
    3 ptr[-1] is not the number of entries; then over the entries, the first of 4 an index
    outside [0, n) and 5 an index not above the one before it in its row. No number is read on the
    way: where indices are on another device, the caller waits for it once.
    """
    m, nse = ptr.numel() - 1, idx.numel()
    step, ends = _first(ptr[:-1] > ptr[1:]), ptr[-1:] != nse
    idx = idx.long()  # n may exceed the index type
    unsorted = torch.zeros(nse + 1, dtype=torch.bool, device=idx.device)
    torch.le(idx[1:], idx[:-1], out=unsorted[1:nse])
    starts = ptr[:-1].long().clamp(0, nse)  # pointers that are no positions are found all the same
    unsorted.index_fill_(0, starts, False)
    outside = torch.cat([(idx < 0) | (idx >= n), unsorted.new_zeros(1)])
    position = _first((outside | unsorted)[:nse])
    code = torch.where(outside.index_select(0, position), 4, 5)
    none = position == nse
    code, position = code.masked_fill(none, 0), position.masked_fill(none, -1)
    code, position = code.masked_fill(ends, 3), position.masked_fill(ends, m)
    falls = step < m
    code, position = code.masked_fill(falls, 2), torch.where(falls, step, position)
    begins = ptr[:1] != 0
    return torch.cat([code.masked_fill(begins, 1), position.masked_fill(begins, 0)])


def _fake_check_coo(indices: Tensor, size: Sequence[int]) -> Tensor:
    return indices.new_empty(3, dtype=torch.int64)


@kernel("check_coo(Tensor indices, SymInt[] size) -> Tensor", fake=_fake_check_coo)
def check_coo(indices: Tensor, size: Sequence[int]) -> Tensor:
    """[dim, position, sorted] of COO indices (d, nse).

    `position` is the first entry with an index outside its dimension and `dim` the first such
    dimension of that entry, both -1 if there is none. `sorted` is 1 if the entries are strictly
    increasing lexicographically and in range. As above, no number is read on the way.
    """
    d, nse = indices.shape
    outside = torch.zeros(d, nse + 1, dtype=torch.bool, device=indices.device)
    for found, index, length in zip(outside[:, :nse], indices.long(), size, strict=True):
        torch.logical_or(index < 0, index >= length, out=found)
    position = _first(outside.any(0)[:nse])
    dim = _first(outside.index_select(1, position).view(-1))
    before, after = indices[:, :-1], indices[:, 1:]
    increasing = torch.zeros_like(before[0] if d else indices.sum(0)[1:], dtype=torch.bool)
    for i in reversed(range(d)):
        increasing = (before[i] < after[i]) | ((before[i] == after[i]) & increasing)
    none = position == nse
    ordered = none & increasing.all()
    return torch.cat([dim.masked_fill(none, -1), position.masked_fill(none, -1), ordered.long()])
