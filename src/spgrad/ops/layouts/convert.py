"""Conversions between layouts; differentiable, index work kept on the pattern."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.ops.carry import Carried, carry
from spgrad.ops.operands import sparse_operand
from spgrad.ops.order import lexicographic, many
from spgrad.ops.products import plain, wants_grad
from spgrad.ops.structure import coalesce
from spgrad.ops.views import cols, item_offsets, rows
from spgrad.pattern import LAYOUT_NAMES, Pattern, View
from spgrad.tensor import SparseTensor
from spgrad.tracing import is_real, lasting
from spgrad.values import on_pattern, stored_values


class Move(NamedTuple):
    """Another pattern of the same elements, and where its values come from."""

    pattern: Pattern
    how: Carried


def convert(
    A: SparseTensor, layout: torch.layout, blocksize: tuple[int, int] | None = None
) -> SparseTensor:
    """A in another layout; `A` itself where nothing would change but duplicates."""
    if not A._pattern.coalesced:
        A = coalesce(A)
    pattern = A._pattern
    if pattern.layout == layout and pattern.blocksize == blocksize:
        return A
    vals = flat_values(A)
    first = ("first", layout, blocksize)  # where values went is found for a second conversion
    new = pattern.derived(first) is None and pattern.derived(("layout", layout, blocksize)) is None
    new = new and is_real(vals) == is_real(pattern.indices[0])
    if new and vals.dim() == 1 and not wants_grad(vals):
        with lasting(*pattern.indices, vals):
            together = _together(pattern, layout, blocksize, plain(vals))
        if together is not None:
            found, vals = together
            pattern.keep(first, found)
            return on_pattern(vals.view(found.values_shape), found)
    found, how = moved(pattern, layout, blocksize)
    return on_pattern(carry(vals, how).view(found.values_shape), found)


def flat_values(A: SparseTensor) -> torch.Tensor:
    """Values (elements, *dense) as stored, those inside blocks one by one."""
    pattern = A._pattern
    return stored_values(A).reshape(pattern.elements, *pattern.dense_shape)


def moved(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None = None) -> Move:
    """A coalesced pattern in another layout; O(nse) on the first call, then kept."""

    def make(p: Pattern) -> Move:
        move = _move(p, layout, blocksize)
        return Move(p.derived(("first", layout, blocksize)) or move.pattern, move.how)

    return pattern.derive(("layout", layout, blocksize), make)


def _move(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None) -> Move:
    if layout == torch.sparse_coo:
        return _to_coo(pattern)
    if blocksize is None:
        return _to_compressed(pattern, layout)
    return _to_blocks(pattern, layout, blocksize)


def _together(
    pattern: Pattern,
    layout: torch.layout,
    blocksize: tuple[int, int] | None,
    vals: torch.Tensor,
) -> tuple[Pattern, torch.Tensor] | None:
    """A matrix in another layout, indices and values in one pass; None where that saves nothing."""
    if pattern.is_coo or pattern.batch or layout == torch.sparse_coo:
        return None
    ptr, idx = pattern.indices
    by_rows = pattern.compressed_by_rows
    turns = (layout in (torch.sparse_csr, torch.sparse_bsr)) != by_rows
    if pattern.blocksize is None and blocksize is None and turns:
        across = pattern.matrix[1 if by_rows else 0]
        *indices, vals = kernels.transpose_plan(ptr, idx, across, vals)
    elif blocksize is not None and pattern.blocksize is None and not turns:
        *indices, vals = _grouped((ptr, idx), by_rows, blocksize, vals)
    elif blocksize is None and not turns:
        assert pattern.blocksize is not None
        if ptr.dtype == torch.int32 and pattern.elements > torch.iinfo(torch.int32).max:
            return None
        along, across = pattern.blocksize if by_rows else reversed(pattern.blocksize)
        *indices, vals = kernels.expand_blocks(ptr, idx, along, across, not by_rows, vals)
    else:
        return None
    dtype = _index_dtype(pattern)
    indices = tuple(i.to(dtype) for i in indices)
    return Pattern(layout, pattern.shape, indices, blocksize=blocksize), vals


def _grouped(
    view: tuple[torch.Tensor, torch.Tensor],
    by_rows: bool,
    blocksize: tuple[int, int],
    vals: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lines in blocks, with the entry that each element of these is, or its value."""
    ptr, idx = view
    along, across = blocksize if by_rows else reversed(blocksize)
    if idx.shape[0] * along * across > torch.iinfo(torch.int32).max:
        ptr, idx = ptr.to(torch.int64), idx.to(torch.int64)
    return kernels.group_blocks(ptr, idx, along, across, not by_rows, vals)


def _index_dtype(pattern: Pattern) -> torch.dtype:
    return pattern.indices[0].dtype


