"""The sums of long lines, from those of their parts."""

# pyright: reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from spgrad.kernels.triton.common.launch import blocks, power_of_two, warps
from spgrad.kernels.triton.common.lines import LONG, first_part, long_line

MOST, TILE = 1024, 2048
"""Most columns that a program joins, and most elements that it reads at a time."""


@triton.jit
def join_parts_kernel(
    ptr, parts, y, m, n, C: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Adds the parts of each long line, C at a time: programs (chunks, columns, heads).

    parts (heads, 2 chunks, n); y (heads, m, n), of which rows of long lines are written.
    """
    line, begin, end = long_line(ptr, m, CHUNK)
    column = tl.program_id(1) * N + tl.arange(0, N)
    head = tl.program_id(2).to(tl.int64)
    if end > begin:
        first, chunk = first_part(begin, CHUNK).to(tl.int64), tl.program_id(0).to(tl.int64)
        count = (end - 1) // CHUNK + 1 - tl.program_id(0)
        total = tl.zeros((N,), parts.dtype.element_ty)
        for step in range(0, count, C):
            number = step + tl.arange(0, C)
            part = tl.where(number == 0, first, 2 * (chunk + number))
            at = (head * tl.num_programs(0) * 2 + part)[:, None] * n + column[None, :]
            inside = (number < count)[:, None] & (column < n)[None, :]
            total += tl.sum(tl.load(parts + at, mask=inside, other=0), 0)
        tl.store(y + (head * m + line) * n + column, total, mask=column < n)


def join_parts(ptr: Tensor, parts: Tensor, y: Tensor, chunk: int | None = None) -> None:
    """Writes the rows of y (*heads, m, n) whose lines are long, from parts (*heads, 2 chunks, n).

    `chunk` is the number of entries of a chunk, by default LONG.
    """
    (m, n), heads = y.shape[-2:], y.shape[:-2].numel()
    width = min(power_of_two(n), MOST)
    chunk = LONG.value if chunk is None else chunk
    grid = parts.shape[-2] // 2, blocks(n, width), heads
    shape = {"C": TILE // width, "N": width, "CHUNK": chunk}
    join_parts_kernel[grid](ptr, parts, y, m, n, **shape, **warps(4))
