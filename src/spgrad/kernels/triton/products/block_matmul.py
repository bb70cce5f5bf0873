"""Triton block_spmm and block_sddmm; the contracts are those of `reference.products.block_matmul`.

Tiles of blocks are multiplied by `tl.dot`: float16 and bfloat16 by the matrix units of a device,
with sums in float32; float32 without rounding to a shorter dtype. float64 is answered elsewhere.
Tiles are powers of two of at least 16, and what a block does not fill is masked. A larger block is
several tiles, so blocks may have any size. Lines of more than 128 blocks are cut into parts, whose
sums another kernel adds.
"""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from spgrad.kernels.declare import launched
from spgrad.kernels.triton.common.launch import (
    blocks,
    chunks,
    elsewhere,
    power_of_two,
    served,
    warps,
)
from spgrad.kernels.triton.common.lines import View, line_of, lines_of_program, places
from spgrad.kernels.triton.common.parts import join_parts

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
"""Whether kernels are interpreted, where bfloat16 is stored as integers that `tl.dot` takes."""
LEAST, MOST = 16, 64
"""Least and most lines or columns of a tile."""
LONG_BLOCKS = tl.constexpr(128)
"""Blocks of a chunk, and most blocks of a short line."""
SUMS = 4096
"""Most sums of a tile: 32 in registers of each of 128 threads."""


@triton.jit
def multiplied(left, right, total):
    """total (M, N) + left (M, K) right (K, N), in the dtype of the operands with float32 sums."""
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, total, input_precision="ieee")


@triton.jit(do_not_specialize=["P"])
def block_spmm_kernel(
    view, val, x, y, m, n, P, BL: tl.constexpr, BW: tl.constexpr, TRANSPOSED: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """M rows and N columns of y for a short line of blocks, or of sums over a part of a long one.

    A step multiplies K elements along the width of the line: the elements of several blocks side by
    side, or a part of a wide block. Programs (lines or parts, columns, parts of the lines of a
    block).
    """
    SIDE: tl.constexpr = max(K // BW, 1)  # blocks of a step
    STEPS: tl.constexpr = (BW + K - 1) // K  # steps of a block
    _, begins, ends, place, filled = lines_of_program(view.ptr, m, P, 1, LONG_BLOCKS)
    begin, end, line = tl.sum(begins), tl.sum(ends), tl.sum(place)
    there = tl.sum(filled.to(tl.int32)) > 0
    own = tl.program_id(2) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    mine, inside = own < tl.where(there, BL, 0), column < n
    total = tl.zeros((M, N), tl.float32)
    for step in range(tl.cdiv(end - begin, SIDE) * STEPS):
        flat = step % STEPS * K + tl.arange(0, K)
        entry = begin + step // STEPS * SIDE + flat // BW
        other = flat % BW
        live = (flat < SIDE * BW) & (entry < end)
        near = tl.load(view.idx + entry, mask=live, other=0).to(tl.int64) * BW + other
        value = places(view.perm, entry, live).to(tl.int64) * (BL * BW)
        if TRANSPOSED:
            at = (value + other * BL)[None, :] + own[:, None]
        else:
            at = (value + other)[None, :] + own[:, None] * BW
        block = tl.load(val + at, mask=mine[:, None] & live[None, :], other=0)
        at = near[:, None] * n + column[None, :]
        rows = tl.load(x + at, mask=live[:, None] & inside[None, :], other=0)
        total = multiplied(block, rows, total)
    at = (line.to(tl.int64) * BL + own)[:, None] * n + column[None, :]
    tl.store(y + at, total, mask=mine[:, None] & inside[None, :])


@triton.jit
def block_sddmm_kernel(
    view, g, x, out, m, n, BL: tl.constexpr, BW: tl.constexpr, TRANSPOSED: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """M lines and N columns of one block of out: programs (blocks, parts by lines, by columns).

    A step multiplies K columns of g and x.
    """
    entry = tl.program_id(0)
    line = line_of(view.ptr, m, entry).to(tl.int64)
    near = tl.load(view.idx + entry).to(tl.int64)
    own = tl.program_id(1) * M + tl.arange(0, M)
    other = tl.program_id(2) * N + tl.arange(0, N)
    mine, theirs = own < BL, other < BW
    left, right = (line * BL + own) * n, (near * BW + other) * n
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, n, K):
        column = start + tl.arange(0, K)
        inside = column < n
        at = left[:, None] + column[None, :]
        rows = tl.load(g + at, mask=mine[:, None] & inside[None, :], other=0)
        at = right[None, :] + column[:, None]
        others = tl.load(x + at, mask=theirs[None, :] & inside[:, None], other=0)
        total = multiplied(rows, others, total)
    value = places(view.perm, entry, True).to(tl.int64) * (BL * BW)
    if TRANSPOSED:
        at = value + other[None, :] * BL + own[:, None]
    else:
        at = value + own[:, None] * BW + other[None, :]
    tl.store(out + at, total, mask=mine[:, None] & theirs[None, :])


def _size(n: int, most: int = MOST) -> int:
    """Lines or columns of a tile that covers n, or a part of them."""
    return min(max(power_of_two(n), LEAST), most)


def _options(dtype: torch.dtype, lines: int, columns: int) -> dict[str, int]:
    """K, 64 bytes in a row, and four warps at most, each with 256 sums of the tile or more."""
    return {
        "K": 32 if dtype.itemsize == 2 else 16,
        **warps(min(max(lines * columns // 256, 1), 4)),
    }


@launched
def block_spmm(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    x: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
) -> Tensor:
    """`reference.products.block_matmul.block_spmm`; memory for sums over parts of long lines."""
    if x.dtype == torch.float64 or not served(x, val):
        args = ptr, idx, perm, val, x, block_lines, block_width, transposed
        return elsewhere("block_spmm", *args)
    lines, n = ptr.shape[0] - 1, x.shape[1]
    y = x.new_empty(lines * block_lines, n)
    m = _size(block_lines)
    width = _size(n, min(SUMS // m, 128))
    view, across, down = View(ptr, idx, perm), blocks(n, width), blocks(block_lines, m)
    shape = block_lines, block_width, transposed
    options = {"M": m, "N": width, **_options(x.dtype, m, width)}
    block_spmm_kernel[lines, across, down](view, val, x, y, lines, n, 0, *shape, **options)
    parts = 2 * chunks(ptr, idx.shape[0], LONG_BLOCKS.value)
    if parts:
        sums = x.new_empty(parts, block_lines * n, dtype=torch.float32)
        block_spmm_kernel[parts, across, down](
            view, val, x, sums, lines, n, parts, *shape, **options
        )
        join_parts(ptr, sums, y.view(lines, block_lines * n), LONG_BLOCKS.value)
    return y


@launched
def block_sddmm(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    g: Tensor,
    x: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
) -> Tensor:
    """`reference.products.block_matmul.block_sddmm`; a program forms a block, or a part of one."""
    if x.dtype == torch.float64 or not served(x, idx, g):
        args = ptr, idx, perm, g, x, block_lines, block_width, transposed
        return elsewhere("block_sddmm", *args)
    nb = idx.shape[0]
    out = x.new_empty(nb * block_lines * block_width)
    m, width = _size(block_lines), _size(block_width)
    block_sddmm_kernel[nb, blocks(block_lines, m), blocks(block_width, width)](
        View(ptr, idx, perm), g, x, out, ptr.shape[0] - 1, x.shape[1],
        block_lines, block_width, transposed,
        M=m, N=width, **_options(x.dtype, m, width),
    )  # fmt: skip
    return out
