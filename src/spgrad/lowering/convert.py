"""Conversion to another layout: a new pattern, kept on the old one, and a gather of the values."""

from __future__ import annotations

import weakref

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.pattern import Pattern, View, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_dtype, on_pattern, plain, stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.gather import Gather, Move, moves_along
from spgrad.lowering.sorting import lexicographic, many
from spgrad.lowering.views import cols, item_offsets, rows, unraveled
from spgrad.torch_protocol.compile import lasting


def convert(
    A: SparseTensor, layout: torch.layout, blocksize: tuple[int, int] | None = None
) -> SparseTensor:
    """A in another layout, with repeated elements added up."""
    A = without_repeats(A)
    pattern = A._pattern
    if pattern.layout == layout and pattern.blocksize == blocksize:
        return A
    vals = flat_values(A)
    ready: list[torch.Tensor] = []  # the values, if this call finds the pattern
    found, gather, _ = _moved(pattern, layout, blocksize, vals, ready)
    return on_pattern(gather(vals, *ready).view(found.values_shape), found)


_UNSORTED = 5  # of kernels.check_compressed


def with_sorted_lines(
    ptr: torch.Tensor, idx: torch.Tensor, vals: torch.Tensor, bound: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same lines with sorted unique indices, which SciPy does not require.

    Lines with another defect, such as an index outside [0, bound), may come back as they are.
    """
    if int(kernels.check_compressed(ptr, idx, bound)[0]) != _UNSORTED:
        return ptr, idx, vals
    line = kernels.expand(ptr, idx.numel())
    shape = ptr.numel() - 1, bound, *vals.shape[1:]
    made = convert(sparse_coo_tensor(torch.stack([line, idx]), vals, shape), torch.sparse_csr)
    ptr, idx = made._pattern.indices
    return ptr, idx, made._vals


def flat_values(A: SparseTensor) -> torch.Tensor:
    """Values (elements, *dense) as stored; values inside blocks are counted one by one."""
    pattern, stored = A._pattern, stored_values(A)
    if pattern.blocksize is None:
        return stored
    return stored.reshape(pattern.elements, *pattern.dense_shape)


def moved(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None = None) -> Move:
    """A coalesced pattern in another layout; O(nse) on the first call, then kept."""
    return _moved(pattern, layout, blocksize, None, [])


def _moved(
    pattern: Pattern,
    layout: torch.layout,
    blocksize: tuple[int, int] | None,
    vals: torch.Tensor | None,
    ready: list[torch.Tensor],
) -> Move:
    """As `moved`; if that saves a pass, it also moves the values and appends them to `ready`."""

    def make(p: Pattern) -> Move:
        together = None
        if vals is not None and moves_along(vals, p.indices[0]):
            together = _converted_with_values(p, layout, blocksize, plain(vals.detach()))
        if together is None:
            return _move(p, layout, blocksize)
        found, moved_vals = together
        ready.append(moved_vals)
        old = weakref.ref(p)  # p keeps the result, which must not keep p

        def entries() -> torch.Tensor | None:
            alive = old()
            assert alive is not None
            with lasting(*alive.indices):
                return _move(alive, layout, blocksize).gather.index()

        return Move(found, Gather(entries, p.elements))

    return pattern.derive(kept.LAYOUT.of(layout, blocksize), make)


def _move(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None) -> Move:
    if layout == torch.sparse_coo:
        return _to_coo(pattern)
    if blocksize is None:
        return _to_compressed(pattern, layout)
    return _to_blocks(pattern, layout, blocksize)


def _converted_with_values(
    pattern: Pattern,
    layout: torch.layout,
    blocksize: tuple[int, int] | None,
    vals: torch.Tensor,
) -> tuple[Pattern, torch.Tensor] | None:
    """A matrix in another layout, indices and values in one pass; None if that saves nothing."""
    if pattern.is_coo or pattern.batch or layout == torch.sparse_coo:
        return None
    ptr, idx = pattern.indices
    by_rows = pattern.compressed_by_rows
    turns = (layout in (torch.sparse_csr, torch.sparse_bsr)) != by_rows
    if pattern.blocksize is None and blocksize is None and turns:
        num_cols = pattern.matrix[1 if by_rows else 0]  # of the view: rows, of one by columns
        *indices, vals = kernels.transpose_plan(ptr, idx, num_cols, vals)
    elif blocksize is not None and pattern.blocksize is None and not turns:
        *indices, vals = _grouped_in_blocks((ptr, idx), by_rows, blocksize, vals)
    elif blocksize is None and not turns:
        assert pattern.blocksize is not None
        if ptr.dtype == torch.int32 and pattern.elements > torch.iinfo(torch.int32).max:
            return None
        block_lines, block_width = pattern.blocksize if by_rows else reversed(pattern.blocksize)
        operands = ptr, idx, block_lines, block_width, not by_rows, vals
        *indices, vals = kernels.expand_blocks(*operands)
    else:
        return None
    dtype = _own_dtype(pattern)
    indices = tuple(as_dtype(i, dtype) for i in indices)
    found = Pattern(layout, pattern.shape, indices, blocksize=blocksize)
    return found.ascending(pattern), vals


def _grouped_in_blocks(
    view: tuple[torch.Tensor, torch.Tensor],
    by_rows: bool,
    blocksize: tuple[int, int],
    vals: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Groups lines into blocks; the third part is the entry, or the value, of each element."""
    ptr, idx = view
    block_lines, block_width = blocksize if by_rows else reversed(blocksize)
    dtype = index_dtype(ptr.dtype, (idx.shape[0] * block_lines * block_width,))
    ptr, idx = as_dtype(ptr, dtype), as_dtype(idx, dtype)
    return kernels.group_blocks(ptr, idx, block_lines, block_width, not by_rows, vals)


def _own_dtype(pattern: Pattern) -> torch.dtype:
    """The dtype of the indices, or int64 where pointers to all elements pass its largest number."""
    return index_dtype(pattern.indices[0].dtype, (pattern.elements,))


def _to_coo(pattern: Pattern) -> Move:
    if pattern.layout == torch.sparse_csr and not pattern.batch:
        shape, dense_dim = pattern.shape, pattern.dense_dim
        indices = kernels.coordinates(*pattern.indices)
        found = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=dense_dim)
        return Move(found.ascending(pattern), Gather(None, pattern.elements))
    # a matrix by columns is sorted if an array with one element for each row would be much larger
    by_columns = not pattern.compressed_by_rows and many(pattern.extent[0], pattern)
    view = cols(pattern) if by_columns else rows(pattern)
    line = kernels.expand(view.ptr, view.idx.numel())
    indices = _from_block_diagonal(pattern, *((view.idx, line) if by_columns else (line, view.idx)))
    entry = view.perm
    if by_columns:
        order = lexicographic(indices, pattern.shape[: len(indices)])
        indices = indices.index_select(1, order)
        entry = order if entry is None else entry.index_select(0, order)
    found = Pattern(torch.sparse_coo, pattern.shape, (indices,), dense_dim=pattern.dense_dim)
    if not by_columns:
        found.keep(kept.ROWS, view._replace(perm=None))
    return Move(found.ascending(pattern), Gather(entry, pattern.elements))


