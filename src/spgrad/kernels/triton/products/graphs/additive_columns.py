"""Triton kernels of the gradients of attention with additive scores: by rows, and by columns.

The first needs no entry. It makes four numbers of each row and head, from which the second computes
the weights again.
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
    lines_of_program,
    padded,
    places,
)
from spgrad.kernels.triton.products.graphs.additive_scores import (
    features_at,
    heads_of_program,
    numbers_at,
    scores_of,
    store_features,
    store_numbers,
    with_bias,
)

NUMBERS = tl.constexpr(4)
"""Numbers of a row and head that its entries need."""


class Columns(NamedTuple):
    """Gradients that the kernel of columns stores; the last is None without a bias."""

    right: Any
    x: Any
    bias: Any


@triton.jit
def additive_rows_kernel(
    left, g, of, numbers, d_left, slope: tl.float64, m, heads: tl.constexpr, n: tl.constexpr,
    H: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The numbers (m, 4, heads) of R rows that their entries need, and d left: (rows, heads).

    The numbers are left, max, one over total, and the dot product of g and out.
    """
    ACC: tl.constexpr = numbers.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    there = row < m
    head = heads_of_program(tl.program_id(1), H)
    cotangent = features_at(g, row, there, head, heads, n, ACC)
    delta = tl.sum(cotangent * features_at(of.out, row, there, head, heads, n, ACC), 2)
    total = numbers_at(of.total, row, there, head, heads)
    inverse = tl.where(total == 0, 0, 1 / tl.where(total == 0, 1, total))
    at = row * NUMBERS
    own = numbers_at(left, row, there, head, heads).to(ACC)
    store_numbers(numbers, at, there, head, heads, own)
    largest = numbers_at(of.max, row, there, head, heads)
    store_numbers(numbers, at + 1, there, head, heads, largest)
    store_numbers(numbers, at + 2, there, head, heads, inverse)
    store_numbers(numbers, at + 3, there, head, heads, delta)
    if of.share is not None:
        above = tl.sum(cotangent * features_at(of.above, row, there, head, heads, n, ACC), 2)
        change = above - numbers_at(of.share, row, there, head, heads) * delta
        change *= 1 - tl.full((), slope, ACC)
        store_numbers(d_left, row, there, head, heads, tl.where(total == 0, 0, change))


@triton.jit
def store_change(
    d_bias, place, live, change, block, head, heads: tl.constexpr, biases: tl.constexpr
):
    """Writes what entries (R, E) change of a bias, or adds it to what heads before changed."""
    if biases == 1:
        change = tl.sum(change, 2)
        if block > 0:
            change += tl.load(d_bias + place, mask=live, other=0)
        tl.store(d_bias + place, change, mask=live)
        tl.debug_barrier()  # other threads of the program may read it for the next heads
    else:
        at = place[:, :, None] * heads + head[None, None, :]
        tl.store(d_bias + at, change, mask=live[:, :, None] & (head < heads)[None, None, :])


@triton.jit(do_not_specialize=["P"])
def additive_columns_kernel(
    view, of, x, g, numbers, to, slope: tl.float64, k, P, heads: tl.constexpr, n: tl.constexpr,
    biases: tl.constexpr, H: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The gradients of a program's columns; of parts of them in all P programs, if P is not 0.

    Programs (columns, heads), or (columns, 1) if all heads have one bias, whose change a program
    adds up in the order of the heads.
    """
    ACC: tl.constexpr = numbers.dtype.element_ty
    line, begin, end, place, there = lines_of_program(view.ptr, k, P, R, LONG)
    line, place = line.to(tl.int64), place.to(tl.int64)
    for block in range(tl.program_id(1), (heads - 1) // H + 1, tl.num_programs(1)):
        head = heads_of_program(block, H)
        own = numbers_at(of.right, line, begin < end, head, heads).to(ACC)
        features = features_at(x, line, begin < end, head, heads, n, ACC)
        of_sums = tl.zeros((R, H), ACC)
        of_features = tl.zeros((R, H, padded(n)), ACC)
        for step in range(0, tl.max(end - begin), E):
            entry, near, live = entries_of_step(view, begin, end, step, E)
            row = near * NUMBERS
            sums = own[:, None, :] + numbers_at(numbers, row, live, head, heads)
            at = places(view.perm, entry, live).to(tl.int64)
            sums = with_bias(sums, of.bias, at, live, head, heads, biases)
            weight = scores_of(sums, slope, live) - numbers_at(numbers, row + 1, live, head, heads)
            weight = tl.exp(weight) * numbers_at(numbers, row + 2, live, head, heads)
            cotangents = features_at(g, near, live, head, heads, n, ACC)
            of_features += tl.sum(weight[:, :, :, None] * cotangents, 1)
            change = tl.sum(features[:, None, :, :] * cotangents, 3)
            change = weight * (change - numbers_at(numbers, row + 3, live, head, heads))
            change = tl.where(sums > 0, change, change * tl.full((), slope, ACC))
            of_sums += tl.sum(change, 1)
            if to.bias is not None:
                store_change(to.bias, at, live, change, block, head, heads, biases)
        store_numbers(to.right, place, there, head, heads, of_sums)
        store_features(to.x, place, there, head, heads, n, of_features)
