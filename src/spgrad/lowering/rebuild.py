"""Operations that move elements: they compute new coordinates, and gather the values once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.kept import Key
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import flat_values, moved
from spgrad.lowering.gather import Gather, Move, Ranges
from spgrad.lowering.sorting import lexicographic
from spgrad.torch_protocol.compile import lasting, may_keep
from spgrad.torch_protocol.func_transforms import is_mapped

KEPT = 8
"""How many results of a kind a pattern keeps: a loop over arguments would fill the memory."""


Like = tuple[torch.layout, tuple[int, int] | None]
"""A layout and its block size."""

COO: Like = (torch.sparse_coo, None)


class Found(NamedTuple):
    """A new pattern, and the old stored element that becomes each of its stored elements.

    The elements inside blocks are counted one by one. -1 stands for a zero that fills up a block.
    None means that all elements are taken in order.
    """

    pattern: Pattern
    entry: torch.Tensor | None  # (elements,)


class InRanges(NamedTuple):
    """A new pattern, whose stored elements are ranges of the old ones."""

    pattern: Pattern
    entry: Ranges


def rebuild(
    A: SparseTensor,
    key: tuple[Any, ...],
    build: Callable[[Pattern], Found | InRanges],
    *,
    repeats: bool = False,
    inner: Callable[[torch.Tensor], torch.Tensor] | None = None,
    copies: bool = False,
) -> SparseTensor:
    """The tensor with the elements of A in other places; differentiable.

    Args:
        A: Of any layout; repeated elements are added first.
        key: Names the operation and its arguments; the result of `build` is kept under this key.
        build: Makes the new pattern from the pattern of A.
        repeats: True if an element of A may come more than once.
        inner: A function of the values (elements, *dense), which changes their dense dimensions.
        copies: True if the result has memory of its own even where all elements stay in order.
    """
    A = without_repeats(A)
    old = A._pattern
    made = remembered(old, kept.REBUILT, key, lambda: finished(build(old), old.elements, repeats))
    vals = made.gather(flat_values(A))
    if copies and made.gather.entries is None:
        vals = vals.clone()
    if inner is not None:
        vals = inner(vals)
    return on_pattern(vals.reshape(made.pattern.values_shape).contiguous(), made.pattern)


def copied(A: SparseTensor) -> SparseTensor:
    """A with memory of its own for its values; differentiable."""
    return on_pattern(stored_values(A).clone(), A._pattern)


def remembered(pattern: Pattern, kind: Key, key: Any, make: Callable[[], Any]) -> Any:
    """The result of `make`; `pattern` keeps the last used results of a kind by their `key`.

    A key with a size that a trace has a symbol for has no hash; its result is not kept.
    """
    try:
        hash(key)
    except TypeError:
        with lasting(*pattern.indices):
            return make()
    return last_used(pattern.derive(kind, lambda _: {}), key, make, (pattern,))


def last_used(
    store: dict[Any, Any], key: Any, make: Callable[[], Any], patterns: Sequence[Pattern]
) -> Any:
    """The result of `make` for these patterns; the last used results are kept under their keys."""
    found = store.pop(key, None)
    if found is None:
        made_of = [i for p in patterns for i in p.indices]
        with lasting(*made_of):
            found = make()
        if not may_keep(*made_of):
            return found
    store[key] = found
    if len(store) > KEPT:
        for oldest in list(store)[:-KEPT]:
            store.pop(oldest, None)
    return found


def finished(found: Found | InRanges, elements: int, repeats: bool = False) -> Move:
    """The `Move` to a new pattern from a pattern with this many elements."""
    return Move(found.pattern, Gather(found.entry, elements, repeats))


def sparse_dims(pattern: Pattern) -> int:
    """Dimensions of a tensor that are not dense, those of a batch included."""
    return len(pattern.shape) - pattern.dense_dim


def coordinates(pattern: Pattern) -> Found:
    """The pattern as COO, its elements in lexicographic order."""
    if pattern.is_coo:
        return Found(pattern, None)
    move = moved(pattern, torch.sparse_coo)
    entry = move.gather.index()
    return Found(move.pattern, None if entry is None else entry.to(torch.int64))


def positions(like: torch.Tensor, count: int) -> torch.Tensor:
    """0, 1, ..., count - 1, int64, on the device of `like`."""
    return like.new_ones(count, dtype=torch.int64).cumsum(0) - 1


class Placed(NamedTuple):
    """New coordinates of elements, and the old element of each (None: all elements, in order).

    `leading`: the number of dimensions to sort by, if elements with the same coordinates in these
    dimensions are in order already; 0 if all elements are in order, None for all dimensions.
    """

    indices: torch.Tensor  # (d, n)
    entry: torch.Tensor | None = None  # (n,)
    leading: int | None = None


def placed(
    pattern: Pattern,
    shape: tuple[int, ...],
    by: Callable[[torch.Tensor], Placed],
    *,
    dense_dim: int | None = None,
    like: Like | None = None,
) -> Found:
    """Each element at the coordinates that `by` gives, in the layout of `pattern` if it fits.

    Args:
        pattern: A coalesced pattern of any layout.
        shape: The shape of the result.
        by: Computes new coordinates from the old (d, nse), which are in lexicographic order.
        dense_dim: Dense dimensions of the result; by default those of `pattern`.
        like: Layout and block size of the result; by default those of `pattern`.
    """
    coo, first = coordinates(pattern)
    old = coo.indices[0]
    found = by(old.to(index_dtype(old.dtype, shape)))
    return assembled(
        shape,
        found._replace(entry=composed(first, found.entry)),
        pattern.dense_dim if dense_dim is None else dense_dim,
        like or (pattern.layout, pattern.blocksize),
    )


def subset(pattern: Pattern, chosen: torch.Tensor) -> Found:
    """The stored elements of a pattern for which `chosen` (elements,) is True, in its layout."""
    if is_mapped(chosen):
        raise UnsupportedError(
            "the elements of the result depend on values that torch.func.vmap maps over; one "
            "pattern for all items is accepted. Choose the elements before, and map over "
            "spgrad.from_values(values, pattern)."
        )
    if pattern.is_coo:
        there = chosen.nonzero().squeeze(1)
        found = Placed(pattern.indices[0].index_select(1, there), there, 0)
        made = assembled(tuple(pattern.shape), found, pattern.dense_dim, COO)
        return Found(made.pattern.ascending(pattern), made.entry)
    ptr, idx = pattern.indices
    size = math.prod(pattern.blocksize or (1, 1))
    stay = chosen if size == 1 else chosen.view(-1, size).any(1)  # blocks with any such element
    there = stay.nonzero().squeeze(1)
    before = torch.cat([ptr.new_zeros(1), stay.cumsum(0, dtype=ptr.dtype)])
    indices = before.index_select(0, ptr.to(torch.int64)), idx.index_select(0, there)
    made = Pattern.from_spec(pattern.spec, tuple(pattern.shape), indices).ascending(pattern)
    if size == 1:
        return Found(made, there)
    entry = there[:, None] * size + torch.arange(size, device=there.device)
    return Found(made, torch.where(chosen.view(-1, size)[there], entry, -1).view(-1))


def assembled(
    shape: tuple[int, ...],
    found: Placed,
    dense_dim: int,
    like: Like,
) -> Found:
    """The pattern of distinct coordinates, sorted, in a layout if it fits and in COO otherwise."""
    indices, entry, leading = found
    if leading != 0:
        order = lexicographic(indices, shape[: indices.shape[0]], leading)
        indices = indices.index_select(1, order)
        entry = composed(entry, order) if entry is not None else order
    indices = indices.contiguous()
    coo = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=dense_dim)
    if leading is None:
        coo.ascending()
    return in_layout(coo, entry, fitting(like, coo))


def in_layout(pattern: Pattern, entry: torch.Tensor | None, like: Like) -> Found:
    """A pattern in another layout that can hold it, with the old entry of each new one."""
    if (pattern.layout, pattern.blocksize) == like:
        return Found(pattern, entry)
    move = moved(pattern, *like)
    then = move.gather.index()
    if like[1] is None or entry is None or then is None:
        return Found(move.pattern, composed(entry, then))
    return Found(move.pattern, kernels.take(entry + 1, then) - 1)  # -1 becomes 0 and -1 again


def composed(first: torch.Tensor | None, then: torch.Tensor | None) -> torch.Tensor | None:
    """The entries of two gathers: first `first`, and then `then` from its result."""
    if first is None or then is None:
        return then if first is None else first
    return first.index_select(0, then)


def fitting(like: Like, coo: Pattern) -> Like:
    """`like` if it can hold such a tensor: a matrix or batch whose sizes the blocks divide."""
    blocksize = like[1]
    if coo.sparse_dim < 2:
        return COO
    m, k = coo.matrix
    bm, bn = blocksize or (1, 1)
    return COO if m % bm or k % bn else like
