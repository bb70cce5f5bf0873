"""Triton kernels of attention with additive scores: the rows, and what the parts of long ones join.

A program computes the scores of a few heads at its entries, and multiplies the features of these
heads with the weights at once, so nothing is stored for each entry and head.
"""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from spgrad.kernels.triton.common.lines import (
    LONG,
    entries_of_step,
    first_part,
    lines_of_program,
    long_line,
    padded,
    places,
)
from spgrad.kernels.triton.products.attention import NONE
from spgrad.kernels.triton.products.graphs.additive_scores import (
    features_at,
    finite,
    heads_of_program,
    numbers_at,
    scores_of,
    store_features,
    store_numbers,
    with_bias,
)


class Rows(NamedTuple):
    """Results of `additive_attention`; the last two are None if they are not asked for."""

    out: Any
    max: Any
    total: Any
    above: Any
    share: Any


@triton.jit
def store_lines(to, row, there, head, heads: tl.constexpr, largest, total):
    """Writes the largest scores (R, H), 0 for none, and the sums; gives what to divide by."""
    store_numbers(to.max, row, there, head, heads, finite(largest))
    store_numbers(to.total, row, there, head, heads, total)
    return tl.where(total == 0, 1, total)


@triton.jit(do_not_specialize=["P"])
def additive_attention_kernel(
    view, of, x, to, slope: tl.float64, m, P, heads: tl.constexpr, n: tl.constexpr,
    biases: tl.constexpr, H: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The results of a program's rows: programs (rows, heads).

    All P programs, if P is not 0, form sums over parts of rows instead.

    Of the entries read so far, it has the largest score, and sums of exponentials relative to that.
    Sums over parts are not divided.
    """
    ACC: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, place, there = lines_of_program(view.ptr, m, P, R, LONG)
    head = heads_of_program(tl.program_id(1), H)
    own = numbers_at(of.left, line.to(tl.int64), begin < end, head, heads).to(ACC)
    largest = tl.full((R, H), NONE, ACC)
    total = tl.zeros((R, H), ACC)
    rows = tl.zeros((R, H, padded(n)), ACC)
    share, above = total, rows
    for step in range(0, tl.max(end - begin), E):
        entry, near, live = entries_of_step(view, begin, end, step, E)
        sums = own[:, None, :] + numbers_at(of.right, near, live, head, heads).to(ACC)
        at = places(view.perm, entry, live).to(tl.int64)
        score = scores_of(with_bias(sums, of.bias, at, live, head, heads, biases), slope, live)
        larger = tl.maximum(largest, tl.max(score, 1))
        smaller = tl.exp(largest - finite(larger))
        weight = tl.exp(score - finite(larger)[:, None, :])
        features = features_at(x, near, live, head, heads, n, ACC)
        total = total * smaller + tl.sum(weight, 1)
        rows = rows * smaller[:, :, None] + tl.sum(weight[:, :, :, None] * features, 1)
        if to.share is not None:
            weight = tl.where(score > 0, weight, 0)
            share = share * smaller + tl.sum(weight, 1)
            above = above * smaller[:, :, None] + tl.sum(weight[:, :, :, None] * features, 1)
        largest = larger
    place = place.to(tl.int64)
    if P > 0:
        store_numbers(to.max, place, there, head, heads, largest)
        store_numbers(to.total, place, there, head, heads, total)
        divisor = tl.full((R, H), 1, ACC)
    else:
        divisor = store_lines(to, place, there, head, heads, largest, total)
    store_features(to.out, place, there, head, heads, n, rows / divisor[:, :, None])
    if to.share is not None:
        store_numbers(to.share, place, there, head, heads, share / divisor)
        store_features(to.above, place, there, head, heads, n, above / divisor[:, :, None])


@triton.jit
def join_additive_kernel(ptr, parts, to, m, heads: tl.constexpr, n: tl.constexpr, H: tl.constexpr):
    """The results of each long row, from the sums of its parts in their order.

    Sums of parts have the shapes of results of 2 chunks rows. Programs (chunks, heads).
    """
    line, begin, end = long_line(ptr, m, LONG)
    if end > begin:
        ACC: tl.constexpr = parts.total.dtype.element_ty
        head = heads_of_program(tl.program_id(1), H)
        one = tl.arange(0, 1)
        there = one == 0
        at = first_part(begin, LONG).to(tl.int64) + one
        largest = numbers_at(parts.max, at, there, head, heads)
        total = numbers_at(parts.total, at, there, head, heads)
        rows = features_at(parts.out, at, there, head, heads, n, ACC)
        share, above = total, rows
        if to.share is not None:
            share = numbers_at(parts.share, at, there, head, heads)
            above = features_at(parts.above, at, there, head, heads, n, ACC)
        for chunk in range(tl.program_id(0) + 1, (end - 1) // LONG + 1):
            at = 2 * tl.cast(chunk, tl.int64) + one
            more = numbers_at(parts.max, at, there, head, heads)
            larger = tl.maximum(largest, more)
            old, new = tl.exp(largest - finite(larger)), tl.exp(more - finite(larger))
            total = total * old + new * numbers_at(parts.total, at, there, head, heads)
            features = features_at(parts.out, at, there, head, heads, n, ACC)
            rows = rows * old[:, :, None] + new[:, :, None] * features
            if to.share is not None:
                share = share * old + new * numbers_at(parts.share, at, there, head, heads)
                features = features_at(parts.above, at, there, head, heads, n, ACC)
                above = above * old[:, :, None] + new[:, :, None] * features
            largest = larger
        row = line.to(tl.int64) + one
        divisor = store_lines(to, row, there, head, heads, largest, total)
        store_features(to.out, row, there, head, heads, n, rows / divisor[:, :, None])
        if to.share is not None:
            store_numbers(to.share, row, there, head, heads, share / divisor)
            store_features(to.above, row, there, head, heads, n, above / divisor[:, :, None])
