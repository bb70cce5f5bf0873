"""The sums of long lines, from those of their parts."""

# pyright: reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from spgrad.kernels.triton.common.launch import blocks, power_of_two
from spgrad.kernels.triton.common.lines import LONG, first_part, long_line

MOST = 1024
"""Most columns that a program joins."""


@triton.jit
def join_parts_kernel(ptr, parts, y, m, n, N: tl.constexpr, CHUNK: tl.constexpr):
    """Adds the parts of each long line in their order: programs (chunks, columns, heads).

    parts (heads, 2 chunks, n); y (heads, m, n), of which rows of long lines are written.
    """
    line, begin, end = long_line(ptr, m, CHUNK)
    column = tl.program_id(1) * N + tl.arange(0, N)
    head = tl.program_id(2).to(tl.int64)
    if end > begin:
        inside = column < n
        own = parts + head * tl.num_programs(0) * 2 * n + column
        total = tl.load(own + first_part(begin, CHUNK).to(tl.int64) * n, mask=inside, other=0)
        at = tl.program_id(0).to(tl.int64) * 2 * n
        for _ in range(tl.program_id(0) + 1, (end - 1) // CHUNK + 1):
            at += 2 * n
            total += tl.load(own + at, mask=inside, other=0)
        tl.store(y + (head * m + line) * n + column, total, mask=inside)


def join_parts(ptr: Tensor, parts: Tensor, y: Tensor, chunk: int | None = None) -> None:
    """Writes the rows of y (*heads, m, n) whose lines are long, from parts (*heads, 2 chunks, n).

    `chunk` is the number of entries of a chunk, by default LONG.
    """
    (m, n), heads = y.shape[-2:], y.shape[:-2].numel()
    width = min(power_of_two(n), MOST)
    chunk = LONG.value if chunk is None else chunk
    grid = parts.shape[-2] // 2, blocks(n, width), heads
    join_parts_kernel[grid](ptr, parts, y, m, n, N=width, CHUNK=chunk)
