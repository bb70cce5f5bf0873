"""Row and column views: every layout as the arrays that the matrix kernels take.

A batch is seen as one block-diagonal matrix, so one kernel serves it. Views are kept on the
pattern and use int32 indices wherever these fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern, View, index_dtype
from spgrad.core.values import as_dtype
from spgrad.lowering.sorting import counting_sort, many
from spgrad.torch_protocol.compile import is_real


def rows(pattern: Pattern) -> View:
    """The matrix, or block-diagonal batch, by rows; O(nse) on the first call, then kept."""
    return pattern.derive(kept.ROWS, _rows)


def row_pointers(pattern: Pattern) -> torch.Tensor:
    """Pointers to the rows (m + 1,) of a COO matrix in order, which the row view has too.

    They take one pass; the view also copies the columns if their dtype is another one.
    """
    view = pattern.derived(kept.ROWS)
    if view is not None:
        return view.ptr
    return pattern.derive(kept.POINTERS, lambda p: _compressed(p.indices[0][0], p.matrix[0]))


def _compressed(row: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Row pointers of the ascending rows of entries, in their dtype if it holds their number."""
    dtype = index_dtype(row.dtype, row.shape)
    return kernels.compress(as_dtype(row, dtype).contiguous(), num_rows)


def has_lines(pattern: Pattern) -> bool:
    """True for what has pointers to its lines, or for COO soon will; False for blocks.

    Of COO these are matrices that do not have many more rows than elements.
    """
    if pattern.is_coo:
        return pattern.sparse_dim == 2 and not many(pattern.matrix[0], pattern)
    return pattern.blocksize is None


def cols(pattern: Pattern) -> View:
    """The same matrix by columns: the row view of its transpose."""
    return pattern.derive(kept.COLS, _cols)


class Valued:
    """A matrix by rows and by columns with its values in the order of each, for repeated use.

    When code first asks for a view, the values are put into its order; this copy takes as long as a
    product with a vector.
    """

    def __init__(self, vals: torch.Tensor, pattern: Pattern) -> None:
        self.vals, self.pattern = vals, pattern
        self._found: dict[bool, tuple[View, torch.Tensor]] = {}

    def lines(self, by_columns: bool) -> tuple[View, torch.Tensor]:
        """The view, without `perm`, and the flat values in its order."""
        found = self._found.get(by_columns)
        if found is None:
            view, vals = cols(self.pattern) if by_columns else rows(self.pattern), self.vals
            if view.perm is not None:
                view, vals = view._replace(perm=None), kernels.take(vals, view.perm)
            found = self._found[by_columns] = view, vals
        return found


def block_rows(pattern: Pattern) -> View:
    """The matrix of the blocks of BSR or BSC by rows; its entries are blocks."""
    return pattern.derive(kept.BLOCK_ROWS, lambda p: _block_lines(p, by_rows=True))


def block_cols(pattern: Pattern) -> View:
    """The same matrix of blocks by columns."""
    return pattern.derive(kept.BLOCK_COLS, lambda p: _block_lines(p, by_rows=False))


def _block_lines(pattern: Pattern, by_rows: bool) -> View:
    if by_rows == pattern.compressed_by_rows:
        return _stored_lines(pattern)
    return transposed_view(block_cols(pattern) if by_rows else block_rows(pattern))


def find_views(pattern: Pattern) -> None:
    """Finds the views of a matrix, and whether its items have equal nse, for compiled code."""
    if len(pattern.shape) - pattern.dense_dim >= 2:
        found = {kept.ROWS: rows, kept.COLS: cols}
        if pattern.blocksize is not None:
            found |= {kept.BLOCK_ROWS: block_rows, kept.BLOCK_COLS: block_cols}
        for find in found.values():
            find(pattern)
        pattern.keep(kept.GIVEN, tuple(found))
        pattern.items  # noqa: B018


def _rows(pattern: Pattern) -> View:
    if pattern.is_coo:
        return _from_coordinates(pattern)
    if pattern.compressed_by_rows:
        return _from_compressed(pattern)
    return transposed_view(cols(pattern))


def _cols(pattern: Pattern) -> View:
    if pattern.is_coo or pattern.compressed_by_rows:
        return transposed_view(rows(pattern))
    return _from_compressed(pattern)


def _view_dtype(pattern: Pattern, extent: tuple[int, int]) -> torch.dtype:
    return index_dtype(torch.int32, (*extent, pattern.elements))


