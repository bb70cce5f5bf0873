"""Triton softmax of segments, and its gradient; contracts: `reference.reductions.softmax`.

A program reads several short segments. Of long ones, programs first reduce the parts that chunks
have of them; then others, one for each chunk again, join the numbers of all parts of a segment and
write the results of their own part.
"""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgrad.kernels.declare import launched
from spgrad.kernels.reference.common.dtypes import accumulate_dtype
from spgrad.kernels.triton.common.launch import (
    blocks,
    chunks,
    elsewhere,
    power_of_two,
    served,
    tile,
    warps,
)
from spgrad.kernels.triton.common.lines import first_part, lines_of_program, places

LONG = tl.constexpr(1024)
"""Elements of a chunk, and most of a short segment: nothing is gathered, so it may be longer."""
ELEMENTS = 2048
"""Of a tile."""
PART_COLUMNS, PART_ENTRIES = 32, 1024
"""Most columns and entries that a program reads of a part of a long segment at a time."""
OPTIONS = warps(8)
"""Of every launch: a thread keeps several tiles, and has eight elements of each."""


@triton.jit
def elements(perm, begin, end, step, n, E: tl.constexpr, N: tl.constexpr):
    """Places of the elements of E entries of each line in N columns, and which elements exist."""
    entry = begin[:, None] + step + tl.arange(0, E)[None, :]
    live = entry < end[:, None]
    column = tl.program_id(1) * N + tl.arange(0, N)
    value = places(perm, entry, live).to(tl.int64)
    at = value[:, :, None] * n + column[None, None, :]
    return at, live[:, :, None] & (column < n)[None, None, :]


@triton.jit
def softmax_of(x, largest, total, LOG: tl.constexpr):
    """The results of elements, from the maximum and the sum of exponentials of their line."""
    return x - largest - tl.log(total) if LOG else tl.exp(x - largest) / total


@triton.jit
def gradient_of(y, g, total, LOG: tl.constexpr):
    """The gradients of elements, from the sum over their line."""
    return g - tl.exp(y) * total if LOG else y * (g - total)


@triton.jit
def exponentials(perm, val, begin, end, n, E: tl.constexpr, N: tl.constexpr, ACC: tl.constexpr):
    """First elements (R, E, N) of lines, the largest, and the sum of exponentials relative to it.

    A line is read E entries at a time. Each of the E lanes keeps the largest element that it has
    read and the sum of the exponentials relative to it. At the end the lanes are joined, both
    results (R, 1, N).
    """
    at, there = elements(perm, begin, end, 0, n, E, N)
    first = tl.load(val + at, mask=there, other=float("-inf")).to(ACC)
    largest, total = first, tl.full(first.shape, 1, ACC)
    for step in range(E, tl.max(end - begin), E):
        at, there = elements(perm, begin, end, step, n, E, N)
        x = tl.load(val + at, mask=there, other=float("-inf")).to(ACC)
        largest, total = more_exponentials(largest, total, x, 1)
    top = tl.max(largest, 1, keep_dims=True)
    gap = tl.where(largest == top, 0, largest - top)  # infinities are equal, too
    return first, top, tl.sum(total * tl.exp(gap), 1, keep_dims=True)


@triton.jit
def more_exponentials(largest, total, x, sums):
    """The largest number, and the sum of exponentials beside it, with those of others."""
    gap = tl.where(x == largest, 0, tl.abs(x - largest))  # infinities are equal, too
    term = tl.exp(-gap)
    total = tl.where(x > largest, total * term + sums, total + sums * term)
    return tl.where(x > largest, x, largest), total


@triton.jit
def of_finite(top, total):
    """The sum of exponentials, NaN where the largest number is infinite."""
    return tl.where(tl.abs(top) == float("inf"), float("nan"), total)


