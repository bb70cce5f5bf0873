"""The lines of several patterns joined, and their values in the same pass where possible."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain, stored_values
from spgrad.lowering.gather import Entries, Ranges, moves_along
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.ranges import LineRanges, Lines, joined, lines_of, of_lines
from spgrad.lowering.rebuild import InRanges
from spgrad.torch_protocol.compile import lasting


class Joined(NamedTuple):
    """A new pattern, and which element of all operands, one after the other, each of its own is."""

    pattern: Pattern
    entry: Entries | Callable[[], Entries]
    vals: torch.Tensor | None  # the values in their new order, if the kernel moved them


def movable_values(operands: Sequence[SparseTensor]) -> list[torch.Tensor]:
    """The values, if a kernel that joins the patterns can move them too; otherwise none."""
    vals = [stored_values(A) for A in operands]
    for A, own in zip(operands, vals, strict=True):
        pattern = A._pattern
        if pattern.blocksize is not None or own.dtype != vals[0].dtype or wants_grad(own):
            return []
        if not moves_along(own, pattern.indices[0]):
            return []
    return [plain(own) for own in vals]


def lines_behind(
    patterns: Sequence[Pattern],
    shape: tuple[int, ...],
    shifts: Sequence[int],
    vals: list[torch.Tensor],
) -> Joined:
    """The lines of compressed patterns one after the other, plain indices shifted."""
    dtype = _dtype(patterns, shape)
    ptr, idx = ([_as(dtype, p.indices[i]) for p in patterns] for i in (0, 1))
    ptr, idx, moved = kernels.join_lines(ptr, idx, shifts, vals, False)
    made = Pattern.from_spec(patterns[0].spec, shape, (ptr, idx))
    return Joined(made.ascending(*patterns), None, moved if vals else None)


def lines_beside(
    patterns: Sequence[Pattern],
    shape: tuple[int, ...],
    at: int,
    starts: Sequence[int],
    vals: list[torch.Tensor],
) -> Joined | None:
    """The patterns joined line by line along dimension `at`; None if they have no lines alike."""
    parts = _lines_alike(patterns, shape)
    if parts is None:
        return None
    if not vals or at != parts[0].idx_dim:
        found = _in_ranges(parts, shape, at, starts)
        return Joined(found.pattern, found.entry, None)
    ptr, idx = [p.ptr for p in parts], [p.idx.contiguous() for p in parts]
    ptr, idx, moved = kernels.join_lines(ptr, idx, starts[: len(parts)], vals, True)
    old = [weakref.ref(p) for p in patterns]

    def entries() -> Ranges:  # for a later call with these patterns, which live then
        alive = [p for p in (ref() for ref in old) if p is not None]
        parts = _lines_alike(alive, shape)
        assert parts is not None
        assert len(parts) == len(old)
        with lasting(*(i for p in alive for i in p.indices)):
            return _in_ranges(parts, shape, at, starts).entry

    made = of_lines(patterns[0], shape, ptr, idx).ascending(*patterns)
    return Joined(made, entries, moved)


def _dtype(patterns: Sequence[Pattern], shape: tuple[int, ...]) -> torch.dtype:
    """That of the indices of the result."""
    own = functools.reduce(torch.promote_types, (p.indices[0].dtype for p in patterns))
    return index_dtype(own, (*shape, sum(p.nse for p in patterns)))


def _as(dtype: torch.dtype, index: torch.Tensor) -> torch.Tensor:
    return index if index.dtype == dtype else index.to(dtype)


def _lines_alike(patterns: Sequence[Pattern], shape: tuple[int, ...]) -> list[Lines] | None:
    """The lines of patterns of one layout, in the dtype of the result; None if one has none."""
    layout, dtype = patterns[0].layout, _dtype(patterns, shape)
    parts = [lines_of(p, dtype) if p.layout == layout else None for p in patterns]
    found = [part for part in parts if part is not None]
    return found if len(found) == len(parts) else None


def _in_ranges(
    parts: Sequence[Lines], shape: tuple[int, ...], at: int, starts: Sequence[int]
) -> InRanges:
    """The lines joined by ranges of entries, which move values in later calls and gradients."""
    first, sizes = parts[0], [p.pattern.nse for p in parts]
    before = itertools.accumulate(sizes, initial=0)
    behind = [(x.starts() + n, x.ends() + n) for x, n in zip(parts, before, strict=False)]
    idx = torch.cat([x.idx for x in parts])
    if at == first.idx_dim:  # the lines of all, one behind the other
        begin, end = (torch.stack(side, -1) for side in zip(*behind, strict=True))
        ranges = LineRanges(begin, end, starts[: len(parts)], sum(sizes))
    else:
        by = first.line_dims.index(at)
        begin, end = (torch.cat(side, by) for side in zip(*behind, strict=True))
        ranges = LineRanges(begin, end, count=sum(sizes))
    return joined(first.pattern, shape, idx, ranges)
