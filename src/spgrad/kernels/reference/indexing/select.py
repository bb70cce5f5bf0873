"""References of the kernels that select entries by ranges and lists of lines and of indices."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import moved, row_numbers, row_pointers

_Selected = tuple[Tensor, Tensor, Tensor]


def _dynamic(idx: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return idx.new_empty(size), like.new_empty(size)


def _between(idx: Tensor, ptr: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of runs of entries that begin at `start` (l,), and which entries these are."""
    count = int(ptr[-1])
    line = row_numbers(ptr, count)
    source = torch.arange(count, dtype=ptr.dtype, device=ptr.device) + (start - ptr[:-1])[line]
    return idx[source], source


def _fake_range(
    ptr: Tensor, idx: Tensor, first: int, step: int, count: int, val: Tensor | None = None
) -> _Selected:
    return (torch.empty_like(ptr), *_dynamic(idx, idx if val is None else val))


@kernel(
    "select_range(Tensor ptr, Tensor idx, SymInt first, SymInt step, SymInt count,"
    " Tensor? val=None) -> (Tensor, Tensor, Tensor)",
    fake=_fake_range,
)
def select_range(
    ptr: Tensor, idx: Tensor, first: int, step: int, count: int, val: Tensor | None = None
) -> _Selected:
    """The entries of each line whose index is first, first + step, ..., one of `count`.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of each entry (nse,), ascending in each line.
        first: Becomes index 0.
        step: Not 0; below 0 reverses each line.
        count: Of the indices; becomes the bound of the new ones.
        val: Values (nse,), or None.

    Returns:
        Line pointers (m + 1,) and ascending indices (n,) of what is kept, and the old entry that
        each new one is (n,), all of the dtype of `ptr`; or the values in place of the entries.
    """
    away = idx.long() - first
    kept = (away % step == 0) & (away // step >= 0) & (away // step < count)
    source = kept.nonzero().squeeze(1)
    line = row_numbers(ptr, idx.numel())[source]
    if step < 0:  # entries from the end, then lines in order again
        order = torch.argsort(line.flip(0), stable=True)
        source = source.flip(0)[order]
    new = (away // step)[source]
    ptr = row_pointers(line, ptr.numel() - 1)
    return ptr, new.to(idx.dtype), moved(source.to(idx.dtype), val)


def _fake_lines(ptr: Tensor, idx: Tensor, val: Tensor, lines: Tensor) -> _Selected:
    return ptr.new_empty(lines.shape[0] + 1), *_dynamic(idx, val)


@kernel(
    "list_lines(Tensor ptr, Tensor idx, Tensor val, Tensor lines) -> (Tensor, Tensor, Tensor)",
    fake=_fake_lines,
)
def list_lines(ptr: Tensor, idx: Tensor, val: Tensor, lines: Tensor) -> _Selected:
    """Lines by their numbers, with their values.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of each entry (nse,).
        val: Value of each entry (nse,).
        lines: Numbers of lines (l,), int64, in any order; they may repeat.

    Returns:
        Line pointers (l + 1,), indices and values (n,). The dtype of `ptr` has to hold n.
    """
    begin, end = ptr[lines], ptr[lines + 1]
    made = torch.cat([ptr.new_zeros(1), (end - begin).cumsum(0, dtype=ptr.dtype)])
    found, entry = _between(idx, made, begin)
    return made, found, val[entry]


def _fake_columns(ptr: Tensor, idx: Tensor, inv_ptr: Tensor, inv_idx: Tensor) -> _Selected:
    return (torch.empty_like(ptr), *_dynamic(idx, idx))


@kernel(
    "select_columns(Tensor ptr, Tensor idx, Tensor inv_ptr, Tensor inv_idx)"
    " -> (Tensor, Tensor, Tensor)",
    fake=_fake_columns,
)
def select_columns(ptr: Tensor, idx: Tensor, inv_ptr: Tensor, inv_idx: Tensor) -> _Selected:
    """Each entry at all new indices that its index becomes.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of each entry (nse,), distinct in each line.
        inv_ptr: Where the new indices of each old one begin (k + 1,).
        inv_idx: The new indices; no new index belongs to two old ones.

    Returns:
        Line pointers (m + 1,) and ascending indices (n,) of the result, and the old entry that
        each new one is (n,); all of the dtype of `ptr`, which has to hold n.
    """
    start = inv_ptr[idx]
    times = inv_ptr[1:][idx] - start
    each = torch.cat([times.new_zeros(1), times.cumsum(0, dtype=ptr.dtype)])
    new, _ = _between(inv_idx, each, start)
    source = row_numbers(each, new.numel())
    line = row_numbers(ptr, idx.numel())[source]
    order = torch.argsort(new, stable=True)
    order = order[torch.argsort(line[order], stable=True)]
    return row_pointers(line, ptr.numel() - 1), new[order], source[order]


def _fake_locate(ptr: Tensor, idx: Tensor, line: Tensor, index: Tensor) -> Tensor:
    return torch.empty_like(line)


@kernel("locate(Tensor ptr, Tensor idx, Tensor line, Tensor index) -> Tensor", fake=_fake_locate)
def locate(ptr: Tensor, idx: Tensor, line: Tensor, index: Tensor) -> Tensor:
    """The entry of a line that has an index, -1 where there is none.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of each entry (nse,), ascending in each line.
        line: Numbers of lines (p,), int64.
        index: What to look for in each (p,), int64.

    Returns:
        Positions in `idx` (p,), int64.
    """
    low, high = ptr[line].long(), ptr[1:][line].long()
    steps = idx.numel().bit_length()  # the length of the longest line would be read on the host
    end = high
    for _ in range(steps):  # the first entry not below the index is in [low, high]
        middle = (low + high) // 2
        below = (low < high) & (idx[middle.clamp(max=idx.numel() - 1)] < index)
        low = torch.where(below, middle + 1, low)
        high = torch.where(below, high, middle)
    if idx.numel() == 0:
        return torch.full_like(line, -1)
    found = (low < end) & (idx[low.clamp(max=idx.numel() - 1)] == index)
    return torch.where(found, low, -1)
