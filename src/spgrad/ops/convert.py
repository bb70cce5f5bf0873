"""Conversions between layouts and to dense; differentiable, index work kept on the pattern."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from spgrad import checks, kernels
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.ops.carry import Carried, carry
from spgrad.ops.operands import dense_operand, sparse_operand
from spgrad.ops.order import lexicographic, many
from spgrad.ops.structure import coalesce
from spgrad.ops.views import cols, item_offsets, linear_positions, rows
from spgrad.pattern import LAYOUT_NAMES, Pattern, View
from spgrad.tensor import SparseTensor
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
    move = moved(pattern, layout, blocksize)
    vals = carry(_flat_values(A), move.how)
    return on_pattern(vals.view(move.pattern.values_shape), move.pattern)


def _flat_values(A: SparseTensor) -> torch.Tensor:
    pattern = A._pattern
    return stored_values(A).reshape(pattern.elements, *pattern.dense_shape)


def moved(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None = None) -> Move:
    """A coalesced pattern in another layout; O(nse) on the first call, then kept."""
    return pattern.derive(("layout", layout, blocksize), lambda p: _move(p, layout, blocksize))


def _move(pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None) -> Move:
    if layout == torch.sparse_coo:
        return _to_coo(pattern)
    if blocksize is None:
        return _to_compressed(pattern, layout)
    return _to_blocks(pattern, layout, blocksize)


def _index_dtype(pattern: Pattern) -> torch.dtype:
    return pattern.indices[0].dtype


def _to_coo(pattern: Pattern) -> Move:
    if (
        pattern.layout == torch.sparse_csc
        and not pattern.batch
        and many(pattern.matrix[0], pattern)
    ):
        return _sorted_coo(pattern)
    if pattern.layout == torch.sparse_csr and not pattern.batch:
        shape, dense_dim = pattern.shape, pattern.dense_dim
        indices = kernels.coordinates(*pattern.indices)
        found = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=dense_dim)
        return Move(found, Carried(None, pattern.elements))
    view = rows(pattern)
    dtype = _index_dtype(pattern)
    m, k = pattern.matrix
    how = Carried(view.perm, pattern.elements)
    row, col = kernels.expand(view.ptr, view.idx.numel()), view.idx
    coordinates = [row, col]
    if pattern.batch:
        row, col = row.to(torch.int64), col.to(torch.int64)  # the batch may not fit `dtype`
        item = torch.div(row, max(m, 1), rounding_mode="floor")
        coordinates = [*torch.unravel_index(item, pattern.batch), row - item * m, col - item * k]
    indices = torch.stack([c.to(dtype) for c in coordinates])
    found = Pattern(torch.sparse_coo, pattern.shape, (indices,), dense_dim=pattern.dense_dim)
    found.keep("rows", view._replace(perm=None))
    return Move(found, how)


def _sorted_coo(pattern: Pattern) -> Move:
    """COO of CSC without memory for each row."""
    ptr, idx = pattern.indices
    indices = torch.stack([idx, kernels.expand(ptr, idx.numel())])
    order = lexicographic(indices, pattern.matrix)
    shape, dense_dim = pattern.shape, pattern.dense_dim
    found = Pattern(torch.sparse_coo, shape, (indices.index_select(1, order),), dense_dim=dense_dim)
    return Move(found, Carried(order, pattern.elements))


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
    bm, bn = blocksize
    view = rows(pattern) if by_rows else cols(pattern)
    along, across = (bm, bn) if by_rows else (bn, bm)
    ptr, idx = view.ptr, view.idx
    if pattern.elements * bm * bn > torch.iinfo(torch.int32).max:
        ptr, idx = ptr.to(torch.int64), idx.to(torch.int64)
    ptr, idx, entry = kernels.group_blocks(ptr, idx, along, across, not by_rows)
    dtype = _index_dtype(pattern)
    found = Pattern(
        layout,
        pattern.shape,
        (ptr.to(dtype), idx.to(dtype)),
        dense_dim=pattern.dense_dim,
        blocksize=blocksize,
    )
    offsets = item_offsets(found, found.matrix[1 if by_rows else 0] // across)
    if isinstance(offsets, torch.Tensor):
        ptr, idx = found.indices
        found = Pattern.from_spec(found.spec, found.shape, (ptr, idx - offsets.to(dtype)))
    if view.perm is not None:
        entry = kernels.take(view.perm + 1, entry) - 1
    return Move(found, Carried(entry, pattern.elements))


def to_dense(
    A: torch.Tensor, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None
) -> torch.Tensor:
    """The dense tensor with the values of `A` at its indices and zeros elsewhere.

    Args:
        A: SparseTensor of any layout; repeated COO indices add.
        dtype: Of the result; by default that of `A`.
        masked_grad: True or None: the gradient stays on the pattern, as always here.

    Returns:
        Dense tensor of the shape of `A`.

    Gradient:
        The cotangent at the indices of `A`, on its pattern.

    Cost:
        O(size of the result).

    Raises:
        TypeError: `A` is not sparse.
        NotImplementedError: `masked_grad` is False.

    Example:
        >>> spgrad.to_dense(spgrad.sparse_coo_tensor([[1, 1]], [3.0, 4.0], (3,)))
        tensor([0., 7., 0.])
    """
    if masked_grad is False:
        raise UnsupportedError(
            "spgrad.to_dense: `masked_grad` is False; None and True are accepted, as gradients "
            "stay on the pattern. Start from a dense tensor if you need a dense gradient."
        )
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentKindError(
            f"spgrad.to_dense: `dtype` is {dtype!r}; a torch.dtype or None is accepted. For "
            "example torch.float32."
        )
    A = sparse_operand("to_dense", "A", A)
    pattern = A._pattern
    if not pattern.ordered and A.dtype in (torch.bfloat16, torch.float16, torch.bool):
        A = coalesce(A)  # adds repeated elements in float32 and rounds once
        pattern = A._pattern
    vals = _flat_values(A)
    if dtype is not None:
        vals = vals.to(dtype)
    linear = pattern.derive("linear", linear_positions)
    size = math.prod(pattern.shape) // math.prod(pattern.dense_shape or (1,)) if vals.numel() else 0
    if size == 0:
        dense = vals.new_zeros(pattern.shape)
        return dense + vals.sum() if vals.requires_grad else dense
    dense = vals.new_zeros(size, *pattern.dense_shape)
    dense = (dense.index_copy_ if pattern.ordered else dense.index_add_)(0, linear, vals)
    return dense.view(pattern.shape)


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


def from_dense(
    x: torch.Tensor,
    layout: torch.layout = torch.sparse_csr,
    *,
    blocksize: tuple[int, int] | None = None,
    dense_dim: int = 0,
) -> SparseTensor:
    """The non-zero elements of a dense tensor as a SparseTensor.

    Args:
        x: Dense tensor (*batch, m, n, *dense_shape); COO takes any number of dimensions.
        layout: The sparse layout of the result.
        blocksize: Rows and columns of a block, for BSR and BSC.
        dense_dim: Number of trailing dimensions to keep dense.

    Returns:
        SparseTensor of the shape of `x`. An element is specified where `x`, or with dense
        dimensions any part of it, is not zero.

    Gradient:
        Dense, of the shape of `x`, zero where an element is not specified.

    Cost:
        O(size of x).

    Raises:
        TypeError: `x` is not dense, or `layout` is not a sparse one.
        ValueError: `blocksize` or `dense_dim` does not fit.

    Example:
        >>> spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]])).col_indices()
        tensor([1, 0])
    """
    fn = "from_dense"
    x = dense_operand(fn, "x", x)
    require_layout(fn, layout)
    sparse_dim = x.dim() - dense_dim
    if dense_dim < 0 or sparse_dim < (1 if layout == torch.sparse_coo else 2):
        raise ArgumentValueError(
            f"spgrad.{fn}: `dense_dim` is {dense_dim} for a tensor of shape {tuple(x.shape)}; at "
            f"least {1 if layout == torch.sparse_coo else 2} leading sparse dimension(s) are "
            "accepted. Lower dense_dim or add dimensions."
        )
    checks.require_addressable(fn, tuple(x.shape))
    specified = x.detach() != 0
    if dense_dim:
        specified = specified.flatten(sparse_dim).any(-1)
    indices = specified.nonzero().t().contiguous()
    pattern = Pattern(torch.sparse_coo, tuple(x.shape), (indices,), dense_dim=dense_dim)
    blocks = require_blocksize(fn, pattern, layout, blocksize)
    flat = x.reshape(math.prod(x.shape[:sparse_dim]), *pattern.dense_shape)
    vals = flat.index_select(0, linear_positions(pattern))
    return convert(on_pattern(vals, pattern), layout, blocks)


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
