"""Operations on the shape: dimensions permuted, added, taken away, joined and split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS, Pattern
from spgrad.core.tensor import SparseTensor, requires_grad
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.operands import require_dim, require_ints, shape_as, sparse_operand
from spgrad.lowering.rebuild import COO, Found, Placed, placed, rebuild, sparse_dims
from spgrad.lowering.views import index_rows, linear_index, unraveled
from spgrad.ops.layouts.structure import transposed
from spgrad.public import public_op
from spgrad.support import FLIPPED


@public_op
def permute(input: torch.Tensor, dims: Any, *more: int) -> SparseTensor:
    """`input` with its dimensions in another order.

    Args:
        input: Sparse tensor of any layout; batch dimensions are dimensions like any other.
        dims: A tuple of all dimensions, or its numbers one after the other. Dense dimensions stay
            behind the sparse ones.
        *more: The other numbers.

    Returns:
        SparseTensor of the permuted shape; `input` itself if nothing changes. If the matrix
        dimensions stay the matrix dimensions, the layout is kept; if these two are exchanged, CSR
        becomes CSC, BSR becomes BSC, and vice versa. Otherwise the result is in COO.

    Gradient:
        The cotangent permuted back, on the pattern of `input`.

    Cost:
        O(1) for the transpose of CSR and CSC; otherwise O(nse). Indices are
        computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse, or a dimension is not an int.
        ValueError: `dims` is not a permutation.
        NotImplementedError: A dense dimension would come before a sparse one.

    Example:
        >>> A = spgrad.from_dense(torch.ones(3, 1, 2))
        >>> spgrad.permute(A, (2, 0, 1)).shape
        torch.Size([2, 3, 1])
    """
    A = sparse_operand("input", input)
    ndim = len(A._pattern.shape)
    given = require_ints("dims", dims, more)
    order = tuple(require_dim("dims", d, ndim) for d in given)
    if len(set(order)) < len(order) or len(order) < ndim:
        raise ArgumentValueError(
            f"`dims` is {given}; each of the {ndim} dimensions once is accepted. Name all of them."
        )
    return _permuted(A, order)


@public_op
def transpose(input: torch.Tensor, dim0: int, dim1: int) -> SparseTensor:
    """Exchanges two dimensions: `spgrad.permute` with these two."""
    return _swapped(input, ("dim0", dim0), ("dim1", dim1))


@public_op
def swapaxes(input: torch.Tensor, axis0: int, axis1: int) -> SparseTensor:
    """Exchanges two dimensions: `spgrad.permute` with these two, as `spgrad.transpose`."""
    return _swapped(input, ("axis0", axis0), ("axis1", axis1))


@public_op
def movedim(input: torch.Tensor, source: Any, destination: Any) -> SparseTensor:
    """Moves dimensions: `spgrad.permute` with the dimensions `source` at the places `destination`.

    Both are ints, or tuples of ints of equal length; the other dimensions keep their order.
    """
    A = sparse_operand("input", input)
    ndim = len(A._pattern.shape)
    moved = []
    for arg, dims in (("source", source), ("destination", destination)):
        moved.append([require_dim(arg, d, ndim) for d in require_ints(arg, dims)])
        if len(set(moved[-1])) < len(moved[-1]):
            raise ArgumentValueError(
                f"`{arg}` is {dims}; each dimension once is accepted. Leave out one of the "
                "repeated."
            )
    froms, tos = moved
    if len(froms) != len(tos):
        raise ArgumentValueError(
            f"`source` has {len(froms)} dimension(s) and `destination` {len(tos)}; as many in both "
            "are accepted. Name the place of each."
        )
    left = iter(d for d in range(ndim) if d not in froms)
    at = dict(zip(tos, froms, strict=True))
    return _permuted(A, tuple(at[d] if d in at else next(left) for d in range(ndim)))


def _swapped(input: Any, *dims: tuple[str, Any]) -> SparseTensor:
    A = sparse_operand("input", input)
    ndim = len(A._pattern.shape)
    if ndim == 0 and all(d in (0, -1) for _, d in dims):  # as torch has it
        return A
    i, j = (require_dim(arg, d, ndim) for arg, d in dims)
    order = list(range(ndim))
    order[i], order[j] = j, i
    return _permuted(A, tuple(order))


def _permuted(A: SparseTensor, order: tuple[int, ...]) -> SparseTensor:
    pattern = A._pattern
    split = sparse_dims(pattern)
    first, last = order[:split], tuple(d - split for d in order[split:])
    if any(d >= split for d in first):
        raise UnsupportedError(
            f"the dimensions would be in the order {order}, of which those from {split} are dense; "
            "dense dimensions behind the sparse ones are accepted. Make the tensor dense with "
            ".to_dense(), or permute among the sparse and among the dense."
        )
    straight = tuple(range(split))
    if first == straight and last == tuple(range(len(last))):
        return A
    if split > 1 and first == (*straight[:-2], split - 1, split - 2):
        A = transposed(A)
        first = straight
        if last == tuple(range(len(last))):
            return A
    return rebuild(
        A,
        ("permute", first, last),
        lambda p: _permuted_pattern(p, first, last),
        inner=lambda vals: vals.permute(0, *(d + 1 for d in last)),
    )


def _permuted_pattern(pattern: Pattern, first: tuple[int, ...], last: tuple[int, ...]) -> Found:
    split = sparse_dims(pattern)
    shape = tuple(pattern.shape[d] for d in (*first, *(d + split for d in last)))
    if first == tuple(range(split)):
        return Found(same_elements(pattern, shape, pattern.dense_dim), None)
    # elements that agree in the leading dimensions are in order if the others keep theirs
    leading = next(q for q in range(split) if list(first[q:]) == sorted(first[q:]))
    like = pattern.layout, pattern.blocksize
    if first[-2:] == (split - 1, split - 2):
        blocks = pattern.blocksize and (pattern.blocksize[1], pattern.blocksize[0])
        like = LAYOUTS[FLIPPED[pattern.name]], blocks
    elif first[-2:] != (split - 2, split - 1):
        like = COO  # pointers for each line of each new batch item could be more than nse
    return placed(
        pattern,
        shape,
        lambda indices: Placed(index_rows(indices, first), None, leading),
        like=like,
    )


def same_elements(pattern: Pattern, shape: tuple[int, ...], dense_dim: int) -> Pattern:
    """The same indices in a tensor of another batch or dense shape."""
    found = Pattern.from_spec(pattern.spec._replace(dense_dim=dense_dim), shape, pattern.indices)
    same_matrices = sparse_dims(found) > 1 and found.matrix == pattern.matrix
    # their number too: a batch without rows has the elements of one matrix without rows
    if same_matrices and math.prod(found.batch) == math.prod(pattern.batch):
        for view_key in (kept.ROWS, kept.COLS):  # of all items as one matrix
            if (view := pattern.derived(view_key)) is not None:
                found.keep(view_key, view)
        found.as_uniform_as(pattern)
    return found


@public_op
def unsqueeze(input: torch.Tensor, dim: int) -> SparseTensor:
    """`spgrad.reshape` with a new size of 1 at `dim`; behind a dense dimension it is dense too."""
    A = sparse_operand("input", input)
    shape = tuple(A._pattern.shape)
    at = require_dim("dim", dim, len(shape) + 1)
    split = sparse_dims(A._pattern)
    return reshaped(A, (*shape[:at], 1, *shape[at:]), split + (1 if at <= split else 0))


@public_op
def squeeze(input: torch.Tensor, dim: Any = None) -> SparseTensor:
    """`spgrad.reshape` with the dimensions of size 1 left out: all, or those in `dim`."""
    A = sparse_operand("input", input)
    shape = A._pattern.shape
    asked = range(len(shape)) if dim is None else require_ints("dim", dim)
    if not shape and all(d in (0, -1) for d in asked):  # as torch has it
        return A
    named = [require_dim("dim", d, len(shape)) for d in asked]
    if len(set(named)) < len(named):
        raise ArgumentValueError(
            f"`dim` is {dim}; each dimension once is accepted. Leave out one of the repeated."
        )
    gone = {d for d in named if shape[d] == 1}
    if not gone:
        return A
    left = tuple(size for d, size in enumerate(shape) if d not in gone)
    split = sparse_dims(A._pattern)
    return reshaped(A, left, split - sum(d < split for d in gone))


@public_op
def flatten(input: torch.Tensor, start_dim: int = 0, end_dim: int = -1) -> SparseTensor:
    """`spgrad.reshape` with the dimensions from `start_dim` to `end_dim` joined to one."""
    A = sparse_operand("input", input)
    shape = tuple(A._pattern.shape)
    start = require_dim("start_dim", start_dim, max(len(shape), 1))
    end = require_dim("end_dim", end_dim, max(len(shape), 1))
    if not shape:
        return reshape(A, (1,))
    if start > end:
        raise ArgumentValueError(
            f"`start_dim` is {start_dim}, behind `end_dim` {end_dim}; the first and the last "
            "dimension to join are accepted. Exchange them."
        )
    size = math.prod(shape[start : end + 1])
    return _in_shape(A, (*shape[:start], size, *shape[end + 1 :]))


@public_op
def unflatten(input: torch.Tensor, dim: int, sizes: Any) -> SparseTensor:
    """`spgrad.reshape` with dimension `dim` split into `sizes`, one of which may be -1."""
    A = sparse_operand("input", input)
    shape = tuple(A._pattern.shape)
    at = require_dim("dim", dim, len(shape))
    parts = _complete("sizes", require_ints("sizes", sizes), shape[at])
    return _in_shape(A, (*shape[:at], *parts, *shape[at + 1 :]))


@public_op
def reshape(input: torch.Tensor, shape: Any, *more: int) -> SparseTensor:
    """`input` with the same elements, in row-major order, in another shape.

    Args:
        input: Sparse tensor of any layout.
        shape: A tuple of sizes, or the sizes one after the other; one may be -1. Sparse dimensions
            become sparse ones and dense become dense: the sizes in `shape` for the sparse
            dimensions come first, then those for the dense.
        *more: The other sizes.

    Returns:
        SparseTensor in the layout of `input` if the matrices stay the same, or, in CSR and BSR, if
        their columns do; in COO otherwise. `input` itself if its shape is the same.

    Gradient:
        The cotangent in the old shape, on the pattern of `input`.

    Cost:
        O(nse); indices are computed once for each pattern; O(1) where the layout is kept.

    Raises:
        TypeError: `input` is not sparse, or a size is not an int.
        ValueError: The shape has another number of elements.
        NotImplementedError: The shape would join sparse and dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> spgrad.reshape(A, (4, 1)).to_dense().t()
        tensor([[0., 1., 2., 0.]])
    """
    A = sparse_operand("input", input)
    return _in_shape(A, require_ints("shape", shape, more))


@public_op
def view(input: torch.Tensor, size: Any, *more: int) -> SparseTensor:
    """`spgrad.reshape` with torch's other name; the result has indices of its own."""
    if isinstance(size, torch.dtype):
        raise ArgumentKindError(
            f"`size` is {size}; sizes are accepted. Convert values with .to(dtype)."
        )
    A = sparse_operand("input", input)
    return _in_shape(A, require_ints("size", size, more), "size")


