"""References of the kernels that check index structures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


def _first(bad: Tensor) -> int:
    """The position of the first true element, -1 if there is none."""
    return int(bad.int().argmax()) if bool(bad.any()) else -1


def _fake_check_compressed(ptr: Tensor, idx: Tensor, n: int) -> Tensor:
    return ptr.new_empty(2, dtype=torch.int64)


@kernel("check_compressed(Tensor ptr, Tensor idx, SymInt n) -> Tensor", fake=_fake_check_compressed)
def check_compressed(ptr: Tensor, idx: Tensor, n: int) -> Tensor:
    """[code, position] of the first defect of a compressed structure, [0, -1] if it has none.

    The codes, in the order of the checks: 1 ptr[0] is not 0; 2 ptr decreases after `position`;
    3 ptr[-1] is not the number of entries; then over the entries, the first of 4 an index
    outside [0, n) and 5 an index not above the one before it in its row.
    """

    def verdict(code: int, position: int) -> Tensor:
        return torch.tensor([code, position], device=ptr.device)

    m, nse = ptr.numel() - 1, idx.numel()
    if int(ptr[0]) != 0:
        return verdict(1, 0)
    if (position := _first(ptr[:-1] > ptr[1:])) >= 0:
        return verdict(2, position)
    if int(ptr[-1]) != nse:
        return verdict(3, m)
    idx = idx.long()  # n may exceed the index type
    outside = (idx < 0) | (idx >= n)
    unsorted = torch.zeros_like(outside)
    unsorted[1:] = idx[1:] <= idx[:-1]
    starts = ptr[:-1]
    unsorted[starts[starts < nse].long()] = False
    position = _first(outside | unsorted)
    if position < 0:
        return verdict(0, -1)
    return verdict(4 if bool(outside[position]) else 5, position)


def _fake_check_coo(indices: Tensor, size: Sequence[int]) -> Tensor:
    return indices.new_empty(3, dtype=torch.int64)


@kernel("check_coo(Tensor indices, SymInt[] size) -> Tensor", fake=_fake_check_coo)
def check_coo(indices: Tensor, size: Sequence[int]) -> Tensor:
    """[dim, position, sorted] of COO indices (d, nse).

    `position` is the first entry with an index outside its dimension and `dim` the first such
    dimension of that entry, both -1 if there is none. `sorted` is 1 if the entries are strictly
    increasing lexicographically and in range.
    """
    limit = torch.tensor(list(size), dtype=torch.int64, device=indices.device)[:, None]
    outside = (indices < 0) | (indices >= limit)
    position = _first(outside.any(0))
    if position >= 0:
        return torch.tensor([_first(outside[:, position]), position, 0], device=indices.device)
    before, after = indices[:, :-1], indices[:, 1:]
    increasing = torch.zeros_like(before[0] if len(size) else indices.sum(0)[1:], dtype=torch.bool)
    for dim in reversed(range(len(size))):
        increasing = (before[dim] < after[dim]) | ((before[dim] == after[dim]) & increasing)
    return torch.tensor([-1, -1, int(increasing.all())], device=indices.device)
