"""Numbers and features of several heads in Triton kernels, and scores that are made of sums."""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from spgrad.kernels.triton.common.lines import padded
from spgrad.kernels.triton.products.attention import NONE


class Scored(NamedTuple):
    """What scores are made of, as kernels take it."""

    bias: Any
    left: Any
    right: Any


@triton.jit
def heads_of_program(block, H: tl.constexpr):
    """The heads (H,) of a block."""
    return block * H + tl.arange(0, H)


@triton.jit
def numbers_at(t, row, there, head, heads: tl.constexpr):
    """Numbers of t (rows, heads) as (*row.shape, H); 0 where there is no row or no head."""
    at = tl.expand_dims(row, -1) * heads + head
    return tl.load(t + at, mask=tl.expand_dims(there, -1) & (head < heads), other=0)


@triton.jit
def features_at(x, row, there, head, heads: tl.constexpr, n: tl.constexpr, ACC: tl.constexpr):
    """Features of x (rows, heads n) as (*row.shape, H, padded(n)); 0 where there are none."""
    column = tl.arange(0, padded(n))
    at = tl.expand_dims(tl.expand_dims(row, -1) * heads + head, -1) * n + column
    inside = tl.expand_dims(tl.expand_dims(there, -1) & (head < heads), -1) & (column < n)
    return tl.load(x + at, mask=inside, other=0).to(ACC)


@triton.jit
def store_numbers(t, row, there, head, heads: tl.constexpr, values):
    """Writes numbers (R, H) of t (rows, heads)."""
    at = row[:, None] * heads + head[None, :]
    tl.store(t + at, values, mask=there[:, None] & (head < heads)[None, :])


@triton.jit
def store_features(x, row, there, head, heads: tl.constexpr, n: tl.constexpr, values):
    """Writes features (R, H, padded(n)) of x (rows, heads n)."""
    column = tl.arange(0, padded(n))
    at = (row[:, None] * heads + head[None, :])[:, :, None] * n + column[None, None, :]
    inside = (there[:, None] & (head < heads)[None, :])[:, :, None] & (column < n)[None, None, :]
    tl.store(x + at, values, mask=inside)


@triton.jit
def with_bias(sums, bias, place, live, head, heads: tl.constexpr, biases: tl.constexpr):
    """Sums (R, E, H) and a bias (nse, biases), the same for all heads if it is one."""
    if bias is not None:
        if biases == 1:
            sums += tl.load(bias + place, mask=live, other=0).to(sums.dtype)[:, :, None]
        else:
            sums += numbers_at(bias, place, live, head, heads).to(sums.dtype)
    return sums


@triton.jit
def scores_of(sums, slope, live):
    """leaky_relu of sums (R, E, H); minus infinity stays, and stands where there is no entry."""
    stays = (sums > 0) | (sums == NONE)
    below = tl.where(stays, 0, sums) * tl.full((), slope, sums.dtype)
    scores = tl.where(stays, sums, below)
    return tl.where(live[:, :, None], scores, NONE)


@triton.jit
def finite(largest):
    """The largest score, or 0 where there is none."""
    return tl.where(largest == NONE, 0, largest)