def transposed_view(view: View) -> View:
    """The view of the transpose, by a stable counting sort; O(nse + lines)."""
    ptr, idx, perm = kernels.transpose_plan(view.ptr, view.idx, view.num_cols)
    if view.perm is not None:
        perm = view.perm[perm]
    return View(ptr, idx, perm, view.ptr.numel() - 1)


def item_offsets(pattern: Pattern, step: int) -> torch.Tensor | int:
    """The numbers to add to the indices of a compressed batch to make them block-diagonal."""
    items = math.prod(pattern.batch)
    ptr = pattern.indices[0]
    if items <= 1 or ptr.numel() == 1:
        return 0
    item_ptr = ptr[:: (ptr.numel() - 1) // items].contiguous()
    return kernels.expand(item_ptr, pattern.nse).to(torch.int64) * step


def _from_compressed(pattern: Pattern) -> View:
    if pattern.blocksize is None:
        return _stored_lines(pattern)
    block_lines, block_width = pattern.blocksize
    lines = block_rows(pattern) if pattern.compressed_by_rows else block_cols(pattern)
    if not pattern.compressed_by_rows:
        block_lines, block_width = block_width, block_lines
    blocks = block_lines, block_width, not pattern.compressed_by_rows
    expanded = kernels.expand_blocks(lines.ptr, lines.idx, *blocks)
    return View(*expanded, num_cols=pattern.extent[pattern.compressed_by_rows])


def _stored_lines(pattern: Pattern) -> View:
    """The lines that a compressed layout stores; in BSR and BSC, lines of blocks."""
    extent, across = pattern.extent, 1 if pattern.compressed_by_rows else 0
    dtype = _view_dtype(pattern, extent)
    size = (pattern.blocksize or (1, 1))[across]
    ptr, idx = (as_dtype(t, dtype) for t in pattern.indices)
    offsets = item_offsets(pattern, pattern.matrix[across] // size)
    if isinstance(offsets, torch.Tensor):
        idx = idx + as_dtype(offsets, dtype)
    return View(ptr, idx, None, extent[across] // size)


def flat_coordinates(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column, in the block-diagonal matrix, of each entry of a COO matrix or batch."""
    indices = pattern.indices[0]
    m, k = pattern.matrix
    row, col = indices[-2], indices[-1]
    item = linear_index(indices[:-2], pattern.batch)
    return (row, col) if item is None else (row + item * m, col + item * k)


def linear_index(
    indices: torch.Tensor | Sequence[torch.Tensor], sizes: Sequence[int]
) -> torch.Tensor | None:
    """Position in row-major order of each column of `indices` (d, nse); None if d is 0."""
    linear = None
    for index, size in zip(indices, sizes, strict=True):
        linear = index if linear is None else linear * size + index
    return linear


def unraveled(position: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """The index along each dimension of row-major positions: the inverse of `linear_index`.

    No number comes from the host; torch.unravel_index copies the sizes to the device.
    """
    found: list[torch.Tensor] = []
    for size in reversed(sizes[1:]):
        below = max(size, 1)
        found.append(position % below)
        position = torch.div(position, below, rounding_mode="floor")
    return [position, *reversed(found)] if sizes else []


def entries_at(pattern: Pattern, at: Sequence[torch.Tensor]) -> torch.Tensor:
    """The element of a pattern at each point, -1 for none; O(points log nse).

    Args:
        pattern: Of any layout, coalesced.
        at: The index of each point along each sparse dimension, (points,) int64.
    """
    if pattern.is_coo:
        return _coo_entries_at(pattern, at)
    bm, bn = pattern.blocksize or (1, 1)
    *batch, row, col = at
    m, k = pattern.matrix[0] // bm, pattern.matrix[1] // bn
    places = [row // bm, col // bn] if pattern.blocksize else [row, col]
    line, index = places if pattern.compressed_by_rows else reversed(places)
    sizes = (*pattern.batch, m if pattern.compressed_by_rows else k)
    number = linear_index([*batch, line], sizes)
    assert number is not None
    found = kernels.locate(*pattern.indices, number, index)
    if pattern.blocksize is None:
        return found
    return torch.where(found < 0, found, (found * bm + row % bm) * bn + col % bn)


def _coo_entries_at(pattern: Pattern, at: Sequence[torch.Tensor]) -> torch.Tensor:
    if is_real(pattern.indices[0]) and has_lines(pattern):
        ptr = row_pointers(pattern)
        return kernels.locate(ptr, pattern.indices[0][1].to(ptr.dtype), *at)
    keys = kept_linear_positions(pattern)
    wanted = linear_index(at, tuple(pattern.shape[: pattern.sparse_dim]))
    assert wanted is not None
    return kernels.locate(one_line(keys), keys, torch.zeros_like(wanted), wanted)


def index_rows(indices: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The rows `dims` of `indices`; indexing with a list would copy the list to the device."""
    return torch.stack([indices[d] for d in dims]) if dims else indices[:0]


def one_line(entries: torch.Tensor) -> torch.Tensor:
    """Line pointers (2,) of one line with these entries; no number comes from the host."""
    ptr = entries.new_zeros(2, dtype=torch.int64)
    ptr[1:].fill_(entries.shape[0])
    return ptr


def kept_linear_positions(pattern: Pattern) -> torch.Tensor:
    """`linear_positions`, found on the first call and kept on the pattern."""
    return pattern.derive(kept.LINEAR, linear_positions)


def linear_positions(pattern: Pattern) -> torch.Tensor:
    """Row-major position of each stored element among the sparse dimensions."""
    if pattern.is_coo:
        indices = pattern.indices[0].to(torch.int64)
        linear = linear_index(indices, tuple(pattern.shape[: pattern.sparse_dim]))
        return indices.new_zeros(indices.shape[1]) if linear is None else linear
    m, k = pattern.matrix
    if pattern.blocksize is None and not pattern.compressed_by_rows:
        view = cols(pattern)
        col = kernels.expand(view.ptr, view.idx.numel()).to(torch.int64)
        linear = view.idx.to(torch.int64) * k + col
        if pattern.batch:  # whose columns count on from item to item
            linear = linear - torch.div(col, max(k, 1), rounding_mode="floor") * k
        return linear
    view = rows(pattern)
    row = kernels.expand(view.ptr, view.idx.numel()).to(torch.int64)
    linear = row * k + view.idx
    if pattern.batch:  # whose columns count on from item to item
        linear = linear - torch.div(row, max(m, 1), rounding_mode="floor") * k
    if view.perm is None:
        return linear
    return torch.empty_like(linear).index_copy_(0, view.perm.to(torch.int64), linear)


def positions_among(pattern: Pattern, dims: tuple[int, ...]) -> torch.Tensor:
    """Row-major position of each stored element among some sparse dimensions, one or more; kept."""
    return pattern.derive(kept.POSITION.of(*dims), lambda p: _positions_among(p, dims))


def _positions_among(pattern: Pattern, dims: tuple[int, ...]) -> torch.Tensor:
    sizes = pattern.shape[: len(pattern.shape) - pattern.dense_dim]
    if dims == tuple(range(len(sizes))):
        return kept_linear_positions(pattern)
    if pattern.is_coo:
        found = linear_index(
            [pattern.indices[0][d].to(torch.int64) for d in dims], [sizes[d] for d in dims]
        )
        assert found is not None
        return found
    if len(dims) == 1 and len(sizes) == 2 and pattern.blocksize is None:
        ptr, idx = pattern.indices
        along_lines = dims[0] == int(pattern.compressed_by_rows)
        return (idx if along_lines else kernels.expand(ptr, idx.shape[0])).to(torch.int64)
    linear = kept_linear_positions(pattern)
    found = torch.zeros_like(linear)
    for dim in dims:
        below = max(math.prod(sizes[dim + 1 :]), 1)
        index = torch.div(linear, below, rounding_mode="floor").remainder_(max(sizes[dim], 1))
        found = found.mul_(sizes[dim]).add_(index)
    return found


def _from_coordinates(pattern: Pattern) -> View:
    dtype = _view_dtype(pattern, pattern.extent)
    num_rows, num_cols = pattern.extent
    if len(pattern.batch) > 0 and pattern.indices[0].dtype == torch.int32:
        wide = pattern.indices[0].to(torch.int64)  # item * k may pass 2^31 before the cast
        pattern = Pattern.from_spec(pattern.spec, pattern.shape, (wide,))
    row, col = flat_coordinates(pattern)
    if pattern.ordered:
        ptr = pattern.derived(kept.POINTERS)
        ptr = _compressed(row, num_rows) if ptr is None else ptr
        return View(as_dtype(ptr, dtype), as_dtype(col, dtype).contiguous(), None, num_cols)
    row, col = as_dtype(row, dtype), as_dtype(col, dtype).contiguous()
    ptr, perm = counting_sort(row, num_rows)
    return View(ptr, col[perm], perm, num_cols)
