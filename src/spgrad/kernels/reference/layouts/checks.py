"""References of the kernels that check, build and transpose index structures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


def _positions(like: Tensor, length: int) -> Tensor:
    """0, 1, ..., length - 1 in `like`'s dtype and device (`arange` would not be traceable)."""
    return like.new_ones(length).cumsum(0, dtype=like.dtype) - 1


def _first(bad: Tensor) -> int:
    """The position of the first true element, -1 if there is none."""
    return int(bad.int().argmax()) if bool(bad.any()) else -1


def row_numbers(ptr: Tensor, nse: int) -> Tensor:
    """Row numbers (nse,) from row pointers (m + 1,)."""
    return torch.repeat_interleave(ptr.diff(), output_size=nse).to(ptr.dtype)


def row_pointers(row: Tensor, m: int) -> Tensor:
    """Row pointers (m + 1,) from row numbers (nse,) in any order."""
    count = row.new_zeros(m + 1).index_add_(0, row.long() + 1, torch.ones_like(row))
    return count.cumsum(0, dtype=row.dtype)


def distinct(indices: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct columns of (d, nse) in lexicographic order, and which each column became."""
    order = indices.new_ones(indices.shape[1], dtype=torch.int64).cumsum(0) - 1
    for key in reversed(indices.unbind(0)):  # least significant key first: the sorts are stable
        order = order[torch.argsort(key[order], stable=True)]
    entries = indices[:, order]
    starts = entries.new_ones(entries.shape[1], dtype=torch.bool)
    starts[1:] = (entries[:, 1:] != entries[:, :-1]).any(0)
    group = torch.empty_like(order)
    group[order] = starts.cumsum(0) - 1
    return entries[:, starts].contiguous(), group


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


@kernel("compress(Tensor row, SymInt m) -> Tensor")
def compress(row: Tensor, m: int) -> Tensor:
    """Row pointers (m + 1,) from row numbers (nse,) in any order."""
    return row_pointers(row, m)


@kernel("expand(Tensor ptr, SymInt nse) -> Tensor")
def expand(ptr: Tensor, nse: int) -> Tensor:
    """Row numbers (nse,) from row pointers (m + 1,)."""
    return row_numbers(ptr, nse)


@kernel("coordinates(Tensor ptr, Tensor idx) -> Tensor")
def coordinates(ptr: Tensor, idx: Tensor) -> Tensor:
    """Row and column (2, nse) of every entry, from row pointers (m + 1,) and columns (nse,)."""
    return torch.stack([row_numbers(ptr, idx.shape[0]), idx])


def moved(entry: Tensor, val: Tensor | None) -> Tensor:
    """The entries that went somewhere, or their values; -1 and zero stand for none."""
    if val is None:
        return entry
    if val.numel() == 0:
        return val.new_zeros(entry.shape)
    none = entry < 0
    return val[entry.clamp(min=0)].masked_fill(none, 0)


@kernel(
    "transpose_plan(Tensor ptr, Tensor idx, SymInt n, Tensor? val=None) -> (Tensor, Tensor, Tensor)"
)
def transpose_plan(
    ptr: Tensor, idx: Tensor, n: int, val: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The column view of a row view: pointers (n + 1,), rows (nse,), positions (nse,).

    The sort is stable: a column lists its entries in ascending row order, then storage order.
    With values val (nse,), these in the new order in place of the positions.
    """
    perm = torch.argsort(idx, stable=True)
    row = row_numbers(ptr, idx.numel())[perm]
    return row_pointers(idx, n), row, moved(perm.to(idx.dtype), val)


def _fake_densify(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, lines: int, n: int
) -> Tensor:
    return val.new_empty(ptr.shape[0] - 1, n, *val.shape[1:])


@kernel(
    "densify(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, SymInt lines, SymInt n) -> Tensor",
    fake=_fake_densify,
)
def densify(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, lines: int, n: int
) -> Tensor:
    """The dense matrix of a row view, or the dense batch of a block-diagonal one.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,), distinct in each row.
        perm: Position in `val` of every entry (nse,); None: in order.
        val: Values (nse,) or (nse, d).
        lines: Rows of an item; item i has the columns from i * n on.
        n: Columns of an item.

    Returns:
        out (m, n) or (m, n, d).
    """
    row = row_numbers(ptr, idx.shape[0]).long()
    place = row * n + idx.long() - torch.div(row, lines, rounding_mode="floor") * n
    m = ptr.shape[0] - 1
    out = val.new_zeros(m * n, *val.shape[1:])
    out.index_copy_(0, place, val if perm is None else val[perm.long()])
    return out.view(m, n, *val.shape[1:])


@kernel(
    "expand_blocks(Tensor ptr, Tensor idx, SymInt along, SymInt across, bool transposed,"
    " Tensor? val=None) -> (Tensor, Tensor, Tensor)"
)
def expand_blocks(
    ptr: Tensor,
    idx: Tensor,
    along: int,
    across: int,
    transposed: bool,
    val: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The scalar view (pointers, indices, positions of the values) of a compressed block matrix.

    A block holds `along` lines, in the compressed dimension, of `across` elements; its values
    lie line by line, or element by element if `transposed`. Line c of block line I lists, block
    after block, the `across` elements of line c of the block. With values val (nb along across,),
    these in the new order in place of their positions.
    """
    lines = ptr.diff()[:, None].expand(-1, along).reshape(-1)  # blocks met by each line
    ends = lines.cumsum(0, dtype=ptr.dtype)
    line = torch.repeat_interleave(lines, output_size=idx.numel() * along).long()
    first = ptr[:-1][:, None].expand(-1, along).reshape(-1)
    start = ends - lines
    block = (_positions(ptr, idx.numel() * along) - start[line] + first[line])[:, None]
    c = (line % along).to(ptr.dtype)[:, None]
    r = _positions(ptr, across)[None, :]
    offset = r * along + c if transposed else c * across + r
    perm = block * (along * across) + offset  # (nb * along, across)
    eidx = idx[block.long()] * across + r
    eptr = torch.cat([ptr.new_zeros(1), ends * across])
    return eptr, eidx.reshape(-1), moved(perm.reshape(-1), val)


def _fake_sort_coo(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    unique = torch.library.get_ctx().new_dynamic_size()
    nse = indices.shape[1]
    dtype = _position_dtype(nse)
    return (
        indices.new_empty((indices.shape[0], unique)),
        indices.new_empty(unique + 1, dtype=dtype),
        indices.new_empty(nse, dtype=dtype),
    )


def _position_dtype(nse: int) -> torch.dtype:
    return torch.int32 if nse <= torch.iinfo(torch.int32).max else torch.int64


@kernel("sort_coo(Tensor indices, SymInt[] size) -> (Tensor, Tensor, Tensor)", fake=_fake_sort_coo)
def sort_coo(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct entries in lexicographic order, and the entries that each of them is.

    Args:
        indices: COO indices (d, nse).
        size: Of every dimension (d,).

    Returns:
        unique (d, u); ptr (u + 1,) and order (nse,): distinct entry i is the entries
        order[ptr[i] : ptr[i + 1]], in ascending order. int32 where nse fits, else int64.
    """
    unique, group = distinct(indices)
    dtype = _position_dtype(indices.shape[1])
    ptr = row_pointers(group, unique.shape[1])
    return unique, ptr.to(dtype), torch.argsort(group, stable=True).to(dtype)


def _fake_coalesce(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    unique = torch.library.get_ctx().new_dynamic_size()
    return (
        indices.new_empty((indices.shape[0], unique)),
        indices.new_empty(indices.shape[1], dtype=torch.int64),
    )


@kernel("coalesce(Tensor indices, SymInt[] size) -> (Tensor, Tensor)", fake=_fake_coalesce)
def coalesce(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The distinct entries (d, u) in lexicographic order, and which of them each entry became."""
    return distinct(indices)
