"""Parts of a sparse tensor: index expressions, select, narrow and their relatives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import require_dim, require_int, require_ints, sparse_operand
from spgrad.lowering.rebuild import copied, positions, sparse_dims
from spgrad.ops.indexing.fast import line_dim, listed, subscripted
from spgrad.ops.indexing.parse import (
    GROUP,
    Group,
    Slice,
    Subscript,
    full_slices,
    one,
    read,
    vector,
)
from spgrad.ops.indexing.plan import part
from spgrad.ops.layouts.dense import to_dense
from spgrad.ops.shapes.shape import permute
from spgrad.public import public_op
from spgrad.torch_protocol.compile import is_real


@public_op
def getitem(input: torch.Tensor, index: Any) -> torch.Tensor:
    """`input[index]`, with any index that a dense tensor takes, and slices with negative steps.

    Args:
        input: Sparse tensor of any layout; batch and dense dimensions are dimensions like others.
        index: Ints, slices, None, ..., lists and tensors of ints, bools, and masks, dense or
            sparse: one of them or a tuple. Several lists, tensors and masks are combined element by
            element, as in torch. A list is an index tensor, even if it holds lists.

    Returns:
        SparseTensor. It is in the layout of `input` if it still has rows and columns, each taken
        by a slice or by one list, and its other dimensions are a batch. Otherwise it is in COO: a
        row of CSR is a COO vector. In BSR and BSC, whole blocks stay as they are. Other parts are
        divided into new blocks if the block size fits; if not, the result is in CSR or CSC. If
        ints, lists or a mask take all sparse dimensions, the result is dense: `A[i, j]`,
        `A[rows, cols]` and `A[mask]` give values, and 0 for an element that is not specified. If
        the index takes everything, the result is `input` itself; otherwise it is a copy.

    Gradient:
        On the pattern of `input`: the cotangent at the elements that were taken, the sum of the
        cotangents if an element was taken twice, 0 at the other elements.

    Cost:
        O(selected + log nse) for rows of CSR, columns of CSC, items of a batch and the leading
        dimensions of COO; O(points log nse) for points; O(nse + result) for anything else. The
        backward is O(nse). The new patterns for the last ints and slices are kept.

    Raises:
        TypeError: `input` is not sparse, or `index` holds something else.
        IndexError: An index is out of range; it is a ValueError too.
        ValueError: Shapes do not fit.
        NotImplementedError: A dense dimension would come before a sparse one.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0]]))
        >>> A[:, ::-1].to_dense()
        tensor([[0., 2., 1.],
                [4., 3., 0.]])
        >>> A[1].indices(), A[[0, 1], [0, 0]]
        (tensor([[1, 2]]), tensor([1., 0.]))
    """
    A = sparse_operand("input", input)
    lines = subscripted(A, index)
    if lines is not None:
        return lines
    return part(A, read(index, A._pattern.shape, A._vals.device))


@public_op
def select(input: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """Slice `index` of dimension `dim`, which is removed: `spgrad.getitem` with an int."""
    A, at = _operand_and_dim(input, dim)
    number = _number(index)
    if isinstance(number, (bool, torch.Tensor)):
        require_int("index", number)
    place = one("index", number, at, A._pattern.shape[at])
    return part(A, _subscript(A, at, place))


@public_op
def narrow(input: torch.Tensor, dim: int, start: int, length: int) -> SparseTensor:
    """`length` slices of dimension `dim`, from `start` on: `spgrad.getitem` with a slice."""
    return _narrowed(input, dim, start, length)


@public_op
def narrow_copy(input: torch.Tensor, dim: int, start: int, length: int) -> SparseTensor:
    """Some slices of a dimension, copied: `spgrad.narrow` with memory of its own."""
    A = sparse_operand("input", input)
    found = _narrowed(A, dim, start, length)
    return copied(found) if found._pattern is A._pattern else found


@public_op
def index_select(input: torch.Tensor, dim: int, index: torch.Tensor) -> SparseTensor:
    """Slices of dimension `dim` by number, always sparse: `spgrad.getitem` with a vector of ints.

    Indices are not negative, as in torch; they may repeat.
    """
    A, at = _operand_and_dim(input, dim)
    index = vector(index, A, at)
    if at == line_dim(A._pattern) and (lines := listed(A, index)) is not None:
        return lines
    group = Group((at,), (index,), (index.shape[0],), index.shape[0])
    return part(A, _subscript(A, at, group), sparse=at < sparse_dims(A._pattern))


@public_op
def masked_select(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements where `mask` is True, a dense vector: `spgrad.getitem` with the mask.

    The mask is dense or sparse, and has the shape of `input`.
    """
    A = sparse_operand("input", input)
    shape = tuple(A._pattern.shape)
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        raise ArgumentKindError(
            f"`mask` is {checks.describe_kind(mask)}; a bool tensor is accepted. Compare with a "
            "number first, as in x > 0."
        )
    if tuple(mask.shape) != shape:
        accepted = f"{shape}, the shape of `input`,"
        raise checks.bad_shape("mask", tuple(mask.shape), accepted, "Expand it.")
    checks.require_same_device(input=A._vals, mask=mask)
    return part(A, read(mask, shape, A._vals.device))


