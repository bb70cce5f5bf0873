"""The specified elements of each row in order of size, and their running sums."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern, plain, stored_values
from spgrad.errors import ArgumentValueError, UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import flat_values
from spgrad.lowering.gather import Gather
from spgrad.lowering.operands import require_int, sparse_operand
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.rebuild import positions
from spgrad.lowering.segments import Segments, index_along, segment_expand, segments_of
from spgrad.lowering.sorting import inverse
from spgrad.ops.reductions.axes import converted, one_dim, require_dims, require_dtype
from spgrad.public import public_op
from spgrad.torch_protocol.func_transforms import Function, is_mapped


class _Along(NamedTuple):
    """A tensor whose specified elements are seen line by line along one dimension."""

    A: SparseTensor
    dim: int
    segments: Segments

    @property
    def pattern(self) -> Pattern:
        """That of the tensor."""
        return self.A._pattern

    @property
    def dense(self) -> int | None:
        """The dimension of the values, if `dim` is a dense one."""
        shape = self.pattern.shape
        return self.dim - len(shape) if self.dim >= len(shape) - self.pattern.dense_dim else None

    def columns(self) -> torch.Tensor:
        """The values (elements, numbers of an element), line by line."""
        vals, count = flat_values(self.A), self.segments.elements
        lines = vals.reshape(count, math.prod(self.pattern.dense_shape))
        return _line_by_line(lines, self.segments)

    def made(self, x: torch.Tensor) -> SparseTensor:
        """The tensor on the same pattern of other values, which are line by line."""
        vals = _in_storage_order(x, self.segments)
        return on_pattern(vals.reshape(self.pattern.values_shape), self.pattern)

    def pointers(self) -> torch.Tensor:
        """Where the lines begin and end (lines + 1,)."""
        assert self.segments.ptr is not None
        return self.segments.ptr


def _line_by_line(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """What the elements have in storage order, (elements, ...), line by line."""
    perm = segments.perm
    return x if perm is None else Gather(perm.to(torch.int64), segments.elements)(x)


def _in_storage_order(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """The inverse of `_line_by_line`."""
    perm = segments.perm
    if perm is None:
        return x
    return Gather(inverse(perm.to(torch.int64), segments.elements), segments.elements)(x)


@public_op
def sort(
    input: torch.Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True
) -> tuple[SparseTensor, SparseTensor]:
    """The specified elements of each row by size, put where the row has elements.

    The first element of a row becomes its smallest specified one, the second the next, and so on;
    unspecified zeros are left out. `torch.sort` of the dense tensor sorts these zeros too.

    Args:
        input: Sparse tensor of any layout and a real, integer or bool dtype; repeated COO indices
            are added first.
        dim: Any dimension, negative ones too: of the matrix, the batch, or a dense one.
        descending: Whether the largest comes first. NaN counts as the largest.
        stable: Ignored: equal elements always stay in order.

    Returns:
        Two SparseTensors on the pattern of `input`: the values, and, as int64, the index along
        `dim` that each value had in `input`.

    Gradient:
        The cotangent of each value, at the element that it comes from.

    Cost:
        O(nse log nse); for another dimension than the one that the layout compresses, also a sort
        of the pattern, which is kept.

    Raises:
        TypeError: `input` is not sparse, or `dim` is not an int.
        ValueError: `dim` is outside the tensor, or the dtype is complex.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 3, 4], [0, 2, 3, 1], [5.0, -1.0, 2.0, 7.0], (2, 4))
        >>> values, places = spgrad.sort(A)
        >>> values.to_dense()
        tensor([[-1.,  0.,  2.,  5.],
                [ 0.,  7.,  0.,  0.]])
        >>> places.values()
        tensor([2, 3, 0, 1])
    """
    return _sorted(_seen_along(input, dim), descending)


@public_op
def argsort(
    input: torch.Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True
) -> SparseTensor:
    """The index along `dim` of the specified elements of each row, in order of size.

    It is the second result of `spgrad.sort` with the same arguments.
    """
    return _sorted(_seen_along(input, dim), descending)[1]


@public_op
def cumsum(input: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> SparseTensor:
    """The sum of each specified element and those before it in its row.

    The result has the elements of `input` and no others. `torch.cumsum` of the dense tensor has
    the same numbers at these elements, and repeats them between the elements, so it has hardly any
    zeros.

    Args:
        input: Sparse tensor of any layout; repeated COO indices are added first.
        dim: Any dimension, negative ones too: of the matrix, the batch, or a dense one.
        dtype: The dtype to convert to first; by default that of `input`, int64 for bool and
            integers.

    Returns:
        SparseTensor on the pattern of `input`.

    Gradient:
        The sums of the cotangent from the end of each row.

    Cost:
        O(nse). The order of the additions depends on the length of the row alone, so that results
        do not depend on the number of threads.

    Raises:
        TypeError: `input` is not sparse, or `dim` is not an int.
        ValueError: `dim` is outside the tensor.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 3, 4], [0, 2, 3, 1], [5.0, -1.0, 2.0, 7.0], (2, 4))
        >>> spgrad.cumsum(A).to_dense()
        tensor([[5., 0., 4., 6.],
                [0., 7., 0., 0.]])
    """
    along = _seen_along(input, dim, "real integer bool complex")
    vals = stored_values(along.A)
    integers = not (vals.is_floating_point() or vals.is_complex())
    to = torch.int64 if dtype is None and integers else dtype
    vals = converted(vals, to)
    if along.dense is not None:
        return on_pattern(vals.cumsum(along.dense), along.pattern)
    pattern = along.pattern
    columns = vals.reshape(pattern.elements, math.prod(pattern.dense_shape))
    made = _scan(columns, along.segments, False)
    return on_pattern(made.reshape(pattern.values_shape), pattern)


@public_op
def topk(
    input: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    specified: bool = False,
) -> Any:
    """The k largest or smallest elements of each row and their columns.

    Args:
        input: Sparse matrix or batch of any layout, or a vector, of a real or integer dtype;
            repeated COO indices are added first.
        k: Number of elements to take from each row, at most its length.
        dim: The dimension of the columns, or that of the rows, negative ones too.
        largest: False for the smallest. NaN counts as the largest.
        sorted: Ignored: the elements are always in order.
        specified: Whether to look at the specified elements alone, instead of counting unspecified
            ones as zeros. Where a row has fewer than k, the value is 0 and the index -1.

    Returns:
        The pair (values, indices), both dense, of the shape of `input` with k in place of the size
        of `dim`. Of equal elements the first counts, an unspecified zero too. For the same elements
        as a sparse tensor see ``spgrad.prune(A, keep=k)``, which goes by magnitude.

    Gradient:
        The cotangent of each value at the element that it comes from, if it is specified.

    Cost:
        O(nse log nse + k rows log nse).

    Raises:
        TypeError: `input` is not sparse, or `k` or `dim` is not an int.
        ValueError: `k` or `dim` is out of range, or the dtype is complex or bool.
        NotImplementedError: `input` has dense dimensions, or `dim` is one of the batch.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0, 3.0], [-1.0, 0.0, 0.0]]))
        >>> spgrad.topk(A, 2).indices
        tensor([[2, 1],
                [1, 2]])
        >>> spgrad.topk(A, 2, specified=True).indices
        tensor([[ 2,  1],
                [ 0, -1]])
    """
    along = _seen_along(input, dim, "real integer")
    pattern, dim = along.pattern, along.dim
    require_int("k", k)
    ndim = len(pattern.shape)
    if pattern.dense_dim or dim < ndim - 2:
        raise UnsupportedError(
            f"`input` has {pattern.dense_dim} dense dimension(s) and `dim` is {dim}; scalar "
            "elements and one of the last two dimensions are accepted. Take one slice at a time, "
            "or move the dimension with spgrad.movedim."
        )
    size = pattern.shape[dim]
    if not 0 <= k <= size:
        raise ArgumentValueError(
            f"`k` is {k} for {size} elements along `dim`; numbers from 0 to {size} are accepted. "
            f"Pass min(k, {size})."
        )
    vals = along.columns().squeeze(1)
    if not specified and is_mapped(vals):  # zeros count wherever they are
        raise UnsupportedError(
            "`specified` is False for values that torch.func.vmap maps over; True is accepted. "
            "Otherwise the places of explicit zeros differ from item to item."
        )
    where = index_along(pattern, dim, along.segments).to(torch.int64)
    index, entry = kernels.segment_top(
        along.pointers(), _comparable(vals), where, size, k, largest, specified
    )
    found = _taken(vals, entry.reshape(-1))
    others = [s for d, s in enumerate(pattern.shape) if d != dim]
    values, indices = (as_result(t.reshape(*others, k).movedim(-1, dim)) for t in (found, index))
    return torch.return_types.topk((values, indices))


def _seen_along(input: Any, dim: Any, accepted: str = "real integer bool") -> _Along:
    A = without_repeats(sparse_operand("input", input))
    pattern = A._pattern
    (d,) = require_dims(one_dim(dim), len(pattern.shape))
    require_dtype(A._vals.dtype, accepted=accepted)
    sparse = len(pattern.shape) - pattern.dense_dim
    if d >= sparse:
        return _Along(A, d, Segments(None, None, pattern.elements, 1))
    # a batch dimension that is reduced leaves a sparse result, of which all lines count here too
    return _Along(A, d, segments_of(pattern, (d,)))


def among_largest(pattern: Pattern, sizes: torch.Tensor, count: int) -> torch.Tensor:
    """Which elements are among so many of the largest in their rows, (elements,) as stored.

    A row is what lies along the last sparse dimension.
    """
    last = len(pattern.shape) - pattern.dense_dim - 1
    segments = segments_of(pattern, (last,))
    ptr = segments.ptr
    assert ptr is not None
    order = kernels.segment_order(ptr, _comparable(_line_by_line(sizes, segments)), True)
    start = segment_expand(ptr[:-1, None], Segments(ptr, None, order.shape[0], 1)).squeeze(1)
    first = positions(order, order.shape[0]) - start < count
    return _in_storage_order(torch.empty_like(first).index_copy_(0, order, first), segments)


def _sorted(along: _Along, descending: bool) -> tuple[SparseTensor, SparseTensor]:
    pattern = along.pattern
    if along.dense is not None:
        found = stored_values(along.A).sort(dim=along.dense, descending=descending, stable=True)
        return on_pattern(found.values, pattern), on_pattern(found.indices, pattern)
    vals, perm = along.columns(), along.segments.perm
    order = kernels.segment_order(along.pointers(), _comparable(vals), descending)
    where = index_along(pattern, along.dim, along.segments)[order].to(torch.int64)
    if perm is not None:  # a copy has no derivative, and takes less time than a sum
        where = torch.empty_like(where).index_copy_(0, perm.to(torch.int64), where)
    places = on_pattern(where.view(pattern.values_shape), pattern)
    return along.made(vals.gather(0, order)), places


def _comparable(vals: torch.Tensor) -> torch.Tensor:
    """The values as kernels compare them."""
    vals = plain(vals.detach())
    return vals.view(torch.uint8) if vals.dtype == torch.bool else vals


def _taken(vals: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    """The values of entries, 0 where it is -1."""
    count = vals.shape[0]
    if is_mapped(entry):  # a kernel reads no numbers that torch.func.vmap maps over
        return torch.cat([vals, vals.new_zeros(1)])[torch.where(entry < 0, count, entry)]
    return Gather(entry, count)(vals)


def _scan(vals: torch.Tensor, segments: Segments, backward: bool) -> torch.Tensor:
    """Running sums (elements, d) of each line, from its beginning or from its end."""
    if wants_grad(vals):
        return _Scan.apply(vals, segments, backward)  # type: ignore[return-value]
    ptr = segments.ptr
    assert ptr is not None
    return kernels.segment_scan(ptr, segments.perm, plain(vals), backward)


class _Scan(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, segments: Segments, backward: bool) -> torch.Tensor:  # type: ignore[override]
        ctx.segments, ctx.back = segments, backward
        return _scan(vals, segments, backward)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return _scan(g, ctx.segments, not ctx.back), None, None
