"""Triton softmax of segments, and its gradient; contracts: `reference.reductions.softmax`."""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgrad.kernels.declare import launched
from spgrad.kernels.triton.common.launch import (
    Tile,
    blocks,
    chunks,
    elsewhere,
    power_of_two,
    served,
    tile,
)
from spgrad.kernels.triton.common.lines import (
    LONG_LINES,
    SHORT_LINES,
    lines_of_program,
    places,
)

LONG_COLUMNS = 32
"""Most columns that a program reads of a long segment, so that a segment has several programs."""
LONG_BYTES = 16 * 1024
"""Of a tile of a long segment, counted in the dtype that sums are formed in."""
WARPS, LONG_WARPS = 8, 16
"""Of a program for short segments, and for a long one: a thread keeps several tiles, and has eight
elements of each at most."""


@triton.jit
def elements(perm, begin, end, step, n, E: tl.constexpr, N: tl.constexpr):
    """Where the elements of E entries of each line in N columns stand, and which there are."""
    entry = begin[:, None] + step + tl.arange(0, E)[None, :]
    live = entry < end[:, None]
    column = tl.program_id(1) * N + tl.arange(0, N)
    value = places(perm, entry, live).to(tl.int64)
    at = value[:, :, None] * n + column[None, None, :]
    return at, live[:, :, None] & (column < n)[None, None, :]


@triton.jit
def softmax_of(x, largest, total, LOG: tl.constexpr):
    """The results for elements, from the maximum of their line and the sum of exponentials."""
    return x - largest - tl.log(total) if LOG else tl.exp(x - largest) / total


@triton.jit
def gradient_of(y, g, total, LOG: tl.constexpr):
    """The gradients of elements, from the sum over their line."""
    return g - tl.exp(y) * total if LOG else y * (g - total)


@triton.jit
def segment_softmax_kernel(
    ptr, perm, val, out, m, n, LOG: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    N: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The softmax of a program's lines in N columns; val, out (nse, n). Programs (lines, columns).

    A line is read in strides of E entries, and each of the E keeps the largest that it has met and
    the sum of the exponentials beside that; they are joined at the end. What was read first stays,
    so that a line of at most E entries is read once.
    """
    ACC: tl.constexpr = tl.float64 if val.dtype.element_ty == tl.float64 else tl.float32
    _, begin, end, _, _ = lines_of_program(ptr, m, R, KIND)
    most = tl.max(end - begin)
    if most > 0:
        at, there = elements(perm, begin, end, 0, n, E, N)
        first = tl.load(val + at, mask=there, other=float("-inf")).to(ACC)
        largest, total = first, tl.full((R, E, N), 1, ACC)
        for step in range(E, most, E):
            place, loaded = elements(perm, begin, end, step, n, E, N)
            x = tl.load(val + place, mask=loaded, other=float("-inf")).to(ACC)
            gap = tl.where(x == largest, 0, tl.abs(x - largest))  # infinities are equal, too
            term = tl.exp(-gap)
            total = tl.where(x > largest, total * term + 1, total + term)
            largest = tl.where(x > largest, x, largest)
        # An infinity that is the largest of its line, or a NaN, makes the sum NaN here
        top = tl.max(largest, 1, keep_dims=True)
        total = tl.sum(total * tl.exp(largest - top), 1, keep_dims=True)
        tl.store(out + at, softmax_of(first, top, total, LOG), mask=there)
        for step in range(E, most, E):
            place, loaded = elements(perm, begin, end, step, n, E, N)
            x = tl.load(val + place, mask=loaded, other=float("-inf")).to(ACC)
            tl.store(out + place, softmax_of(x, top, total, LOG), mask=loaded)


@triton.jit
def segment_softmax_backward_kernel(
    ptr, perm, out, g, grad, m, n, LOG: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    N: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The gradients of a program's lines in N columns: out, g and grad (nse, n)."""
    ACC: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    _, begin, end, _, _ = lines_of_program(ptr, m, R, KIND)
    most = tl.max(end - begin)
    if most > 0:
        at, there = elements(perm, begin, end, 0, n, E, N)
        y = tl.load(out + at, mask=there, other=0).to(ACC)
        first = tl.load(g + at, mask=there, other=0).to(ACC)
        sums = first if LOG else y * first
        for step in range(E, most, E):
            place, loaded = elements(perm, begin, end, step, n, E, N)
            x = tl.load(g + place, mask=loaded, other=0).to(ACC)
            if not LOG:
                x *= tl.load(out + place, mask=loaded, other=0).to(ACC)
            sums += x
        total = tl.sum(sums, 1, keep_dims=True)
        tl.store(grad + at, gradient_of(y, first, total, LOG), mask=there)
        for step in range(E, most, E):
            place, loaded = elements(perm, begin, end, step, n, E, N)
            y = tl.load(out + place, mask=loaded, other=0).to(ACC)
            x = tl.load(g + place, mask=loaded, other=0).to(ACC)
            tl.store(grad + place, gradient_of(y, x, total, LOG), mask=loaded)


def _over_segments(
    device_function: Any, ptr: Tensor, perm: Tensor | None, operands: tuple[Tensor, ...], log: bool
) -> Tensor:
    """Launches it for short and for long segments; what it writes, of the operands' shape."""
    val = operands[0]
    out = torch.empty_like(val)
    m, nse, n = ptr.shape[0] - 1, val.shape[0], val.shape[1:].numel()
    shape = tile(nse, m, n)
    device_function[blocks(m, shape.lines), blocks(n, shape.columns)](
        ptr, perm, *operands, out, m, n, log, *shape, KIND=SHORT_LINES.value, num_warps=WARPS
    )
    if chunks(nse):
        width = min(power_of_two(n), LONG_COLUMNS)
        shape = Tile(1, LONG_BYTES // (width * max(val.itemsize, 4)), width)
        device_function[chunks(nse), blocks(n, width)](
            ptr, perm, *operands, out, m, n, log, *shape,
            KIND=LONG_LINES.value, num_warps=LONG_WARPS,
        )  # fmt: skip
    return out


@launched
def segment_softmax(ptr: Tensor, perm: Tensor | None, val: Tensor, log: bool) -> Tensor:
    """`reference.reductions.softmax.segment_softmax`."""
    if not served(val):
        return elsewhere("segment_softmax", ptr, perm, val, log)
    return _over_segments(segment_softmax_kernel, ptr, perm, (val,), log)


@launched
def segment_softmax_backward(
    ptr: Tensor, perm: Tensor | None, out: Tensor, g: Tensor, log: bool
) -> Tensor:
    """`reference.reductions.softmax.segment_softmax_backward`."""
    if not served(out, g):
        return elsewhere("segment_softmax_backward", ptr, perm, out, g, log)
    return _over_segments(segment_softmax_backward_kernel, ptr, perm, (out, g), log)