@triton.jit
def segment_softmax_kernel(
    ptr, perm, val, out, m, n, LOG: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """The softmax of a program's lines in N columns; val, out (nse, n). Programs (lines, columns).

    The first elements of a line are kept, so a line of at most E entries is read once.
    """
    ACC: tl.constexpr = tl.float64 if val.dtype.element_ty == tl.float64 else tl.float32
    _, begin, end, _, _ = lines_of_program(ptr, m, 0, R, LONG)
    most = tl.max(end - begin)
    if most > 0:
        first, top, total = exponentials(perm, val, begin, end, n, E, N, ACC)
        total = of_finite(top, total)
        at, there = elements(perm, begin, end, 0, n, E, N)
        tl.store(out + at, softmax_of(first, top, total, LOG), mask=there)
        for step in range(E, most, E):
            at, there = elements(perm, begin, end, step, n, E, N)
            x = tl.load(val + at, mask=there, other=float("-inf")).to(ACC)
            tl.store(out + at, softmax_of(x, top, total, LOG), mask=there)


@triton.jit
def slots(place, there, n, N: tl.constexpr):
    """Places of the numbers of parts (2, 1, N) among those of all parts, and which parts exist."""
    column = tl.program_id(1) * N + tl.arange(0, N)
    at = place.to(tl.int64)[:, None] * n + column[None, :]
    return at[:, None, :], (there[:, None] & (column < n)[None, :])[:, None, :]


@triton.jit
def count_parts(ptr, line, there):
    """The chunk where each line begins, the number of its first part, and how many it has."""
    begin = tl.load(ptr + line)
    last = (tl.load(ptr + line + 1) - 1) // LONG
    return begin // LONG, first_part(begin, LONG), tl.where(there, last - begin // LONG + 1, 0)


@triton.jit
def softmax_parts_kernel(
    ptr, perm, val, largest, total, m, n, E: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The largest element of a chunk's parts of long lines, and the sum of exponentials beside it.

    largest and total are (2 chunks, n). Programs (chunks, columns).
    """
    _, begin, end, place, there = lines_of_program(ptr, m, tl.num_programs(0), 2, LONG)
    if tl.max(end - begin) > 0:
        ACC: tl.constexpr = total.dtype.element_ty
        _first, top, sums = exponentials(perm, val, begin, end, n, E, N, ACC)
        at, stored = slots(place, there, n, N)
        tl.store(largest + at, top, mask=stored)
        tl.store(total + at, sums, mask=stored)


@triton.jit
def softmax_of_parts_kernel(
    ptr, perm, val, largest, total, out, m, n, LOG: tl.constexpr, E: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The softmax of a chunk's parts of long lines, from the numbers of all parts of these lines.

    Every program of a line joins them in their order. Programs (chunks, columns).
    """
    ACC: tl.constexpr = total.dtype.element_ty
    line, begin, end, _, mine = lines_of_program(ptr, m, tl.num_programs(0), 2, LONG)
    most = tl.max(end - begin)
    if most > 0:
        chunk, first, count = count_parts(ptr, line, mine)
        at, found = slots(first, mine, n, N)
        top = tl.load(largest + at, mask=found, other=0)
        sums = tl.load(total + at, mask=found, other=1)
        for step in range(1, tl.max(count)):
            at, found = slots(2 * (chunk + step), step < count, n, N)
            x = tl.load(largest + at, mask=found, other=float("-inf"))
            more = tl.load(total + at, mask=found, other=0)
            top, sums = more_exponentials(top, sums, x, more)
        sums = of_finite(top, sums)
        for step in range(0, most, E):
            place, there = elements(perm, begin, end, step, n, E, N)
            x = tl.load(val + place, mask=there, other=float("-inf")).to(ACC)
            tl.store(out + place, softmax_of(x, top, sums, LOG), mask=there)


@triton.jit
def sums_of(perm, out, g, begin, end, n, LOG: tl.constexpr, E: tl.constexpr, N: tl.constexpr,
            ACC: tl.constexpr):  # fmt: skip
    """The first out and g of lines (R, E, N), and the sums (R, 1, N) of g, or of out g."""
    at, there = elements(perm, begin, end, 0, n, E, N)
    y = tl.load(out + at, mask=there, other=0).to(ACC)
    first = tl.load(g + at, mask=there, other=0).to(ACC)
    sums = first if LOG else y * first
    for step in range(E, tl.max(end - begin), E):
        at, there = elements(perm, begin, end, step, n, E, N)
        x = tl.load(g + at, mask=there, other=0).to(ACC)
        if not LOG:
            x *= tl.load(out + at, mask=there, other=0).to(ACC)
        sums += x
    return y, first, tl.sum(sums, 1, keep_dims=True)


@triton.jit
def segment_softmax_backward_kernel(
    ptr, perm, out, g, grad, m, n, LOG: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """The gradients of a program's lines in N columns: out, g and grad (nse, n)."""
    ACC: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    _, begin, end, _, _ = lines_of_program(ptr, m, 0, R, LONG)
    most = tl.max(end - begin)
    if most > 0:
        y, first, total = sums_of(perm, out, g, begin, end, n, LOG, E, N, ACC)
        at, there = elements(perm, begin, end, 0, n, E, N)
        tl.store(grad + at, gradient_of(y, first, total, LOG), mask=there)
        for step in range(E, most, E):
            at, there = elements(perm, begin, end, step, n, E, N)
            y = tl.load(out + at, mask=there, other=0).to(ACC)
            x = tl.load(g + at, mask=there, other=0).to(ACC)
            tl.store(grad + at, gradient_of(y, x, total, LOG), mask=there)


@triton.jit
def softmax_backward_parts_kernel(
    ptr, perm, out, g, total, m, n, LOG: tl.constexpr, E: tl.constexpr, N: tl.constexpr
):
    """The sums over a chunk's parts of long lines: total (2 chunks, n). Programs as the others."""
    _, begin, end, place, there = lines_of_program(ptr, m, tl.num_programs(0), 2, LONG)
    if tl.max(end - begin) > 0:
        ACC: tl.constexpr = total.dtype.element_ty
        _y, _first, sums = sums_of(perm, out, g, begin, end, n, LOG, E, N, ACC)
        at, stored = slots(place, there, n, N)
        tl.store(total + at, sums, mask=stored)


@triton.jit
def softmax_backward_of_parts_kernel(
    ptr, perm, out, g, total, grad, m, n, LOG: tl.constexpr, E: tl.constexpr, N: tl.constexpr
):
    """The gradients of a chunk's parts of long lines, from the sums over all their parts."""
    ACC: tl.constexpr = total.dtype.element_ty
    line, begin, end, _, mine = lines_of_program(ptr, m, tl.num_programs(0), 2, LONG)
    most = tl.max(end - begin)
    if most > 0:
        chunk, first, count = count_parts(ptr, line, mine)
        at, found = slots(first, mine, n, N)
        sums = tl.load(total + at, mask=found, other=0)
        for step in range(1, tl.max(count)):
            at, found = slots(2 * (chunk + step), step < count, n, N)
            sums += tl.load(total + at, mask=found, other=0)
        for step in range(0, most, E):
            place, there = elements(perm, begin, end, step, n, E, N)
            y = tl.load(out + place, mask=there, other=0).to(ACC)
            x = tl.load(g + place, mask=there, other=0).to(ACC)
            tl.store(grad + place, gradient_of(y, x, sums, LOG), mask=there)


def _sizes(ptr: Tensor, val: Tensor) -> tuple[int, int, int]:
    """Segments, entries and columns."""
    return ptr.shape[0] - 1, val.shape[0], val.shape[1:].numel()


def _part_shape(n: int) -> tuple[int, int]:
    """Entries and columns that a program reads of two parts of long segments at a time."""
    width = min(power_of_two(n), PART_COLUMNS)
    return min(ELEMENTS // (2 * width), PART_ENTRIES), width


def _softmax(ptr: Tensor, perm: Tensor | None, val: Tensor, log: bool) -> Tensor:
    m, nse, n = _sizes(ptr, val)
    out, shape = torch.empty_like(val), tile(nse, m, n, ELEMENTS)
    segment_softmax_kernel[blocks(m, shape.lines), blocks(n, shape.columns)](
        ptr, perm, val, out, m, n, log, *shape, **OPTIONS
    )
    if parts_in := chunks(ptr, nse, LONG.value):
        shape = _part_shape(n)
        grid = parts_in, blocks(n, shape[1])
        largest, total = val.new_empty(2, 2 * parts_in, n, dtype=accumulate_dtype(val.dtype))
        parts = ptr, perm, val, largest, total
        softmax_parts_kernel[grid](*parts, m, n, *shape, **OPTIONS)
        softmax_of_parts_kernel[grid](*parts, out, m, n, log, *shape, **OPTIONS)
    return out


def _softmax_backward(
    ptr: Tensor, perm: Tensor | None, out: Tensor, g: Tensor, log: bool
) -> Tensor:
    m, nse, n = _sizes(ptr, out)
    grad, shape = torch.empty_like(out), tile(nse, m, n, ELEMENTS)
    segment_softmax_backward_kernel[blocks(m, shape.lines), blocks(n, shape.columns)](
        ptr, perm, out, g, grad, m, n, log, *shape, **OPTIONS
    )
    if parts_in := chunks(ptr, nse, LONG.value):
        shape = _part_shape(n)
        grid = parts_in, blocks(n, shape[1])
        total = out.new_empty(2 * parts_in, n, dtype=accumulate_dtype(out.dtype))
        parts = ptr, perm, out, g, total
        softmax_backward_parts_kernel[grid](*parts, m, n, log, *shape, **OPTIONS)
        softmax_backward_of_parts_kernel[grid](*parts, grad, m, n, log, *shape, **OPTIONS)
    return grad


@launched
def segment_softmax(ptr: Tensor, perm: Tensor | None, val: Tensor, log: bool) -> Tensor:
    """`reference.reductions.softmax.segment_softmax`."""
    if not served(val):
        return elsewhere("segment_softmax", ptr, perm, val, log)
    return _softmax(ptr, perm, val, log)


@launched
def segment_softmax_backward(
    ptr: Tensor, perm: Tensor | None, out: Tensor, g: Tensor, log: bool
) -> Tensor:
    """`reference.reductions.softmax.segment_softmax_backward`."""
    if not served(out, g):
        return elsewhere("segment_softmax_backward", ptr, perm, out, g, log)
    return _softmax_backward(ptr, perm, out, g, log)
