"""In-place changes of shape: the tensor object gets another pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from spgrad.core import checks
from spgrad.core.construct import size_tuple
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, StateError
from spgrad.lowering.operands import is_sparse, require_int
from spgrad.lowering.rebuild import Found, Placed, placed, rebuild, sparse_dims
from spgrad.ops.creation.create import empty_pattern
from spgrad.ops.layouts.structure import t
from spgrad.ops.shapes.shape import squeeze, swapaxes, transpose, unsqueeze
from spgrad.public import public_op


@public_op
def t_(input: SparseTensor) -> SparseTensor:
    """Transposes a matrix in place: `spgrad.transpose_` with its two dimensions."""
    return _become(input, t)


@public_op
def transpose_(input: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    """Exchanges two dimensions of a tensor in place.

    Args:
        input: SparseTensor, which changes its pattern, shape and perhaps its layout.
        dim0: A dimension.
        dim1: Another one.

    Returns:
        `input`. Values are shared or copied as `spgrad.transpose` does.

    Gradient:
        That of `spgrad.transpose`; a leaf that requires a gradient is refused.

    Cost:
        That of `spgrad.transpose`.

    Raises:
        TypeError: `input` is no SparseTensor, or a dimension no int.
        ValueError: A dimension is out of range.
        RuntimeError: `input` is a leaf that requires a gradient, or a graph or a weak
            reference holds it.

    Example:
        >>> A = spgrad.from_dense(torch.ones(2, 3))
        >>> spgrad.transpose_(A, 0, 1).shape, A.shape
        (torch.Size([3, 2]), torch.Size([3, 2]))
    """
    return _become(input, lambda A: transpose(A, dim0, dim1))


@public_op
def swapaxes_(input: SparseTensor, axis0: int, axis1: int) -> SparseTensor:
    """Exchanges two dimensions in place: `spgrad.transpose_` with dim0=axis0 and dim1=axis1."""
    return _become(input, lambda A: swapaxes(A, axis0, axis1))


@public_op
def squeeze_(input: SparseTensor, dim: int | tuple[int, ...] | None = None) -> SparseTensor:
    """Removes dimensions of size 1 in place: as `spgrad.transpose_` with `spgrad.squeeze`."""
    return _become(input, lambda A: squeeze(A, dim))


@public_op
def unsqueeze_(input: SparseTensor, dim: int) -> SparseTensor:
    """Adds a dimension of size 1 in place: as `spgrad.transpose_` with `spgrad.unsqueeze`."""
    return _become(input, lambda A: unsqueeze(A, dim))


@public_op
def sparse_resize_(input: SparseTensor, size: Any, sparse_dim: int, dense_dim: int) -> SparseTensor:
    """Changes the shape of a tensor in place and keeps the indices of its elements.

    Args:
        input: SparseTensor of any layout.
        size: The new sizes. If there are elements, no size may shrink.
        sparse_dim: Number of sparse dimensions as `sparse_dim()` gives it: 2 if compressed. If
            there are elements, the number may not change.
        dense_dim: Number of dense dimensions. If there are elements, the number may not change.

    Returns:
        `input`. Dense dimensions that grow are filled up with zeros. A tensor without elements
        becomes COO if the new sizes do not fit its layout.

    Gradient:
        The cotangent at the elements that were there; a leaf that requires a gradient is refused.

    Cost:
        O(nse); for compressed layouts also O(rows or columns).

    Raises:
        TypeError: `input` is no SparseTensor, or an argument no int.
        ValueError: A size shrinks, or the numbers of dimensions do not fit.
        RuntimeError: `input` is a leaf that requires a gradient, or a graph or a weak
            reference holds it.

    Example:
        >>> A = spgrad.from_dense(torch.ones(1, 2), torch.sparse_coo)
        >>> spgrad.sparse_resize_(A, (2, 3), 2, 0).to_dense()
        tensor([[1., 1., 0.],
                [0., 0., 0.]])
    """
    return _become(input, lambda A: _resized(A, size, sparse_dim, dense_dim))


@public_op
def sparse_resize_and_clear_(
    input: SparseTensor, size: Any, sparse_dim: int, dense_dim: int
) -> SparseTensor:
    """`spgrad.sparse_resize_` with all elements removed first, so any size is accepted."""
    return _become(input, lambda A: _cleared(A, size, sparse_dim, dense_dim))


@public_op
def resize_as_(input: SparseTensor, other: torch.Tensor) -> SparseTensor:
    """`spgrad.sparse_resize_` with the shape and the numbers of dimensions of a sparse tensor."""
    if not is_sparse(other):
        raise ArgumentKindError(
            f"`other` is {checks.describe_kind(other)}; a sparse tensor is accepted. Use "
            "spgrad.sparse_resize_."
        )
    shape = tuple(other.shape)
    return _become(input, lambda A: _resized(A, shape, other.sparse_dim(), other.dense_dim()))


def _become(A: Any, make: Callable[[SparseTensor], SparseTensor]) -> SparseTensor:
    """Gives the object A the contents of `make(A)`: a tensor's shape can't be written to."""
    if not isinstance(A, SparseTensor):
        raise ArgumentKindError(
            f"`input` is {checks.describe_kind(A)}; a SparseTensor is accepted. Wrap a native "
            "sparse tensor with spgrad.from_torch."
        )
    if A.requires_grad and A.is_leaf:  # its gradient would have the old shape
        raise StateError(
            "`input` is a leaf that requires a gradient; others are accepted. Change A.detach(), "
            "and call requires_grad_() afterwards."
        )
    made = make(A)
    return A if made is A else exchanged(A, made)


def exchanged(A: SparseTensor, made: SparseTensor) -> SparseTensor:
    """The object A with all that `made` is, its place in the graph too; `made` becomes A."""
    try:
        torch.utils.swap_tensors(A, made)
    except RuntimeError as error:
        raise StateError(
            f"`input` can't change in place, as a graph or a weak reference holds it ({error}); a "
            "tensor without weak references and outside of graphs is accepted. Make a new one."
        ) from error
    return A


def _dims(
    A: SparseTensor, size: Any, sparse_dim: int, dense_dim: int
) -> tuple[tuple[int, ...], bool]:
    """The new shape, and whether the layout of A can hold it."""
    shape = size_tuple(size)
    for name, value in (("sparse_dim", sparse_dim), ("dense_dim", dense_dim)):
        if require_int(name, value) < 0:
            raise ArgumentValueError(
                f"`{name}` is {value}; numbers from 0 are accepted. Check the order of the "
                "arguments."
            )
    compressed = not A._pattern.is_coo and sparse_dim == 2 and len(shape) - dense_dim >= 2
    if not compressed and sparse_dim + dense_dim != len(shape):
        raise ArgumentValueError(
            f"`sparse_dim` is {sparse_dim} and `dense_dim` {dense_dim} for `size` {shape}; numbers "
            f"that add up to {len(shape)} are accepted. Count the dimensions."
        )
    m, k = shape[-2 - dense_dim :][:2] if compressed else (0, 0)
    bm, bn = A._pattern.blocksize or (1, 1)
    return shape, compressed and m % bm == 0 and k % bn == 0


def _cleared(A: SparseTensor, size: Any, sparse_dim: int, dense_dim: int) -> SparseTensor:
    shape, fits = _dims(A, size, sparse_dim, dense_dim)
    old = A._pattern
    like = (old.layout, old.blocksize) if fits else (torch.sparse_coo, None)
    pattern = empty_pattern(shape, *like, dense_dim, old.device)
    return SparseTensor(A._vals.new_zeros(pattern.values_shape), pattern)


def _resized(A: SparseTensor, size: Any, sparse_dim: int, dense_dim: int) -> SparseTensor:
    old = A._pattern
    if old.nse == 0:
        return _cleared(A, size, sparse_dim, dense_dim)
    shape, _ = _dims(A, size, sparse_dim, dense_dim)
    have = tuple(old.shape), old.sparse_dim, old.dense_dim
    same = have[1:] == (sparse_dim, dense_dim) and len(shape) == len(old.shape)
    if not same or any(new < now for new, now in zip(shape, old.shape, strict=False)):
        raise ArgumentValueError(
            f"`size`, `sparse_dim` and `dense_dim` are {shape}, {sparse_dim}, {dense_dim} for a "
            f"tensor with {old.nse} elements and {have}; the same numbers and no smaller size are "
            "accepted. Use spgrad.sparse_resize_and_clear_ to drop the elements."
        )
    if shape == tuple(old.shape):
        return A
    split = sparse_dims(old)
    grown = [new - now for new, now in zip(shape[split:], old.dense_shape, strict=True)]
    pad = [n for extra in reversed(grown) for n in (0, extra)]
    return rebuild(
        A, ("resize", shape), lambda p: _enlarged(p, shape), inner=lambda vals: F.pad(vals, pad)
    )


def _enlarged(pattern: Pattern, shape: tuple[int, ...]) -> Found:
    return placed(pattern, shape, lambda indices: Placed(indices, None, 0))