@public_op
def split(
    input: torch.Tensor, split_size_or_sections: Any, dim: int = 0
) -> tuple[SparseTensor, ...]:
    """Pieces along a dimension, of one size or of those in a list: `spgrad.getitem` with slices."""
    A, at = _operand_and_dim(input, dim)
    size = A._pattern.shape[at]
    if isinstance(split_size_or_sections, (list, tuple)):
        sizes = require_ints("split_size_or_sections", split_size_or_sections)
        if sum(sizes) != size or any(n < 0 for n in sizes):
            raise ArgumentValueError(
                f"`split_size_or_sections` is {sizes} for dimension {at} of size {size}; sizes "
                f"that add up to that are accepted. Check their sum, {sum(sizes)}."
            )
        return _pieces(A, at, sizes)
    step = require_int("split_size_or_sections", split_size_or_sections)
    if step < 0 or (step == 0 and size):
        raise ArgumentValueError(
            f"`split_size_or_sections` is {step} for dimension {at} of size {size}; a size from 1 "
            "on is accepted. Use spgrad.chunk for a number of pieces."
        )
    return _pieces(A, at, _even(size, step))


@public_op
def chunk(input: torch.Tensor, chunks: int, dim: int = 0) -> tuple[SparseTensor, ...]:
    """At most `chunks` pieces along a dimension: `spgrad.split` with the size that gives them."""
    A, at = _operand_and_dim(input, dim)
    size = A._pattern.shape[at]
    if require_int("chunks", chunks) < 1:
        raise ArgumentValueError(
            f"`chunks` is {chunks}; a number of pieces from 1 on is accepted. Use spgrad.split for "
            "their size."
        )
    if size == 0:
        return _pieces(A, at, [0] * chunks)
    return _pieces(A, at, _even(size, -(-size // chunks)))


@public_op
def unbind(input: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """All slices of dimension `dim`, which is removed: `spgrad.getitem` with each int.

    Cost: O(nse + size of the dimension) for all of them together, backward too.
    """
    A, at = _operand_and_dim(input, dim)
    A = without_repeats(A)
    pattern = A._pattern
    size = pattern.shape[at]
    if at >= sparse_dims(pattern):
        return tuple(part(A, _subscript(A, at, i)) for i in range(size))
    if sparse_dims(pattern) == 1:
        return to_dense(A).unbind(0)
    if not is_real(pattern.indices[0]):  # a trace can't know how many elements each part has
        return tuple(part(A, _subscript(A, at, i)) for i in range(size))
    if at == 0 and pattern.batch and not pattern.is_coo:
        return _items(A)
    C = convert(A, torch.sparse_coo)
    order = [at, *(d for d in range(len(pattern.shape)) if d != at)]
    return _leading(permute(C, order) if at else C)


def _operand_and_dim(input: Any, dim: Any) -> tuple[SparseTensor, int]:
    A = sparse_operand("input", input)
    return A, require_dim("dim", dim, len(A._pattern.shape))


def _number(x: Any) -> Any:
    """A 0-d integer tensor as an int."""
    if not isinstance(x, torch.Tensor) or x.dim() or x.dtype == torch.bool:
        return x
    return x if x.is_floating_point() or x.is_complex() else int(x)


def _subscript(A: SparseTensor, dim: int, take: Slice | int | Group) -> Subscript:
    """What takes all of the other dimensions."""
    taken = full_slices(A._pattern.shape)
    group = take if isinstance(take, Group) else None
    taken[dim] = None if isinstance(take, Group) else take
    own = () if isinstance(take, checks.INT) else (dim if group is None else GROUP,)
    return Subscript(tuple(taken), (*range(dim), *own, *range(dim + 1, len(taken))), group)


def _narrowed(input: Any, dim: Any, start: Any, length: Any) -> SparseTensor:
    A, at = _operand_and_dim(input, dim)
    size = A._pattern.shape[at]
    first = require_int("start", _number(start))
    count = require_int("length", length)
    first = first + size if first < 0 else first
    if not 0 <= first <= size or not 0 <= count <= size - first:
        raise ArgumentValueError(
            f"`start` is {start} and `length` {length} for dimension {at} of size {size}; what "
            "lies inside is accepted. Check the shape."
        )
    return _pieces(A, at, [count], first)[0]


def _pieces(
    A: SparseTensor, dim: int, sizes: Sequence[int], start: int = 0
) -> tuple[SparseTensor, ...]:
    """Slices of these sizes, one after the other."""
    starts = itertools.accumulate(sizes, initial=start)
    return tuple(
        part(A, _subscript(A, dim, Slice(at if n else 0, 1, n)), sparse=True)
        for at, n in zip(starts, sizes, strict=False)
    )


def _even(size: int, step: int) -> list[int]:
    if not size:
        return [0]
    count = int(-(-size // step))  # a graph of torch.compile holds for this number, not for `size`
    return [*[step] * (count - 1), size - (count - 1) * step]


def _items(A: SparseTensor) -> tuple[SparseTensor, ...]:
    """The items of a batch of compressed matrices, along its first dimension."""
    pattern = A._pattern
    size, shape = pattern.shape[0], tuple(pattern.shape[1:])
    ptr, idx = pattern.indices
    lines = (ptr.shape[0] - 1) // max(size, 1)
    ends = ptr[:: max(lines, 1)][: size + 1].tolist() if lines else [0] * (size + 1)
    counts = [b - a for a, b in itertools.pairwise(ends)]
    vals = stored_values(A).clone().split(counts) if size else ()
    found = []
    for i, own in enumerate(vals):
        own_ptr = ptr[i * lines : (i + 1) * lines + 1] - ends[i]
        indices = own_ptr, idx[ends[i] : ends[i + 1]].clone()
        found.append(on_pattern(own, Pattern.from_spec(pattern.spec, shape, indices)))
    return tuple(found)


def _leading(C: SparseTensor) -> tuple[SparseTensor, ...]:
    """The parts of a coalesced COO tensor along its first dimension."""
    pattern = C._pattern
    indices = pattern.indices[0]
    size, shape = pattern.shape[0], tuple(pattern.shape[1:])
    bounds = positions(indices, size + 1).to(indices.dtype)
    ends = torch.searchsorted(indices[0], bounds).tolist()
    counts = [b - a for a, b in itertools.pairwise(ends)]
    vals = stored_values(C).clone().split(counts) if size else ()
    return tuple(
        on_pattern(
            own,
            Pattern(
                torch.sparse_coo,
                shape,
                (indices[1:, a:b].clone(memory_format=torch.contiguous_format),),
                dense_dim=pattern.dense_dim,
            ),
        )
        for own, (a, b) in zip(vals, itertools.pairwise(ends), strict=True)
    )
