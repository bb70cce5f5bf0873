"""New patterns whose lines are ranges of entries of old lines: no sort is needed.

The lines are the rows of CSR and COO and the columns of CSC, those of a batch one item after the
other. `spgrad.lowering.rebuild` handles BSR and BSC, and COO whose sparse dimensions are not two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern, View, index_dtype
from spgrad.core.values import as_dtype
from spgrad.lowering.gather import Ranges
from spgrad.lowering.rebuild import InRanges
from spgrad.lowering.views import has_lines, row_pointers


class Lines(NamedTuple):
    """A pattern by lines; the indices of each line ascend.

    Line i has the entries ``ptr[i] <= p < ptr[i + 1]``; `idx` counts within the batch item.
    """

    pattern: Pattern
    ptr: torch.Tensor
    idx: torch.Tensor

    @property
    def idx_dim(self) -> int:
        """The dimension that `idx` belongs to."""
        split = len(self.pattern.shape) - self.pattern.dense_dim
        return split - 1 if by_rows(self.pattern) else split - 2

    @property
    def line_dims(self) -> list[int]:
        """The other sparse dimensions; the lines are their places in row-major order."""
        split = len(self.pattern.shape) - self.pattern.dense_dim
        return [d for d in range(split) if d != self.idx_dim]

    @property
    def sizes(self) -> list[int]:
        """The sizes of `line_dims`."""
        return [self.pattern.shape[d] for d in self.line_dims]

    def starts(self) -> torch.Tensor:
        """The first entry of each line, by the dimensions of the lines."""
        return self.ptr[:-1].view(self.sizes)

    def ends(self) -> torch.Tensor:
        """The entry after each line, by the dimensions of the lines."""
        return self.ptr[1:].view(self.sizes)

    def numbers(self) -> torch.Tensor:
        """The number of each line inside of its batch item (lines,), int64."""
        lines = self.ptr.shape[0] - 1
        number = self.ptr.new_ones(lines, dtype=torch.int64).cumsum_(0).sub_(1)
        return number.remainder_(max(self.sizes[-1], 1)) if len(self.sizes) > 1 else number


def by_rows(pattern: Pattern) -> bool:
    """True where the lines of a pattern are its rows."""
    return pattern.is_coo or pattern.compressed_by_rows


def lines_of(pattern: Pattern, like: torch.dtype | None = None) -> Lines | None:
    """A coalesced pattern by lines, of its own index dtype or another; None without `has_lines`."""
    if not has_lines(pattern):
        return None
    ptr, idx = (row_pointers(pattern), pattern.indices[0][1]) if pattern.is_coo else pattern.indices
    dtype = like or pattern.indices[0].dtype
    return Lines(pattern, as_dtype(ptr, dtype), as_dtype(idx, dtype))


class LineRanges(NamedTuple):
    """The ranges of entries that become lines; each line has as many ranges as there are shifts.

    `begin` and `end` are of any shape, in row-major order; range j adds ``shift[j % group]`` to
    its indices, or goes backward and subtracts them from it.
    """

    begin: torch.Tensor
    end: torch.Tensor
    shift: Sequence[int] = (0,)
    count: int | None = None  # entries in all
    backward: bool = False


def joined(
    like: Pattern, shape: tuple[int, ...], idx: torch.Tensor, ranges: LineRanges
) -> InRanges:
    """A pattern of ranges of the indices `idx`, in the layout of `like`."""
    begin, end = (t.reshape(-1).contiguous() for t in (ranges.begin, ranges.end))
    count = int((end - begin).sum()) if ranges.count is None else ranges.count
    shift = idx.new_zeros(len(ranges.shift))
    for at, by in enumerate(ranges.shift):  # one tensor of all shifts would be copied from the host
        if by:
            shift[at].fill_(by)
    ptr, idx = kernels.join_ranges(idx.contiguous(), begin, end, shift, count, ranges.backward)
    entry = Ranges(ptr, begin, end, count, ranges.backward)
    group = len(ranges.shift)
    if group > 1:
        ptr = ptr[::group].contiguous()
    return InRanges(of_lines(like, shape, ptr, idx), entry)


def without_entries(lines: Lines, entry: torch.Tensor, there: torch.Tensor) -> InRanges:
    """All entries but some, of which no line has two: O(lines), and a copy of the indices.

    Args:
        lines: The pattern; the host can read its numbers.
        entry: The entries that are left out, ascending.
        there: Whether a line has one of them (lines,).
    """
    pattern, dtype = lines.pattern, lines.ptr.dtype
    around = entry.new_full((1,), -1), entry, entry.new_full((1,), pattern.nse)
    cuts = torch.cat(around).to(dtype)
    begin, end = cuts[:-1] + 1, cuts[1:]
    count = pattern.nse - entry.shape[0]
    zero = lines.idx.new_zeros(1)
    between, idx = kernels.join_ranges(lines.idx.contiguous(), begin, end, zero, count, False)
    ptr = lines.ptr.clone()
    ptr[1:] -= there.cumsum(0, dtype=dtype)
    made = of_lines(pattern, tuple(pattern.shape), ptr, idx).ascending(pattern)
    return InRanges(made, Ranges(between, begin, end, count, False))


def of_lines(
    like: Pattern, shape: tuple[int, ...], ptr: torch.Tensor, idx: torch.Tensor
) -> Pattern:
    """A pattern of ascending lines, in the layout of `like`: COO, CSR or CSC."""
    if not like.is_coo:
        return Pattern.from_spec(like.spec, shape, (ptr, idx))
    indices = kernels.coordinates(ptr, idx)
    made = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=like.dense_dim)
    if ptr.dtype == index_dtype(torch.int32, (math.prod(shape[:1]), shape[1], idx.shape[0])):
        made.keep(kept.ROWS, View(ptr, indices[1], None, shape[1]))
    else:
        made.keep(kept.POINTERS, ptr)
    return made
