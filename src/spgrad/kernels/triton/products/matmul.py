"""Triton spmm, sddmm, and both in one pass; the contracts are those of `reference.products.matmul`.

The kernels serve several heads too, whose values stand side by side: spmm and sddmm have one.
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
    part_tile,
    served,
    tile,
)
from spgrad.kernels.triton.common.lines import (
    PARTS,
    SHORT_LINES,
    View,
    lines_of_program,
    padded,
    places,
)
from spgrad.kernels.triton.common.parts import join_parts

BOTH_MOST = 512
"""Most columns of both gradients in one pass: a program has a row of the first in registers."""


@triton.jit
def spmm_kernel(
    view, val, x, y, m, n, HEADS: tl.constexpr, R: tl.constexpr, E: tl.constexpr, N: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """N columns of y for the lines of a program, or of sums over parts of lines.

    val (nse, HEADS), x (k, n); y (m, n), or (2 chunks, n) for PARTS. Programs (lines, columns).
    """
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    _, begin, end, place, there = lines_of_program(view.ptr, m, R, KIND)
    column = tl.program_id(1) * N + tl.arange(0, N)
    inside = column < n
    total = tl.zeros((R, N), ACC)
    for step in range(0, tl.max(end - begin), E):
        entry = begin[:, None] + step + tl.arange(0, E)[None, :]
        live = entry < end[:, None]
        near = tl.load(view.idx + entry, mask=live, other=0).to(tl.int64)
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
        total += tl.sum(weight.to(ACC) * row.to(ACC), 1)
    at = place[:, None].to(tl.int64) * n + column[None, :]
    tl.store(y + at, total, mask=there[:, None] & inside[None, :])


@triton.jit
def sddmm_kernel(
    view, g, x, out, m, n, HEADS: tl.constexpr, R: tl.constexpr, E: tl.constexpr, N: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """The dot products of the lines of a program, or of parts of lines; out (nse, HEADS).

    g (m, HEADS n), x (k, HEADS n): here n is the columns of one head. Programs (lines, HEADS).
    """
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, _, _ = lines_of_program(view.ptr, m, R, KIND)
    head = tl.program_id(1)
    for step in range(0, tl.max(end - begin), E):
        entry = begin[:, None] + step + tl.arange(0, E)[None, :]
        live = entry < end[:, None]
        near = tl.load(view.idx + entry, mask=live, other=0).to(tl.int64)
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


@triton.jit
def spmm_sddmm_kernel(
    view, val, g, x, y, out, m, n: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """y and out of a program's lines; the rows of x are read once. Programs (lines,)."""
    N: tl.constexpr = padded(n)
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, place, there = lines_of_program(view.ptr, m, R, KIND)
    column = tl.arange(0, N)
    inside = column < n
    mine = (begin < end)[:, None] & inside[None, :]
    own = tl.load(g + line[:, None].to(tl.int64) * n + column[None, :], mask=mine, other=0)
    own = own.to(ACC)[:, None, :]
    total = tl.zeros((R, N), ACC)
    for step in range(0, tl.max(end - begin), E):
        entry = begin[:, None] + step + tl.arange(0, E)[None, :]
        live = entry < end[:, None]
        near = tl.load(view.idx + entry, mask=live, other=0).to(tl.int64)
        value = places(view.perm, entry, live)
        weight = tl.load(val + value, mask=live, other=0).to(ACC)
        loaded = live[:, :, None] & inside[None, None, :]
        row = tl.load(x + near[:, :, None] * n + column[None, None, :], mask=loaded, other=0)
        row = row.to(ACC)
        total += tl.sum(weight[:, :, None] * row, 1)
        tl.store(out + value, tl.sum(own * row, 2), mask=live)
    at = place[:, None].to(tl.int64) * n + column[None, :]
    tl.store(y + at, total, mask=there[:, None] & inside[None, :])


def spmm_of_heads(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor, heads: int
) -> Tensor:
    """y (m, n) of `heads_spmm`, or with one head of `spmm`; memory for sums over parts of lines."""
    m, (nse,), n = ptr.shape[0] - 1, idx.shape, x.shape[1]
    y = x.new_empty(m, n)
    view, shape = View(ptr, idx, perm), tile(nse, m, n)
    grid = blocks(m, shape.lines), blocks(n, shape.columns)
    spmm_kernel[grid](view, val, x, y, m, n, heads, *shape, KIND=SHORT_LINES.value)
    if chunks(nse):
        parts = x.new_empty(2 * chunks(nse), n, dtype=accumulate_dtype(x.dtype))
        shape = part_tile(n)
        grid = chunks(nse), blocks(n, shape.columns)
        spmm_kernel[grid](view, val, x, parts, m, n, heads, *shape, KIND=PARTS.value)
        join_parts(ptr, parts, y)
    return y


def sddmm_of_heads(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor, heads: int
) -> Tensor:
    """out (nse, heads) of `heads_sddmm`, or with one head of `sddmm`."""
    m, (nse,), n = ptr.shape[0] - 1, idx.shape, x.shape[1] // heads
    out = x.new_empty(nse, heads)
    view, shape = View(ptr, idx, perm), tile(nse, m, n)
    sddmm_kernel[blocks(m, shape.lines), heads](
        view, g, x, out, m, n, heads, *shape, KIND=SHORT_LINES.value
    )
    if chunks(nse):
        sddmm_kernel[chunks(nse), heads](
            view, g, x, out, m, n, heads, *part_tile(n), KIND=PARTS.value
        )
    return out


@launched
def spmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    """`reference.products.matmul.spmm`."""
    if not served(x, val):
        return elsewhere("spmm", ptr, idx, perm, val, x)
    return spmm_of_heads(ptr, idx, perm, val, x, 1)


@launched
def sddmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor) -> Tensor:
    """`reference.products.matmul.sddmm`."""
    if not served(x, idx, g):
        return elsewhere("sddmm", ptr, idx, perm, g, x)
    return sddmm_of_heads(ptr, idx, perm, g, x, 1).view(-1)


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
    view, shape = View(ptr, idx, perm), tile(nse, m, n, BOTH_MOST)
    spmm_sddmm_kernel[blocks(m, shape.lines),](
        view, val, g, x, y, out, m, n, shape.lines, shape.entries, KIND=SHORT_LINES.value
    )
    if chunks(nse):
        parts = torch.empty(2 * chunks(nse), n, dtype=accumulate_dtype(x.dtype), device=x.device)
        shape = part_tile(n, BOTH_MOST)
        spmm_sddmm_kernel[chunks(nse),](
            view, val, g, x, parts, out, m, n, shape.lines, shape.entries, KIND=PARTS.value
        )
        join_parts(ptr, parts, y)
    return y, out
