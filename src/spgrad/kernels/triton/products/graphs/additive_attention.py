"""Triton attention whose scores are leaky_relu of sums, and its gradients.

The contracts are those of `reference.products.graphs.additive_attention`. The kernels are in
`additive_rows` and `additive_columns`; here is what launches them.
"""

# pyright: reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spgrad.kernels.declare import launched
from spgrad.kernels.reference.common.dtypes import accumulate_dtype
from spgrad.kernels.triton.common.launch import (
    Launch,
    blocks,
    elsewhere,
    launches,
    part_rows,
    power_of_two,
    served,
    tile,
    warps,
)
from spgrad.kernels.triton.common.lines import View
from spgrad.kernels.triton.common.parts import join_parts
from spgrad.kernels.triton.products.graphs.additive_columns import (
    Columns,
    additive_columns_kernel,
    additive_rows_kernel,
)
from spgrad.kernels.triton.products.graphs.additive_rows import (
    Rows,
    additive_attention_kernel,
    join_additive_kernel,
)
from spgrad.kernels.triton.products.graphs.additive_scores import Scored

MOST = 256
"""Most columns of a head: a program has whole rows of one head at least in registers."""
WIDTH = 128
"""Most columns that a program reads of several heads together."""
ELEMENTS, OPTIONS = 512, warps(1)
"""Of a tile, of which one warp has all, so that its lanes exchange scores among themselves."""
LEAST = 4
"""Columns of a head that a tile has at least; with one it would have as many scores as elements."""


class Sizes(NamedTuple):
    """Heads, columns of each, biases, and heads of a program."""

    heads: int
    n: int
    biases: int
    together: int

    @classmethod
    def of(cls, bias: Tensor | None, left: Tensor, x: Tensor) -> Sizes:
        """Those of operands."""
        heads = left.shape[1]
        n = x.shape[1] // heads
        together = min(power_of_two(heads), max(WIDTH // power_of_two(n), 1))
        return cls(heads, n, heads if bias is None else bias.shape[1], together)

    @property
    def blocks(self) -> int:
        """Programs that share the heads of a line."""
        return blocks(self.heads, self.together)

    def columns(self, dtype: torch.dtype) -> int:
        """Columns of a tile; a number of double precision takes two registers."""
        wide = 2 if dtype == torch.float64 else 1
        return wide * self.together * max(power_of_two(self.n), LEAST)


def _ours(idx: Tensor, left: Tensor, x: Tensor) -> bool:
    """Whether the kernels take these operands."""
    return served(x, left, idx) and x.shape[1] <= MOST * left.shape[1]


def _launches(ptr: Tensor, nse: int, x: Tensor, sizes: Sizes) -> list[Launch]:
    return launches(ptr, nse, sizes.columns(x.dtype), ELEMENTS, 2 * MOST)


def _results(x: Tensor, m: int, sizes: Sizes, split: bool, dtype: torch.dtype) -> Rows:
    """Room for results of m rows, or of as many parts; out and above in the dtype."""
    acc = accumulate_dtype(x.dtype)

    def pair() -> tuple[Tensor, Tensor]:
        return x.new_empty(m, sizes.heads * sizes.n, dtype=dtype), x.new_empty(
            m, sizes.heads, dtype=acc
        )

    out, largest = pair()
    above, share = pair() if split else (None, None)
    return Rows(out, largest, torch.empty_like(largest), above, share)


@launched
def additive_attention(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    bias: Tensor | None,
    left: Tensor,
    right: Tensor,
    x: Tensor,
    slope: float,
    split: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`reference.products.graphs.additive_attention.additive_attention`, to 256 columns a head."""
    view, of = View(ptr, idx, perm), Scored(bias, left, right)
    if not _ours(idx, left, x):
        return elsewhere("additive_attention", *view, *of, x, slope, split)
    m, (nse,), sizes = left.shape[0], idx.shape, Sizes.of(bias, left, x)
    to, made = _results(x, m, sizes, split, x.dtype), _launches(ptr, nse, x, sizes)
    parts = _results(x, part_rows(made), sizes, split, accumulate_dtype(x.dtype))
    for (programs, of_parts, *shape), rows in zip(made, (to, parts), strict=False):
        additive_attention_kernel[programs, sizes.blocks](
            view, of, x, rows, slope, m, of_parts, *sizes, *shape, **OPTIONS
        )
    if part_rows(made):
        join_additive_kernel[part_rows(made) // 2, sizes.blocks](
            ptr, parts, to, m, sizes.heads, sizes.n, sizes.together, **warps(4)
        )
    if split:
        return tuple(to)  # type: ignore[return-value]
    return *to[:3], x.new_empty(0, x.shape[1]), to.max.new_empty(0, sizes.heads)


@launched
def additive_attention_backward(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    bias: Tensor | None,
    left: Tensor,
    right: Tensor,
    x: Tensor,
    slope: float,
    g: Tensor,
    out: Tensor,
    max: Tensor,
    total: Tensor,
    above: Tensor,
    share: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reference's `additive_attention_backward`, for at most 256 columns of a head."""
    view, of = View(ptr, idx, perm), Scored(bias, left, right)
    results = Rows(out, max, total, above, share)
    if not _ours(idx, left, x):
        return elsewhere("additive_attention_backward", *view, *of, x, slope, g, *results)
    (m, heads), k, (nse,) = left.shape, right.shape[0], idx.shape
    sizes, acc = Sizes.of(bias, left, x), accumulate_dtype(x.dtype)
    d_left = left.new_empty(above.shape[0], heads)
    if not above.shape[0]:
        results = results._replace(above=None, share=None)
    numbers = x.new_empty(m, 4, heads, dtype=acc)
    lines = tile(m, m, sizes.columns(x.dtype), 4 * ELEMENTS, 2 * MOST).lines
    additive_rows_kernel[blocks(m, lines), sizes.blocks](
        left,
        g,
        results,
        numbers,
        d_left,
        slope,
        m,
        heads,
        sizes.n,
        sizes.together,
        lines,
        **warps(4),
    )
    d_right, dx = torch.empty_like(right), torch.empty_like(x)
    d_bias = None if bias is None else torch.empty_like(bias, dtype=acc)
    made = _launches(ptr, nse, x, sizes)
    of_right, of_x = (t.new_empty(part_rows(made), t.shape[1], dtype=acc) for t in (d_right, dx))
    to = Columns(d_right, dx, d_bias), Columns(of_right, of_x, d_bias)
    programs_of_heads = 1 if bias is not None and sizes.biases == 1 else sizes.blocks
    for (programs, of_parts, *shape), columns in zip(made, to, strict=False):
        additive_columns_kernel[programs, programs_of_heads](
            view, of, x, g, numbers, columns, slope, k, of_parts, *sizes, *shape, **OPTIONS
        )
    if part_rows(made):
        join_parts(ptr, of_right, d_right)
        join_parts(ptr, of_x, dx)
    return d_left, d_right, dx, x.new_empty(0, heads) if d_bias is None else d_bias.to(x.dtype)