def _to_coo(pattern: Pattern) -> Move:
    if pattern.layout == torch.sparse_csr and not pattern.batch:
        shape, dense_dim = pattern.shape, pattern.dense_dim
        indices = kernels.coordinates(*pattern.indices)
        found = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=dense_dim)
        return Move(found, Carried(None, pattern.elements))
    # a matrix by columns is sorted where an array with one element for each row would dwarf it
    by_columns = not pattern.compressed_by_rows and many(pattern.extent[0], pattern)
    view = cols(pattern) if by_columns else rows(pattern)
    line = kernels.expand(view.ptr, view.idx.numel())
    indices = _coordinates(pattern, *((view.idx, line) if by_columns else (line, view.idx)))
    entry = view.perm
    if by_columns:
        order = lexicographic(indices, pattern.shape[: len(indices)])
        indices = indices.index_select(1, order)
        entry = order if entry is None else entry.index_select(0, order)
    found = Pattern(torch.sparse_coo, pattern.shape, (indices,), dense_dim=pattern.dense_dim)
    if not by_columns:
        found.keep("rows", view._replace(perm=None))
    return Move(found, Carried(entry, pattern.elements))


def _coordinates(pattern: Pattern, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
    """COO indices of rows and columns of the block-diagonal matrix."""
    dtype, coordinates = _index_dtype(pattern), [row, col]
    if pattern.batch:
        m, k = pattern.matrix
        row, col = row.to(torch.int64), col.to(torch.int64)  # the batch may not fit `dtype`
        item = torch.div(row, max(m, 1), rounding_mode="floor")
        coordinates = [*torch.unravel_index(item, pattern.batch), row - item * m, col - item * k]
    return torch.stack([c.to(dtype) for c in coordinates])


def _to_compressed(pattern: Pattern, layout: torch.layout) -> Move:
    by_rows = layout == torch.sparse_csr
    if by_rows and pattern.is_coo and not pattern.batch:
        row, col = pattern.indices[0]  # ascending, as the pattern is coalesced
        shape, dense_dim = pattern.shape, pattern.dense_dim
        parts = kernels.compress(row, pattern.matrix[0]), col
        return Move(
            Pattern(layout, shape, parts, dense_dim=dense_dim), Carried(None, pattern.elements)
        )
    view = rows(pattern) if by_rows else cols(pattern)
    dtype = _index_dtype(pattern)
    found = Pattern(
        layout,
        pattern.shape,
        (view.ptr.to(dtype), view.idx.to(dtype)),
        dense_dim=pattern.dense_dim,
    )
    return Move(_local(found, view), Carried(view.perm, pattern.elements))


def _local(found: Pattern, view: View) -> Pattern:
    """`found` with block-diagonal indices made relative to their batch item."""
    by_rows = found.compressed_by_rows
    bound = found.matrix[1 if by_rows else 0]
    offsets = item_offsets(found, bound)
    if isinstance(offsets, torch.Tensor):
        ptr, idx = found.indices
        found = Pattern.from_spec(found.spec, found.shape, (ptr, idx - offsets.to(idx.dtype)))
    found.keep("rows" if by_rows else "cols", view._replace(perm=None))
    return found


def _to_blocks(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int]) -> Move:
    by_rows = layout == torch.sparse_bsr
    view = rows(pattern) if by_rows else cols(pattern)
    ptr, idx, entry = _grouped((view.ptr, view.idx), by_rows, blocksize)
    dtype = _index_dtype(pattern)
    found = Pattern(
        layout,
        pattern.shape,
        (ptr.to(dtype), idx.to(dtype)),
        dense_dim=pattern.dense_dim,
        blocksize=blocksize,
    )
    across = blocksize[1 if by_rows else 0]
    offsets = item_offsets(found, found.matrix[1 if by_rows else 0] // across)
    if isinstance(offsets, torch.Tensor):
        ptr, idx = found.indices
        found = Pattern.from_spec(found.spec, found.shape, (ptr, idx - offsets.to(dtype)))
    if view.perm is not None:
        entry = kernels.take(view.perm + 1, entry) - 1
    return Move(found, Carried(entry, pattern.elements))


def to_sparse(
    A: torch.Tensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: tuple[int, int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """`A` in another sparse layout.

    Args:
        A: SparseTensor of any layout; a COO tensor with d sparse dimensions is a batch of matrices
            in its first d - 2.
        sparse_dim: None, or the number of dimensions of `A` that are not dense, with which the
            result is COO.
        layout: torch.sparse_coo (the default), sparse_csr, sparse_csc, sparse_bsr or sparse_bsc.
        blocksize: Rows and columns of a block, which divide those of the matrix; for BSR and BSC.
        dense_dim: None, or the number of dense dimensions of `A`, which stays.

    Returns:
        SparseTensor with the same elements; `A` itself if it is in that layout. Blocks that hold
        a specified element are filled up with explicit zeros.

    Gradient:
        The cotangent at the elements of `A`, on its pattern.

    Cost:
        O(nse); the index work once for each pattern.

    Raises:
        TypeError: `A` is not sparse, or `layout` is not a sparse one.
        ValueError: `blocksize` is missing, not wanted, or does not divide the matrix; `sparse_dim`
            or `dense_dim` is another than that of `A`.
        NotImplementedError: `A` has fewer than two sparse dimensions.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
        >>> spgrad.to_sparse(A, layout=torch.sparse_csr).crow_indices()
        tensor([0, 1, 2])
    """
    fn = "to_sparse"
    A = sparse_operand(fn, "A", A)
    dense = A._pattern.dense_dim
    own = {"sparse_dim": len(A._pattern.shape) - dense, "dense_dim": dense}
    for arg, asked in (("sparse_dim", sparse_dim), ("dense_dim", dense_dim)):
        if asked not in (None, own[arg]):
            raise ArgumentValueError(
                f"spgrad.{fn}: `{arg}` is {asked} for a sparse tensor that has {own[arg]}; that "
                "number is accepted. Use spgrad.from_dense(A.to_dense(), dense_dim=...)."
            )
    layout = torch.sparse_coo if layout is None else layout
    require_layout(fn, layout)
    return convert(A, layout, require_blocksize(fn, A._pattern, layout, blocksize))


def require_layout(fn: str, layout: torch.layout) -> None:
    """Refuses what is not one of the five sparse layouts."""
    if layout not in LAYOUT_NAMES:
        raise ArgumentKindError(
            f"spgrad.{fn}: `layout` is {layout}; torch.sparse_coo, sparse_csr, sparse_csc, "
            "sparse_bsr and sparse_bsc are accepted. Use spgrad.to_dense for a dense tensor."
        )


def require_blocksize(
    fn: str, pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None
) -> tuple[int, int] | None:
    """The block size to convert to, checked against layout and shape."""
    if layout != torch.sparse_coo and len(pattern.shape) - pattern.dense_dim < 2:
        raise UnsupportedError(
            f"spgrad.{fn}: `A` has shape {tuple(pattern.shape)} with {pattern.dense_dim} dense "
            "dimension(s); two or more sparse dimensions are accepted for a compressed layout. "
            "Keep it in COO."
        )
    if layout not in (torch.sparse_bsr, torch.sparse_bsc):
        if blocksize is not None:
            raise ArgumentValueError(
                f"spgrad.{fn}: `blocksize` is {blocksize}; None is accepted for layout "
                f"{LAYOUT_NAMES[layout]}. Leave it out, or ask for BSR or BSC."
            )
        return None
    if blocksize is None and pattern.blocksize is not None:
        return pattern.blocksize
    m, k = pattern.matrix
    ok = (
        isinstance(blocksize, (tuple, list))
        and len(blocksize) == 2
        and all(isinstance(b, int) and b > 0 for b in blocksize)
    )
    if blocksize is None or not ok or m % blocksize[0] or k % blocksize[1]:
        raise ArgumentValueError(
            f"spgrad.{fn}: `blocksize` is {blocksize}; two positive ints that divide the matrix "
            f"sizes ({m}, {k}) are accepted for {LAYOUT_NAMES[layout]}. Pad the matrix, or choose "
            "other blocks."
        )
    return blocksize[0], blocksize[1]


def to_sparse_coo(A: torch.Tensor) -> SparseTensor:
    """`spgrad.to_sparse` with layout=torch.sparse_coo."""
    return to_sparse(A)


def to_sparse_csr(A: torch.Tensor) -> SparseTensor:
    """`spgrad.to_sparse` with layout=torch.sparse_csr."""
    return to_sparse(A, layout=torch.sparse_csr)


def to_sparse_csc(A: torch.Tensor) -> SparseTensor:
    """`spgrad.to_sparse` with layout=torch.sparse_csc."""
    return to_sparse(A, layout=torch.sparse_csc)


def to_sparse_bsr(A: torch.Tensor, blocksize: tuple[int, int]) -> SparseTensor:
    """`spgrad.to_sparse` with layout=torch.sparse_bsr."""
    return to_sparse(A, layout=torch.sparse_bsr, blocksize=blocksize)


def to_sparse_bsc(A: torch.Tensor, blocksize: tuple[int, int]) -> SparseTensor:
    """`spgrad.to_sparse` with layout=torch.sparse_bsc."""
    return to_sparse(A, layout=torch.sparse_bsc, blocksize=blocksize)
