"""Tensors joined to one: cat, stack and their relatives, and block_diag."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.align import align
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.gather import Gather
from spgrad.lowering.operands import require_dim, sparse_operand
from spgrad.lowering.rebuild import (
    COO,
    Found,
    Like,
    Move,
    Placed,
    assembled,
    coordinates,
    flat_values,
    last_used,
    positions,
    sparse_dims,
)
from spgrad.ops.shapes.lines import Joined, lines_behind, lines_beside, movable_values
from spgrad.ops.shapes.shape import same_elements, unsqueeze
from spgrad.public import public_op

_Build = Callable[[Sequence[Pattern], list[torch.Tensor]], Found | Joined]

_JOINED: dict[Any, tuple[tuple[weakref.ref[Pattern], ...], Move]] = {}
"""The last joins, by the patterns of their operands, while these live.

Not kept on a pattern: one that is joined with others again and again, as a graph of a data set in
its mini-batches, would collect them all.
"""


@public_op
def cat(tensors: Any, dim: int = 0) -> SparseTensor:
    """The tensors, one after the other along a dimension that they have.

    Args:
        tensors: List or tuple of sparse tensors of any layouts, equal in shape except along `dim`.
        dim: A sparse, batch or dense dimension.

    Returns:
        SparseTensor in the layout of the first; COO if its blocks do not fit. Along a dense
        dimension, the result has the elements that any of the tensors has.

    Gradient:
        To each tensor its part of the cotangent, on its own pattern.

    Cost:
        O(nse of all); the indices of the last joins are kept. Rows of CSR, columns of CSC and
        items of batches are copied as they are, anything else is sorted.

    Raises:
        TypeError: An operand is not sparse, or `dim` is not an int.
        ValueError: There is no operand, or shapes or devices do not fit.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0]]))
        >>> spgrad.cat([A, 2 * A]).to_dense()
        tensor([[0., 1.],
                [0., 2.]])
    """
    operands = _list_of_operands(tensors)
    at = require_dim("dim", dim, operands[0].dim())
    return _cat(operands, at)


@public_op
def stack(tensors: Any, dim: int = 0) -> SparseTensor:
    """`spgrad.cat` with a new dimension `dim`; all shapes are equal.

    The layout is that of `spgrad.unsqueeze`: matrices keep their layout if `dim` makes a batch of
    them.
    """
    operands = _list_of_operands(tensors)
    at = require_dim("dim", dim, operands[0].dim() + 1)
    _require_alike(operands, None)
    return _cat([unsqueeze(A, at) for A in operands], at)


@public_op
def hstack(tensors: Any) -> SparseTensor:
    """Puts tensors side by side: `spgrad.cat` with dim=1, or with dim=0 for vectors and numbers."""
    lifted = [_vector_of_number(A) for A in _list_of_operands(tensors)]
    return _cat(lifted, 0 if lifted[0].dim() == 1 else 1)


@public_op
def vstack(tensors: Any) -> SparseTensor:
    """`spgrad.cat` with dim=0; vectors become rows, and numbers rows of one."""
    return _cat([_row_of_vector(A) for A in _list_of_operands(tensors)], 0)


@public_op
def dstack(tensors: Any) -> SparseTensor:
    """`spgrad.cat` with dim=2; vectors (n,) become (1, n, 1) and matrices (m, n, 1)."""
    rows = [_row_of_vector(A) for A in _list_of_operands(tensors)]
    return _cat([unsqueeze(A, 2) if A.dim() == 2 else A for A in rows], 2)


def _vector_of_number(A: SparseTensor) -> SparseTensor:
    return unsqueeze(A, 0) if A.dim() == 0 else A


def _row_of_vector(A: SparseTensor) -> SparseTensor:
    A = _vector_of_number(A)
    return unsqueeze(A, 0) if A.dim() == 1 else A


@public_op
def block_diag(*tensors: torch.Tensor) -> SparseTensor:
    """The matrix with these matrices along its diagonal, and nothing elsewhere.

    Args:
        *tensors: Sparse matrices of any layouts and shapes.

    Returns:
        SparseTensor of the sum of the shapes, in the layout of the first; COO if its blocks do not
        divide the sizes of each matrix, as a block that reaches from one matrix into the next
        would specify elements outside of both.

    Gradient:
        To each matrix its block of the cotangent, on its own pattern.

    Cost:
        O(nse of all); matrices of one layout are copied as they are.

    Raises:
        TypeError: An operand is not sparse.
        ValueError: There is no operand, one is not a matrix, or devices differ.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0]]))
        >>> spgrad.block_diag(A, A).to_dense()
        tensor([[1., 2., 0., 0.],
                [0., 0., 1., 2.]])
    """
    operands = _list_of_operands(tensors)
    for i, A in enumerate(operands):
        if A._pattern.dense_dim or A.dim() != 2:
            hint = "Take one matrix of a batch at a time; give a vector a dimension of size 1."
            accepted = "a matrix without dense dimensions"
            raise checks.bad_shape(f"tensors[{i}]", A.shape, accepted, hint)
    sizes = [A._pattern.matrix for A in operands]
    like = _layout_of(operands[0])
    bm, bn = like[1] or (1, 1)
    if any(rows % bm or columns % bn for rows, columns in sizes):
        like = COO
    m, k = (sum(column) for column in zip(*sizes, strict=True))
    starts = [*itertools.accumulate(sizes, lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0, 0))]
    shape = (m, k)
    checks.require_addressable(shape, None)

    def build(patterns: Sequence[Pattern], vals: list[torch.Tensor]) -> Found | Joined:
        if _of_one_compressed_layout(patterns):
            first = patterns[0]
            plain = 1 if first.compressed_by_rows else 0
            step = (first.blocksize or (1, 1))[plain]
            shifts = [start[plain] // step for start in starts[:-1]]
            return lines_behind(patterns, shape, shifts, vals)
        return _joined_coordinates(patterns, shape, lambda i, x: _shifted(x, starts[i]), 0, like)

    return _concatenated(operands, ("block_diag",), build)


def _list_of_operands(tensors: Any) -> list[SparseTensor]:
    """The operands as sparse tensors without repeats, on one device."""
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Sequence):
        raise ArgumentKindError(
            f"`tensors` is {checks.describe_kind(tensors)}; a list or tuple of sparse tensors is "
            "accepted. Put the tensors into a list."
        )
    if not tensors:
        raise ArgumentValueError(
            "`tensors` is empty; one sparse tensor or more is accepted. Leave the call out."
        )
    found = [sparse_operand(f"tensors[{i}]", A) for i, A in enumerate(tensors)]
    for i, A in enumerate(found[1:], 1):
        checks.require_same_device(**{"tensors[0]": found[0]._vals, f"tensors[{i}]": A._vals})
    return [without_repeats(A) for A in found]


def _layout_of(A: SparseTensor) -> Like:
    return A._pattern.layout, A._pattern.blocksize


def _require_alike(operands: Sequence[SparseTensor], at: int | None) -> None:
    """Refuses shapes that differ in other dimensions than `at`."""
    first = operands[0]._pattern
    wanted = ["*" if d == at else str(size) for d, size in enumerate(first.shape)]
    for i, A in enumerate(operands):
        own = A._pattern
        same = len(own.shape) == len(first.shape) and own.dense_dim == first.dense_dim
        pairs = zip(own.shape, first.shape, strict=False)
        if not same or any(a != b and d != at for d, (a, b) in enumerate(pairs)):
            accepted = f"({', '.join(wanted)}) with {first.dense_dim} dense dimension(s)"
            hint = "Pad or reshape it first."
            raise checks.bad_shape(f"tensors[{i}]", own.shape, accepted, hint)


def _cat(operands: list[SparseTensor], at: int) -> SparseTensor:
    _require_alike(operands, at)
    first = operands[0]._pattern
    if at >= sparse_dims(first):
        return _cat_dense(operands, at)
    sizes = [A._pattern.shape[at] for A in operands]
    starts = [0, *itertools.accumulate(sizes)]
    shape = (*first.shape[:at], starts[-1], *first.shape[at + 1 :])
    like = _layout_of(operands[0])
    checks.require_addressable(shape, None)

    def build(patterns: Sequence[Pattern], vals: list[torch.Tensor]) -> Found | Joined:
        if _of_one_compressed_layout(patterns) and _joins_whole_lines(first, at):
            return lines_behind(patterns, shape, [0] * len(patterns), vals)
        found = lines_beside(patterns, shape, at, starts, vals) if at else None
        if found is not None:
            return found
        ahead = (0,) * at
        return _joined_coordinates(
            patterns, shape, lambda i, x: _shifted(x, (*ahead, starts[i])), at, like
        )

    return _concatenated(operands, ("cat", at), build)


def _shifted(indices: torch.Tensor, by: Sequence[int]) -> torch.Tensor:
    """Coordinates moved by these numbers in the first dimensions."""
    moved = indices.clone()
    for dim, start in enumerate(by):
        if start:
            moved[dim] += start
    return moved


def _joins_whole_lines(pattern: Pattern, at: int) -> bool:
    """True where joining along `at` puts whole lines behind one another."""
    return at == 0 if pattern.batch else at == (0 if pattern.compressed_by_rows else 1)


def _cat_dense(operands: list[SparseTensor], at: int) -> SparseTensor:
    """Along a dense dimension: each padded with zeros, and added on the elements of all."""
    sizes = [A._pattern.shape[at] for A in operands]
    starts = [0, *itertools.accumulate(sizes)]
    behind = len(operands[0]._pattern.shape) - at - 1
    padded = []
    for A, start, size in zip(operands, starts, sizes, strict=False):
        old = A._pattern
        shape = (*old.shape[:at], starts[-1], *old.shape[at + 1 :])
        vals = F.pad(stored_values(A), [*[0, 0] * behind, start, starts[-1] - start - size])
        wider = functools.partial(same_elements, shape=shape, dense_dim=old.dense_dim)
        padded.append(on_pattern(vals, old.derive(kept.DENSE.of(shape), wider)))
    return functools.reduce(_add_on_union, padded)


def _add_on_union(A: SparseTensor, B: SparseTensor) -> SparseTensor:
    aligned = align(A, B, "either")
    return on_pattern(aligned.a + aligned.b, aligned.pattern)


def _concatenated(
    operands: Sequence[SparseTensor],
    key: tuple[Any, ...],
    build: _Build,
) -> SparseTensor:
    """One tensor of the elements of all operands, where `build` puts them; differentiable."""
    made, vals = _kept_join(key, operands, build)
    if vals is None:
        vals = made.gather(torch.cat([flat_values(A) for A in operands]))
    return on_pattern(vals.view(made.pattern.values_shape), made.pattern)


def _kept_join(
    key: tuple[Any, ...],
    operands: Sequence[SparseTensor],
    build: _Build,
) -> tuple[Move, torch.Tensor | None]:
    """How the elements move, and the new values if this call found the pattern and moved them."""
    patterns = [A._pattern for A in operands]
    where = (*key, *map(id, patterns))
    # asked here, because `make` runs outside of the transforms of torch.func
    vals = [] if where in _JOINED else movable_values(operands)
    moved: list[torch.Tensor] = []

    def forget(_: Any) -> None:
        _JOINED.pop(where, None)

    def make() -> Any:
        found = build(patterns, vals)
        if isinstance(found, Joined) and found.vals is not None:
            moved.append(found.vals)
        made = Move(found.pattern, Gather(found.entry, sum(p.elements for p in patterns)))
        return tuple(weakref.ref(p, forget) for p in patterns), made

    made = last_used(_JOINED, where, make, patterns)[1]
    return made, moved[0] if moved else None


def _of_one_compressed_layout(patterns: Sequence[Pattern]) -> bool:
    """True for compressed patterns of one layout and block size."""
    first = patterns[0]
    return not first.is_coo and all(
        p.layout == first.layout and p.blocksize == first.blocksize for p in patterns
    )


def _joined_coordinates(
    patterns: Sequence[Pattern],
    shape: tuple[int, ...],
    by: Callable[[int, torch.Tensor], torch.Tensor],
    leading: int,
    like: Like,
) -> Found:
    """The elements of all patterns, those of pattern i where `by(i, indices)` puts them."""
    parts = [coordinates(p) for p in patterns]
    own = functools.reduce(torch.promote_types, (p.pattern.indices[0].dtype for p in parts))
    dtype = index_dtype(own, shape)
    indices = torch.cat([by(i, p.pattern.indices[0].to(dtype)) for i, p in enumerate(parts)], 1)
    entry = None
    if any(p.entry is not None for p in parts):
        starts = itertools.accumulate((p.elements for p in patterns), initial=0)
        each = [positions(indices, p.nse) if e is None else e for p, e in parts]
        entry = torch.cat([start + e for start, e in zip(starts, each, strict=False)])
    return assembled(shape, Placed(indices, entry, leading), patterns[0].dense_dim, like)