def _from_block_diagonal(pattern: Pattern, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
    """COO indices of rows and columns of the block-diagonal matrix."""
    dtype, coordinates = _own_dtype(pattern), [row, col]
    if pattern.batch:
        m, k = pattern.matrix
        row, col = row.to(torch.int64), col.to(torch.int64)  # the batch may not fit `dtype`
        item = torch.div(row, max(m, 1), rounding_mode="floor")
        coordinates = [*unraveled(item, pattern.batch), row - item * m, col - item * k]
    return torch.stack([as_dtype(c, dtype) for c in coordinates])


def _to_compressed(pattern: Pattern, layout: torch.layout) -> Move:
    by_rows = layout == torch.sparse_csr
    if by_rows and pattern.is_coo and not pattern.batch:
        row, col = as_dtype(pattern.indices[0], _own_dtype(pattern))  # in ascending order
        shape, dense_dim = pattern.shape, pattern.dense_dim
        parts = kernels.compress(row, pattern.matrix[0]), col
        found = Pattern(layout, shape, parts, dense_dim=dense_dim)
        return Move(found.ascending(pattern), Gather(None, pattern.elements))
    view = rows(pattern) if by_rows else cols(pattern)
    dtype = _own_dtype(pattern)
    found = Pattern(
        layout,
        pattern.shape,
        (as_dtype(view.ptr, dtype), as_dtype(view.idx, dtype)),
        dense_dim=pattern.dense_dim,
    )
    found = _local(found, view).ascending(pattern)
    return Move(found, Gather(view.perm, pattern.elements))


def _local(found: Pattern, view: View) -> Pattern:
    """`found` with block-diagonal indices made relative to their batch item."""
    by_rows = found.compressed_by_rows
    bound = found.matrix[1 if by_rows else 0]
    offsets = item_offsets(found, bound)
    if isinstance(offsets, torch.Tensor):
        ptr, idx = found.indices
        found = Pattern.from_spec(found.spec, found.shape, (ptr, idx - offsets.to(idx.dtype)))
    found.keep(kept.ROWS if by_rows else kept.COLS, view._replace(perm=None))
    return found


def _to_blocks(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int]) -> Move:
    by_rows = layout == torch.sparse_bsr
    view = rows(pattern) if by_rows else cols(pattern)
    ptr, idx, entry = _grouped_in_blocks((view.ptr, view.idx), by_rows, blocksize)
    dtype = _own_dtype(pattern)
    found = Pattern(
        layout,
        pattern.shape,
        (as_dtype(ptr, dtype), as_dtype(idx, dtype)),
        dense_dim=pattern.dense_dim,
        blocksize=blocksize,
    )
    block_width = blocksize[1 if by_rows else 0]
    offsets = item_offsets(found, found.matrix[1 if by_rows else 0] // block_width)
    if isinstance(offsets, torch.Tensor):
        ptr, idx = found.indices
        found = Pattern.from_spec(found.spec, found.shape, (ptr, idx - offsets.to(dtype)))
    if view.perm is not None:
        entry = kernels.take(view.perm + 1, entry) - 1
    return Move(found.ascending(pattern), Gather(entry, pattern.elements))