@public_op
def reshape_as(input: torch.Tensor, other: torch.Tensor) -> SparseTensor:
    """`spgrad.reshape` with the shape of `other`, sparse or dense."""
    A = sparse_operand("input", input)
    return _in_shape(A, shape_as(other), "other")


@public_op
def view_as(input: torch.Tensor, other: torch.Tensor) -> SparseTensor:
    """`spgrad.reshape` with the shape of `other`, as `spgrad.view`."""
    A = sparse_operand("input", input)
    if A is other and A.is_leaf and requires_grad(A) and torch.is_grad_enabled():
        # torch.autograd.graph.get_gradient_edge(A) asks for the node before this one
        return torch.ops.aten.alias.default(A)
    return _in_shape(A, shape_as(other), "other")


def _complete(arg: str, sizes: tuple[int, ...], whole: int) -> tuple[int, ...]:
    """`sizes` with -1 replaced by what makes their product `whole`."""
    known = math.prod(size for size in sizes if size != -1)
    unknown = sizes.count(-1)
    fits = unknown == 1 and known != 0 and whole % known == 0 if unknown else known == whole
    if not fits or any(size < -1 for size in sizes):
        raise ArgumentValueError(
            f"`{arg}` is {sizes}; sizes whose product is {whole}, one of them perhaps -1, are "
            "accepted. Check the number of elements."
        )
    return tuple(whole // known if size == -1 else size for size in sizes)


def _in_shape(A: SparseTensor, shape: tuple[int, ...], arg: str = "shape") -> SparseTensor:
    pattern = A._pattern
    shape = _complete(arg, shape, math.prod(pattern.shape))
    if shape == tuple(pattern.shape):
        return A
    return reshaped(A, shape, _sparse_dims_after(pattern, shape))


def _sparse_dims_after(pattern: Pattern, shape: tuple[int, ...]) -> int:
    """The number of sparse dimensions in a new shape."""
    if not pattern.dense_dim:
        return len(shape)
    old = sparse_dims(pattern)
    whole, inner = math.prod(pattern.shape[:old]), math.prod(pattern.shape[old:])
    places = [
        i
        for i in range(len(shape) + 1)
        if math.prod(shape[:i]) == whole and math.prod(shape[i:]) == inner
    ]
    if not places:
        raise UnsupportedError(
            f"`shape` is {shape} for sparse sizes {tuple(pattern.shape[:old])} and dense sizes "
            f"{pattern.dense_shape}; sizes that keep the two apart are accepted. Make the tensor "
            "dense with .to_dense()."
        )
    kept = len(shape) - pattern.dense_dim
    return kept if kept in places else places[-1]


def reshaped(A: SparseTensor, shape: tuple[int, ...], split: int) -> SparseTensor:
    """A in a shape of the same elements, of which the first `split` dimensions are sparse."""
    return rebuild(A, ("reshape", shape, split), lambda p: _reshaped_pattern(p, shape, split))


def _reshaped_pattern(pattern: Pattern, shape: tuple[int, ...], split: int) -> Found:
    old, new = tuple(pattern.shape[: sparse_dims(pattern)]), shape[:split]
    dense_dim = len(shape) - split
    if old == new or _keeps_lines(pattern, new):
        return Found(same_elements(pattern, shape, dense_dim), None)
    return placed(
        pattern,
        shape,
        lambda indices: Placed(_regrouped(indices, old, new), None, 0),
        dense_dim=dense_dim,
        like=COO,
    )


def _keeps_lines(pattern: Pattern, new: tuple[int, ...]) -> bool:
    """True where a compressed pattern has the same lines in another shape of its elements."""
    if pattern.is_coo or len(new) < 2:
        return False
    m, k = pattern.matrix
    by_rows = pattern.compressed_by_rows and new[-1] == k  # a batch is stored as its rows
    bm, bn = pattern.blocksize or (1, 1)
    if new[-2:] != (m, k) and not (by_rows and new[-2] % bm == 0):
        return False
    # without elements there may be another number of lines in the same number of elements, none
    lines = new[-2] // bm if pattern.compressed_by_rows else new[-1] // bn
    return math.prod(new[:-2]) * lines == pattern.indices[0].numel() - 1


def _regrouped(indices: torch.Tensor, old: Sequence[int], new: Sequence[int]) -> torch.Tensor:
    """Coordinates in another shape of as many elements, in the same row-major order."""
    count = indices.shape[1]
    if not count:
        return indices.new_zeros(len(new), 0)
    found = []
    i = j = 0
    while i < len(old) or j < len(new):
        have, want = 1, 1
        start, first = i, j
        while have != want or (i == start and j == first):  # the shortest runs of equal size
            if j < len(new) and (have >= want or i == len(old)):
                want, j = want * new[j], j + 1
            else:
                have, i = have * old[i], i + 1
        found += _as_sizes(indices[start:i], old[start:i], new[first:j], count)
    return torch.stack(found) if found else indices.new_zeros(0, count)


def _as_sizes(
    indices: torch.Tensor, old: Sequence[int], new: Sequence[int], count: int
) -> list[torch.Tensor]:
    if len(old) == len(new) == 1:
        return [indices[0]]
    wide = linear_index(indices.to(torch.int64), tuple(old))
    if wide is None:
        return [indices.new_zeros(count) for _ in new]
    return [part.to(indices.dtype) for part in unraveled(wide, new)]
