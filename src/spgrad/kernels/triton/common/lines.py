"""Which lines of a view a program reads: many short ones, or a part of a long one.

A line is a row of a view by rows, or a column of one by columns. Lines of at most `LONG` entries
are short: a program reads several side by side. The entries are also cut into chunks of `LONG`, and
a program reads what a chunk has of long lines, which is a part of two lines at most, because a long
line is longer than a chunk. Chunk c has the parts 2 c, of the line of its first entry, and 2 c + 1,
of that of its last. Where each part stands follows from the pointers alone, so no plan is made,
nothing is sent to the host, and no two programs add to one place. Another kernel joins the parts of
a line in their order, so the result is the same however a device schedules programs.
"""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

LONG = tl.constexpr(1024)
"""Entries of a chunk, and most entries of a short line."""
SHORT_LINES = tl.constexpr(0)
"""Program p reads the short ones of lines p R, ..., (p + 1) R - 1."""
PARTS = tl.constexpr(1)
"""Program p reads what chunk p has of long lines: those of its first and of its last entry."""


class View(NamedTuple):
    """Pointers, index of every entry, and the place of its value or None, as kernels take them."""

    ptr: Any
    idx: Any
    perm: Any


@triton.constexpr_function
def padded(n: int) -> int:
    """The power of two from n on."""
    return 1 << max(n - 1, 0).bit_length()


@triton.jit
def line_of(ptr, m, entry):
    """The line (scalar) of an entry: the last that begins at it or before."""
    low, high = entry * 0, m + entry * 0
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(ptr + middle) <= entry
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def part_of(ptr, m, chunk, side, CHUNK: tl.constexpr):
    """What side 0 or 1 of a chunk has of a long line: line, begin, end, and whether it has any."""
    first = tl.cast(chunk, ptr.dtype.element_ty) * CHUNK
    stop = tl.minimum(first + CHUNK, tl.load(ptr + m))
    one, other = line_of(ptr, m, first), line_of(ptr, m, stop - 1)
    line = tl.where(side == 0, one, other)
    begin, end = tl.load(ptr + line), tl.load(ptr + line + 1)
    there = (end - begin > CHUNK) & (line - one >= side)  # two lines, or the same twice
    begin, end = tl.maximum(begin, first), tl.minimum(end, stop)
    return line, begin, tl.where(there, end, begin), there


@triton.jit
def first_part(begin, CHUNK: tl.constexpr):
    """The number of the first part of a long line that begins at an entry."""
    return 2 * (begin // CHUNK) + tl.where(begin % CHUNK > 0, 1, 0)


@triton.jit
def long_line(ptr, m, CHUNK: tl.constexpr):
    """The long line that begins in this program's chunk: line, begin and end.

    The end is the begin where there is none.
    """
    first = tl.program_id(0).to(ptr.dtype.element_ty) * CHUNK
    last = tl.minimum(first + CHUNK, tl.load(ptr + m)) - 1
    line = line_of(ptr, m, last)
    begin, end = tl.load(ptr + line), tl.load(ptr + line + 1)
    there = (begin >= first) & (end - begin > CHUNK)
    return line, begin, tl.where(there, end, begin)


@triton.jit
def lines_of_program(ptr, m, R: tl.constexpr, KIND: tl.constexpr):
    """The lines that a program reads, (R,) each: line, begin, end, where to store, whether to."""
    if KIND == SHORT_LINES:
        line = tl.program_id(0) * R + tl.arange(0, R)
        begin = tl.load(ptr + line, mask=line < m, other=0)
        end = tl.load(ptr + line + 1, mask=line < m, other=0)
        there = (line < m) & (end - begin <= LONG)
        end = tl.where(there, end, begin)
        place = line
    else:
        tl.static_assert(R == 2)
        side = tl.arange(0, 2)
        line, begin, end, there = part_of(ptr, m, tl.program_id(0), side, LONG)
        place = 2 * tl.program_id(0) + side
    return line, begin, end, place, there


@triton.jit
def entries_of_step(view, begin, end, step, E: tl.constexpr):
    """Entries of a step, (R, E) each: where they stand, their index, and whether they are there."""
    entry = begin[:, None] + step + tl.arange(0, E)[None, :]
    live = entry < end[:, None]
    return entry, tl.load(view.idx + entry, mask=live, other=0).to(tl.int64), live


@triton.jit
def places(perm, entry, there):
    """Where the values of entries stand."""
    if perm is not None:
        entry = tl.load(perm + entry, mask=there, other=0)
    return entry
