"""Triton spmm, sddmm, and both in one pass; the contracts are those of `reference.products.matmul`.

The kernels serve several heads too, whose values stand side by side: spmm and sddmm have one.
"""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from spgrad.kernels.declare import launched
from spgrad.kernels.reference.common.dtypes import accumulate_dtype
from spgrad.kernels.triton.common.launch import (
    Tile,
    blocks,
    elsewhere,
    part_programs,
    served,
    tile,
    warps,
)
from spgrad.kernels.triton.common.lines import (
    LONG,
    View,
    entries_of_step,
    lines_of_program,
    places,
)
from spgrad.kernels.triton.common.parts import join_parts

BOTH_MOST = 512
"""Most columns of both gradients in one pass: a program has a row of the first in registers."""


@triton.jit(do_not_specialize=["P"])
def spmm_kernel(
    view, val, x, y, parts, m, n, P, HEADS: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """N columns of y for the lines of a program, or of sums over parts of lines.

    val (nse, HEADS), x (k, n); y (m, n), parts (P R, n). Programs (P + lines, columns). Each lane
    of E adds what it reads; the lanes are added at the end.
    """
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    _, begin, end, place, there = lines_of_program(view.ptr, m, P, R, LONG)
    column = tl.program_id(1) * N + tl.arange(0, N)
    inside = column < n
    total = tl.zeros((R, E, N), ACC)
    for step in range(0, tl.max(end - begin), E):
        entry, near, live = entries_of_step(view, begin, end, step, E)
        value = places(view.perm, entry, live).to(tl.int64)
        loaded = live[:, :, None] & inside[None, None, :]
        if HEADS == 1:
            weight = tl.load(val + value, mask=live, other=0)[:, :, None]
        else:
            head = column // (n // HEADS)
            weight = tl.load(
                val + value[:, :, None] * HEADS + head[None, None, :], mask=loaded, other=0
            )
        row = tl.load(x + near[:, :, None] * n + column[None, None, :], mask=loaded, other=0)
        total += weight.to(ACC) * row.to(ACC)
    store_sums(y, parts, P, place, there, total, column, n)


@triton.jit
def store_sums(y, parts, P, place, there, total, column, n):
    """Writes the sums over the lanes of total (R, E, N) to the rows `place` of y, or of parts."""
    sums = tl.sum(total, 1)
    at = place[:, None].to(tl.int64) * n + column[None, :]
    mask = there[:, None] & (column < n)[None, :]
    if tl.program_id(0) < P:
        tl.store(parts + at, sums, mask=mask)
    else:
        tl.store(y + at, sums, mask=mask)


@triton.jit(do_not_specialize=["P"])
def sddmm_kernel(
    view, g, x, out, m, n, P, HEADS: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """The dot products of the lines of a program, or of parts of lines; out (nse, HEADS).

    g (m, HEADS n), x (k, HEADS n): here n is the columns of one head. Programs (P + lines, HEADS).
    """
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, _, _ = lines_of_program(view.ptr, m, P, R, LONG)
    head = tl.program_id(1)
    for step in range(0, tl.max(end - begin), E):
        entry, near, live = entries_of_step(view, begin, end, step, E)
        total = tl.zeros((R, E), ACC)
        for start in range(0, n, N):
            column = start + tl.arange(0, N)
            inside = column < n
            left = (line[:, None].to(tl.int64) * HEADS + head) * n + column[None, :]
            mine = (begin < end)[:, None] & inside[None, :]
            own = tl.load(g + left, mask=mine, other=0)[:, None, :]
            right = (near[:, :, None] * HEADS + head) * n + column[None, None, :]
            row = tl.load(x + right, mask=live[:, :, None] & inside[None, None, :], other=0)
            total += tl.sum(own.to(ACC) * row.to(ACC), 2)
        value = places(view.perm, entry, live).to(tl.int64)
        tl.store(out + value * HEADS + head, total, mask=live)


@triton.jit(do_not_specialize=["P"])
def spmm_sddmm_kernel(
    view, val, g, x, y, parts, out, m, n, P, R: tl.constexpr, E: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y and out of a program's lines; the rows of x are read once. Programs (P + lines,)."""
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, place, there = lines_of_program(view.ptr, m, P, R, LONG)
    column = tl.arange(0, N)
    inside = column < n
    mine = (begin < end)[:, None] & inside[None, :]
    own = tl.load(g + line[:, None].to(tl.int64) * n + column[None, :], mask=mine, other=0)
    own = own.to(ACC)[:, None, :]
    total = tl.zeros((R, E, N), ACC)
    for step in range(0, tl.max(end - begin), E):
        entry, near, live = entries_of_step(view, begin, end, step, E)
        value = places(view.perm, entry, live)
        weight = tl.load(val + value, mask=live, other=0).to(ACC)
        loaded = live[:, :, None] & inside[None, None, :]
        row = tl.load(x + near[:, :, None] * n + column[None, None, :], mask=loaded, other=0)
        row = row.to(ACC)
        total += weight[:, :, None] * row
        tl.store(out + value, tl.sum(own * row, 2), mask=live)
    store_sums(y, parts, P, place, there, total, column, n)


def _shape(nse: int, m: int, n: int, gathered: int, most: int = 128) -> tuple[Tile, dict[str, int]]:
    """The tile of a product with rows of n columns, and its warps.

    A warp has the whole tile, so that its lanes exchange nothing before the end. It has `gathered`
    elements, by which more of the memory's time is used; with rows of up to 128 bytes two warps
    share a tile. The numbers are the fastest of those that were tried on an H100.
    """
    if 16 < n <= 32:
        return tile(nse, m, n, 1024, most), warps(2)
    return tile(nse, m, n, gathered, most), warps(1)


def spmm_of_heads(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor, heads: int
) -> Tensor:
    """y (m, n) of `heads_spmm`, or with one head of `spmm`; memory for sums over parts of lines."""
    m, (nse,), n = ptr.shape[0] - 1, idx.shape, x.shape[1]
    y = x.new_empty(m, n)
    shape, options = _shape(nse, m, n, 512)
    programs = part_programs(ptr, nse, shape.lines)
    parts = x.new_empty(programs * shape.lines, n, dtype=accumulate_dtype(x.dtype))
    grid = programs + blocks(m, shape.lines), blocks(n, shape.columns)
    spmm_kernel[grid](
        View(ptr, idx, perm), val, x, y, parts, m, n, programs, heads, *shape, **options
    )
    if programs:
        join_parts(ptr, parts, y)
    return y


def sddmm_of_heads(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor, heads: int
) -> Tensor:
    """out (nse, heads) of `heads_sddmm`; of `sddmm` (nse,) with no heads."""
    m, (nse,) = ptr.shape[0] - 1, idx.shape
    out = x.new_empty(nse, heads) if heads else x.new_empty(nse)
    heads = heads or 1
    n = x.shape[1] // heads
    shape, options = _shape(nse, m, n, 1024 if n >= 32 else 512)
    programs = part_programs(ptr, nse, shape.lines)
    sddmm_kernel[programs + blocks(m, shape.lines), heads](
        View(ptr, idx, perm), g, x, out, m, n, programs, heads, *shape, **options
    )
    return out


@launched
def spmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    """`reference.products.matmul.spmm`."""
    if not served(x, val):
        return elsewhere("spmm", ptr, idx, perm, val, x)
    if x.dim() == 1:
        return spmm_of_heads(ptr, idx, perm, val, x[:, None], 1).view(-1)
    return spmm_of_heads(ptr, idx, perm, val, x, 1)


@launched
def sddmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor) -> Tensor:
    """`reference.products.matmul.sddmm`."""
    if not served(x, idx, g):
        return elsewhere("sddmm", ptr, idx, perm, g, x)
    return sddmm_of_heads(ptr, idx, perm, g, x, 0)


@launched
def spmm_sddmm(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, g: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """`reference.products.matmul.spmm_sddmm`; rows of more than 512 columns are read twice."""
    n = x.shape[1]
    if n > BOTH_MOST or not served(x, val, g):
        return spmm(ptr, idx, perm, val, x), sddmm(ptr, idx, perm, g, x)
    m, (nse,) = ptr.shape[0] - 1, idx.shape
    y, out = x.new_empty(m, n), x.new_empty(nse)
    shape, options = _shape(nse, m, n, 512, BOTH_MOST)
    programs = part_programs(ptr, nse, shape.lines)
    parts = x.new_empty(programs * shape.lines, n, dtype=accumulate_dtype(x.dtype))
    spmm_sddmm_kernel[programs + blocks(m, shape.lines),](
        View(ptr, idx, perm), val, g, x, y, parts, out, m, n, programs, *shape, **options
    )
    if programs:
        join_parts(ptr, parts, y)
    return y, out
