"""Which lines of a view a program reads: many short ones, or a part of a long one.

A line is a row of a view by rows, or a column of one by columns. Lines of at most `LONG` entries
are short: a program reads several side by side. The entries are also cut into chunks of `LONG`, and
a program reads what a chunk has of long lines, which is a part of two lines at most, because a long
line is longer than a chunk. Where each part stands follows from the pointers alone, so no plan is
made, nothing is sent to the host, and no two programs add to one place.
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
LONG_LINES = tl.constexpr(2)
"""Program p reads the whole long line that begins in chunk p, if there is one."""


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
def long_line(ptr, m):
    """The long line that begins in this program's chunk, its begin and end, and its first part.

    The end is the begin where there is none.
    """
    first = tl.program_id(0).to(ptr.dtype.element_ty) * LONG
    last = tl.minimum(first + LONG, tl.load(ptr + m)) - 1
    line = line_of(ptr, m, last)
    begin, end = tl.load(ptr + line), tl.load(ptr + line + 1)
    part = 2 * tl.program_id(0) + tl.where(line_of(ptr, m, first) == line, 0, 1)
    there = (begin >= first) & (end - begin > LONG)
    return line, begin, tl.where(there, end, begin), part


@triton.jit
def lines_of_program(ptr, m, R: tl.constexpr, KIND: tl.constexpr):
    """The lines that a program reads, (R,) each: line, begin, end, where to store, whether to."""
    if KIND == SHORT_LINES:
        line = tl.program_id(0) * R + tl.arange(0, R)
        begin = tl.load(ptr + line, mask=line < m, other=0)
        end = tl.load(ptr + line + 1, mask=line < m, other=0)
        there = (line < m) & (end - begin <= LONG)
        place = line
    elif KIND == PARTS:
        tl.static_assert(R == 2)
        first = tl.program_id(0).to(ptr.dtype.element_ty) * LONG
        stop = tl.minimum(first + LONG, tl.load(ptr + m))
        one, other = line_of(ptr, m, first), line_of(ptr, m, stop - 1)
        side = tl.arange(0, 2)
        line = tl.where(side == 0, one, other)
        begin, end = tl.load(ptr + line), tl.load(ptr + line + 1)
        there = (end - begin > LONG) & (line - one >= side)  # two lines, or the same twice
        begin, end = tl.maximum(begin, first), tl.minimum(end, stop)
        place = 2 * tl.program_id(0) + side
    else:
        tl.static_assert(R == 1)
        none = tl.arange(0, 1)
        line, begin, end, _ = long_line(ptr, m)
        line, begin, end = line + none, begin + none, end + none
        there = begin < end
        place = line
    return line, begin, tl.where(there, end, begin), place, there


@triton.jit
def places(perm, entry, there):
    """Where the values of entries stand."""
    if perm is not None:
        entry = tl.load(perm + entry, mask=there, other=0)
    return entry
