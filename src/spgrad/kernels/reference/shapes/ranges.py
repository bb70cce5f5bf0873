"""References of the kernels that make new lines of old: ranges, triangles, products, blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.layouts.checks import distinct, moved, row_numbers, row_pointers

_Made = tuple[Tensor, Tensor, Tensor]


def _positions(like: Tensor, length: int) -> Tensor:
    return like.new_ones(length).cumsum(0, dtype=like.dtype) - 1


def _entries(ptr: Tensor, begin: Tensor, end: Tensor, count: int, backward: bool) -> Tensor:
    """The entries (count,) of ranges one behind the other."""
    j = row_numbers(ptr, count).long()
    step = _positions(ptr, count) - ptr[:-1][j]
    return ((end - 1)[j] - step if backward else begin[j] + step).long()


@kernel(
    "join_ranges(Tensor idx, Tensor begin, Tensor end, Tensor shift, SymInt count, bool backward)"
    " -> (Tensor, Tensor)"
)
def join_ranges(
    idx: Tensor, begin: Tensor, end: Tensor, shift: Tensor, count: int, backward: bool
) -> tuple[Tensor, Tensor]:
    """Ranges of entries one behind the other, their indices shifted.

    Args:
        idx: Index of every entry (nse,).
        begin: The first entry of each range (s,).
        end: The entry behind it (s,). Ranges may overlap and stand in any order.
        shift: What is added to the indices of range j: element j mod r of (r,).
        count: Of the entries in all ranges.
        backward: True where a range goes from its last entry to its first, and indices are
            subtracted from the shift.

    Returns:
        Pointers (s + 1,) and indices (count,). All of one dtype, which has to hold `count`.
    """
    length = end - begin
    ptr = torch.cat([length.new_zeros(1), length.cumsum(0, dtype=length.dtype)])
    found = idx[_entries(ptr, begin, end, count, backward)]
    more = shift[row_numbers(ptr, count).long() % shift.shape[0]]
    return ptr, more - found if backward else found + more


@kernel(
    "take_ranges(Tensor val, Tensor ptr, Tensor begin, Tensor end, SymInt count, bool backward)"
    " -> Tensor"
)
def take_ranges(
    val: Tensor, ptr: Tensor, begin: Tensor, end: Tensor, count: int, backward: bool
) -> Tensor:
    """The values of ranges of entries that `join_ranges` has joined.

    Args:
        val: Values (nse,) or (nse, d) of any dtype.
        ptr: As `join_ranges` gave it (s + 1,).
        begin: As `join_ranges` was given it (s,).
        end: Likewise (s,).
        count: Likewise.
        backward: Likewise.

    Returns:
        out (count,) or (count, d).
    """
    return val[_entries(ptr, begin, end, count, backward)]


@kernel(
    "cut_lines(Tensor ptr, Tensor idx, Tensor bound) -> Tensor",
    fake=lambda ptr, idx, bound: ptr.new_empty(ptr.shape[0] - 1),
)
def cut_lines(ptr: Tensor, idx: Tensor, bound: Tensor) -> Tensor:
    """The first entry of every line whose index is bound[i] or more; the end if there is none.

    Args:
        ptr: Line pointers (m + 1,).
        idx: Index of every entry (nse,), ascending in each line.
        bound: For every line (m,), int64.
    """
    row = row_numbers(ptr, idx.numel()).long()
    below = (idx < bound[row]).to(ptr.dtype)
    return ptr[:-1] + torch.zeros_like(ptr[1:]).index_add_(0, row, below)


@kernel(
    "kron_lines(Tensor ptr_a, Tensor idx_a, Tensor ptr_b, Tensor idx_b, SymInt across)"
    " -> (Tensor, Tensor, Tensor)"
)
def kron_lines(ptr_a: Tensor, idx_a: Tensor, ptr_b: Tensor, idx_b: Tensor, across: int) -> _Made:
    """The Kronecker product of two patterns, by lines.

    Args:
        ptr_a: Line pointers of a (m_a + 1,).
        idx_a: Index of every entry of a (nse_a,).
        ptr_b: Line pointers of b (m_b + 1,).
        idx_b: Index of every entry of b (nse_b,).
        across: Exclusive bound of the indices of b.

    Returns:
        Pointers (m_a m_b + 1,), indices (nse_a nse_b,), and the pair of entries (p, q) that each
        new entry is, as p nse_b + q. Lines ascend where those of a and b do. All of one dtype,
        which has to hold the products of sizes and of entries.
    """
    nse_a, nse_b = idx_a.shape[0], idx_b.shape[0]
    lines = ptr_a.diff()[:, None] * ptr_b.diff()[None, :]
    ptr = torch.cat([ptr_a.new_zeros(1), lines.reshape(-1).cumsum(0, dtype=ptr_a.dtype)])
    m_b = ptr_b.shape[0] - 1
    row_a, row_b = row_numbers(ptr_a, nse_a).long(), row_numbers(ptr_b, nse_b).long()
    line = (row_a[:, None] * m_b + row_b).reshape(-1)
    entry = torch.argsort(line, stable=True)
    idx = (idx_a[:, None] * across + idx_b).reshape(-1)
    return ptr, idx[entry], entry.to(ptr.dtype)


def _fake_group_blocks(
    ptr: Tensor,
    idx: Tensor,
    along: int,
    across: int,
    transposed: bool,
    val: Tensor | None = None,
) -> _Made:
    size = torch.library.get_ctx().new_dynamic_size()
    lines = (ptr.shape[0] - 1) // along
    like = idx if val is None else val
    return ptr.new_empty(lines + 1), idx.new_empty(size), like.new_empty(size * along * across)


@kernel(
    "group_blocks(Tensor ptr, Tensor idx, SymInt along, SymInt across, bool transposed,"
    " Tensor? val=None) -> (Tensor, Tensor, Tensor)",
    fake=_fake_group_blocks,
)
def group_blocks(
    ptr: Tensor,
    idx: Tensor,
    along: int,
    across: int,
    transposed: bool,
    val: Tensor | None = None,
) -> _Made:
    """The blocks of `along` lines by `across` indices that hold an entry.

    Args:
        ptr: Line pointers (m + 1,), m a multiple of `along`.
        idx: Index of every entry (nse,), ascending in each line.
        along: Lines of a block.
        across: Indices of a block.
        transposed: True where the elements of a block lie index by index, not line by line.
        val: Values (nse,), or None.

    Returns:
        Block line pointers (m / along + 1,), ascending block indices (b,), and the entry that each
        element of the blocks is (b along across,), -1 for none, or its value, zero for none. The
        dtype of the indices has to hold the number of the elements.
    """
    row = row_numbers(ptr, idx.shape[0]).long()
    col = idx.long()
    unique, group = distinct(torch.stack([row // along, col // across]))
    r, c = row % along, col % across
    place = group * (along * across) + (c * along + r if transposed else r * across + c)
    entry = idx.new_full((unique.shape[1] * along * across,), -1)
    entry.index_copy_(0, place, _positions(idx, idx.shape[0]))
    starts = row_pointers(unique[0], (ptr.shape[0] - 1) // along)
    return starts.to(ptr.dtype), unique[1].to(ptr.dtype), moved(entry, val)
