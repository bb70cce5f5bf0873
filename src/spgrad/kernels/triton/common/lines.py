"""Which lines of a view a program reads: short ones, or parts of long ones.

A line is a row of a view by rows, or a column of one by columns. Lines of at most a chunk are
short: a program reads one or several side by side. The entries are also cut into chunks, and what a
chunk has of long lines is a part of two lines at most, because a long line is longer than a chunk.
Chunk c has the parts 2 c, of the line of its first entry, and 2 c + 1, of that of its last. Where
each part stands follows from the pointers alone, so no plan is made, nothing is sent to the host,
and no two programs add to one place. Another kernel joins the parts of a line in their order, so
the result is the same however a device schedules programs.
"""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

LONG = tl.constexpr(256)
"""Entries of a chunk, and most entries of a short line, of kernels that gather rows.

One program reads a short line, a few entries at a time, and each time it waits for the memory.
While the last programs read long lines, the device has nothing else to do.
"""


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
def lines_of(ptr, m, entries):
    """The lines (R,) of entries (R,): the last that begins at each or before."""
    low, high = entries * 0, m + entries * 0
    while tl.max(high - low) > 1:
        middle = (low + high) // 2
        before = tl.load(ptr + middle) <= entries
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def line_of(ptr, m, entry):
    """The line (scalar) of an entry."""
    return tl.sum(lines_of(ptr, m, entry + tl.arange(0, 1)))


@triton.jit
def parts_at(ptr, m, part, CHUNK: tl.constexpr):
    """The parts (R,) of these numbers: line, begin, end, and whether a line has it."""
    chunk = (part // 2).to(ptr.dtype.element_ty)
    nse = tl.load(ptr + m)
    first = tl.minimum(chunk * CHUNK, nse - 1)
    stop = tl.minimum(chunk * CHUNK + CHUNK, nse)
    line = lines_of(ptr, m, tl.where(part % 2 == 0, first, stop - 1))
    begin, end = tl.load(ptr + line), tl.load(ptr + line + 1)
    one = (part % 2 == 0) | (begin > first)  # else the line of the last entry is that of the first
    there = (end - begin > CHUNK) & one & (chunk * CHUNK < nse)
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
def lines_of_program(ptr, m, P, R: tl.constexpr, CHUNK: tl.constexpr):
    """What a program reads, (R,) each: line, begin, end, where to store its result, whether to.

    The first P programs read parts of long lines, R of them, and the others R short lines.
    """
    if tl.program_id(0) < P:
        place = tl.program_id(0) * R + tl.arange(0, R)
        line, begin, end, there = parts_at(ptr, m, place, CHUNK)
    else:
        place = (tl.program_id(0) - P) * R + tl.arange(0, R)
        inside = place < m
        begin = tl.load(ptr + place, mask=inside, other=0)
        end = tl.load(ptr + place + 1, mask=inside, other=0)
        there = inside & (end - begin <= CHUNK)
        end = tl.where(there, end, begin)
        line = place.to(ptr.dtype.element_ty)
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
