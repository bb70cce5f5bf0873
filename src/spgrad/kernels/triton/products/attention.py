"""Triton attention over the entries of a pattern, and its gradients.

The contracts are those of `reference.products.attention`. Scores and weights are never stored: the
gradients compute them again, by rows and by columns. A program has whole rows of queries, keys and
values in its tiles. Results of parts of long lines are joined by another kernel.
"""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgrad.kernels.declare import launched
from spgrad.kernels.reference.common.dtypes import accumulate_dtype
from spgrad.kernels.triton.common.launch import (
    Launch,
    elsewhere,
    launches,
    part_rows,
    served,
    warps,
)
from spgrad.kernels.triton.common.lines import (
    LONG,
    View,
    entries_of_step,
    first_part,
    lines_of_program,
    long_line,
    padded,
    places,
)
from spgrad.kernels.triton.common.parts import join_parts

MOST = 256
"""Most columns of queries, keys and values: a program has whole rows of them in registers."""
LEAST = 4
"""Columns that a tile has at least; with one it would have as many scores as elements."""
MOST_HEADS = 65535
"""Most programs that a grid has behind its first dimension."""
OPTIONS = warps(1)
"""A warp has the whole tile, so that scores of entries are exchanged between its lanes alone."""
NONE = tl.constexpr(float("-inf"))
"""The score of an entry that takes no part, and lse of a line without others."""


class Operands(NamedTuple):
    """What gradients are made of, as kernels take it: all of `attention_backward`."""

    q: Any
    k: Any
    v: Any
    g: Any
    lse: Any
    delta: Any


@triton.jit
def whole_lines(ptr, m, P, R: tl.constexpr):
    """The lines that a program reads, (R,) each, and how many results a head has.

    Line, begin, end, where to store its result, and whether to.
    """
    line, begin, end, place, there = lines_of_program(ptr, m, P, R, LONG)
    results = tl.where(P > 0, P * R, m)
    return line.to(tl.int64), begin, end, place.to(tl.int64), there, results


@triton.jit
def rows_at(x, first, row, there, width: tl.constexpr, ACC: tl.constexpr):
    """Rows of x (rows, width), counted from row `first` on, as (*row.shape, padded(width)).

    Zeros stand for rows that are not there, and behind their columns.
    """
    WIDTH: tl.constexpr = padded(width)
    column = tl.arange(0, WIDTH)
    at = tl.expand_dims(first + row, -1) * width + column
    inside = tl.expand_dims(there, -1) & (column < width)
    return tl.load(x + at, mask=inside, other=0).to(ACC)


@triton.jit
def store_rows(x, first, row, there, values, width: tl.constexpr):
    """Writes rows (R, padded(width)) of x (rows, width), counted from row `first` on."""
    WIDTH: tl.constexpr = padded(width)
    column = tl.arange(0, WIDTH)
    inside = there[:, None] & (column < width)[None, :]
    tl.store(x + (first + row)[:, None] * width + column[None, :], values, mask=inside)


@triton.jit
def scores_of(own, near, scale, bias, at, live):
    """Scores (R, E) from rows (R, d) and (R, E, d), and a bias that stands at `at`."""
    score = tl.sum(own[:, None, :] * near, 2)
    score *= tl.full((), scale, score.dtype)
    if bias is not None:
        score += tl.load(bias + at, mask=live, other=0).to(score.dtype)
    return tl.where(live, score, NONE)


@triton.jit
def weights_of(score, lse, live):
    """Weights (R, E), zero for lines without any; lse (R, 1) or (R, E)."""
    return tl.where(live & (lse != NONE), tl.exp(score - tl.where(lse == NONE, 0, lse)), 0)


@triton.jit(do_not_specialize=["P"])
def attention_kernel(
    view, bias, q, k, v, out, lse, scale: tl.float64, m, n, nse, P, d: tl.constexpr,
    e: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """out and lse of a program's lines: programs (lines, biases, more heads).

    All P programs, if P is not 0, read parts of lines instead.

    Of the entries read so far, it has the largest score, and sums of exponentials relative to that.
    """
    WIDTH: tl.constexpr = padded(e)
    ACC: tl.constexpr = tl.float64 if q.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, place, there, results = whole_lines(view.ptr, m, P, R)
    head = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    own = rows_at(q, head * m, line, begin < end, d, ACC)
    largest = tl.full((R,), NONE, ACC)
    total = tl.zeros((R,), ACC)
    rows = tl.zeros((R, WIDTH), ACC)
    for step in range(0, tl.max(end - begin), E):
        entry, near, live = entries_of_step(view, begin, end, step, E)
        at = tl.program_id(1).to(tl.int64) * nse + places(view.perm, entry, live)
        score = scores_of(own, rows_at(k, head * n, near, live, d, ACC), scale, bias, at, live)
        larger = tl.maximum(largest, tl.max(score, 1))
        base = tl.where(larger == NONE, 0, larger)
        weight = tl.exp(score - base[:, None])
        smaller = tl.exp(largest - base)
        values = rows_at(v, head * n, near, live, e, ACC)
        total = total * smaller + tl.sum(weight, 1)
        rows = rows * smaller[:, None] + tl.sum(weight[:, :, None] * values, 1)
        largest = larger
    divisor = tl.where(total == 0, 1, total)
    store_rows(out, head * results, place, there, rows / divisor[:, None], e)
    tl.store(lse + head * results + place, largest + tl.log(divisor), mask=there)


@triton.jit
def join_attention_kernel(ptr, parts, lses, out, lse, m, e: tl.constexpr):
    """out and lse of each long line, from those of its parts in their order.

    parts (heads, 2 chunks, e) and lses (heads, 2 chunks). Programs (chunks, heads).
    """
    line, begin, end = long_line(ptr, m, LONG)
    if end > begin:
        head = tl.program_id(1).to(tl.int64)
        at = (2 * head * tl.num_programs(0) + first_part(begin, LONG)).to(tl.int64)
        column = tl.arange(0, padded(e))
        inside = column < e
        largest = tl.load(lses + at)
        total = tl.where(largest == NONE, 0, 1).to(largest.dtype)
        row = tl.load(parts + at * e + column, mask=inside, other=0)
        for chunk in range(tl.program_id(0) + 1, (end - 1) // LONG + 1):
            at = 2 * (head * tl.num_programs(0) + chunk)
            more = tl.load(lses + at)
            larger = tl.maximum(largest, more)
            base = tl.where(larger == NONE, 0, larger)
            smaller, weight = tl.exp(largest - base), tl.exp(more - base)
            total = total * smaller + weight
            row = row * smaller + weight * tl.load(parts + at * e + column, mask=inside, other=0)
            largest = larger
        divisor = tl.where(total == 0, 1, total)
        tl.store(out + (head * m + line) * e + column, row / divisor, mask=inside)
        tl.store(lse + head * m + line, largest + tl.log(divisor))


@triton.jit(do_not_specialize=["P"])
def attention_rows_kernel(
    view, of, bias, dq, d_bias, scale: tl.float64, m, n, nse, heads, P, d: tl.constexpr,
    e: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """dq, and the change of the bias, of a program's rows, or of parts of rows.

    Programs (lines, biases, 1), of which each adds what the heads that share a bias change, in
    their order; without bias (lines, 1, heads).
    """
    WIDTH: tl.constexpr = padded(d)
    ACC: tl.constexpr = tl.float64 if of.q.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, place, there, results = whole_lines(view.ptr, m, P, R)
    filled, biases = begin < end, tl.num_programs(1)
    for number in range(tl.program_id(2) + tl.program_id(1), heads, biases * tl.num_programs(2)):
        head = tl.cast(number, tl.int64)
        own = rows_at(of.q, head * m, line, filled, d, ACC)
        cotangent = rows_at(of.g, head * m, line, filled, e, ACC)
        lse = tl.load(of.lse + head * m + line, mask=filled, other=0).to(ACC)
        delta = tl.load(of.delta + head * m + line, mask=filled, other=0).to(ACC)
        rows = tl.zeros((R, WIDTH), ACC)
        for step in range(0, tl.max(end - begin), E):
            entry, near, live = entries_of_step(view, begin, end, step, E)
            at = tl.program_id(1).to(tl.int64) * nse + places(view.perm, entry, live)
            keys = rows_at(of.k, head * n, near, live, d, ACC)
            score = scores_of(own, keys, scale, bias, at, live)
            values = rows_at(of.v, head * n, near, live, e, ACC)
            change = tl.sum(cotangent[:, None, :] * values, 2) - delta[:, None]
            change *= weights_of(score, lse[:, None], live)
            rows += tl.sum(change[:, :, None] * keys, 1)
            if d_bias is not None:
                if number >= biases:  # another head came before
                    change += tl.load(d_bias + at, mask=live, other=0)
                tl.store(d_bias + at, change, mask=live)
        rows *= tl.full((), scale, ACC)
        store_rows(dq, head * results, place, there, rows, d)
        if d_bias is not None:
            tl.debug_barrier()  # other threads of the program may read what this head changed


@triton.jit(do_not_specialize=["P"])
def attention_columns_kernel(
    view, of, bias, dk, dv, scale: tl.float64, m, n, nse, P, d: tl.constexpr, e: tl.constexpr,
    R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """dk and dv of a program's columns, or of parts of them: programs as `attention_kernel`."""
    WIDTH_D: tl.constexpr = padded(d)
    WIDTH_E: tl.constexpr = padded(e)
    ACC: tl.constexpr = tl.float64 if of.q.dtype.element_ty == tl.float64 else tl.float32
    line, begin, end, place, there, results = whole_lines(view.ptr, n, P, R)
    head = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    keys = rows_at(of.k, head * n, line, begin < end, d, ACC)
    values = rows_at(of.v, head * n, line, begin < end, e, ACC)
    of_keys = tl.zeros((R, WIDTH_D), ACC)
    of_values = tl.zeros((R, WIDTH_E), ACC)
    for step in range(0, tl.max(end - begin), E):
        entry, near, live = entries_of_step(view, begin, end, step, E)
        at = tl.program_id(1).to(tl.int64) * nse + places(view.perm, entry, live)
        queries = rows_at(of.q, head * m, near, live, d, ACC)
        score = scores_of(keys, queries, scale, bias, at, live)
        lse = tl.load(of.lse + head * m + near, mask=live, other=0).to(ACC)
        weight = weights_of(score, lse, live)
        cotangents = rows_at(of.g, head * m, near, live, e, ACC)
        of_values += tl.sum(weight[:, :, None] * cotangents, 1)
        delta = tl.load(of.delta + head * m + near, mask=live, other=0).to(ACC)
        change = weight * (tl.sum(values[:, None, :] * cotangents, 2) - delta)
        of_keys += tl.sum(change[:, :, None] * queries, 1)
    of_keys *= tl.full((), scale, ACC)
    store_rows(dk, head * results, place, there, of_keys, d)
    store_rows(dv, head * results, place, there, of_values, e)


def _biases(bias: Tensor | None) -> int:
    """How many biases the heads take in turn; none counts as one."""
    return 1 if bias is None or bias.dim() == 1 else bias.shape[0]


def _ours(idx: Tensor, bias: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels take these operands."""
    if not served(q, k, v, idx) or max(q.shape[2], v.shape[2]) > MOST:
        return False
    return q.shape[0] <= MOST_HEADS and q.shape[0] % _biases(bias) == 0


def _launches(ptr: Tensor, nse: int, columns: int, elements: int) -> list[Launch]:
    return launches(ptr, nse, max(columns, LEAST), elements, MOST)


def _parts(x: Tensor, made: list[Launch]) -> Tensor:
    """Room for what parts of long lines give of x (heads, lines, columns)."""
    dtype = accumulate_dtype(x.dtype)
    return x.new_empty(x.shape[0], part_rows(made), x.shape[2], dtype=dtype)


@launched
def attention(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`reference.products.attention.attention`, for at most 256 columns."""
    if not _ours(idx, bias, q, k, v):
        return elsewhere("attention", ptr, idx, perm, bias, q, k, v, scale)
    (heads, m, d), (_, n, e), (nse,) = q.shape, v.shape, idx.shape
    out, lse = q.new_empty(heads, m, e), q.new_empty(heads, m, dtype=accumulate_dtype(q.dtype))
    view, biases = View(ptr, idx, perm), _biases(bias)
    made = _launches(ptr, nse, max(d, e), min(4096 // q.itemsize, 1024))
    parts, lses = _parts(out, made), _parts(lse[:, :, None], made)
    for (programs, of_parts, *shape), to in zip(made, ((out, lse), (parts, lses)), strict=False):
        attention_kernel[programs, biases, heads // biases](
            view, bias, q, k, v, *to, scale, m, n, nse, of_parts, d, e, *shape, **OPTIONS
        )
    if parts.shape[1]:
        join_attention_kernel[parts.shape[1] // 2, heads](
            ptr, parts, lses, out, lse, m, e, **warps(4)
        )
    return out, lse


@launched
def attention_backward(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    cols_ptr: Tensor,
    cols_idx: Tensor,
    cols_perm: Tensor | None,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    lse: Tensor,
    delta: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`reference.products.attention.attention_backward`, for at most 256 columns."""
    by_rows, by_cols = View(ptr, idx, perm), View(cols_ptr, cols_idx, cols_perm)
    of = Operands(q, k, v, g, lse, delta)
    if not _ours(idx, bias, q, k, v):
        return elsewhere("attention_backward", *by_rows, *by_cols, bias, *of, scale)
    (heads, m, d), (_, n, e), (nse,) = q.shape, v.shape, idx.shape
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    d_bias = None if bias is None else torch.empty_like(bias, dtype=accumulate_dtype(q.dtype))
    biases = _biases(bias)
    columns, elements = max(d, e), 2048 // q.itemsize
    of_rows, of_columns = (_launches(p, nse, columns, elements) for p in (ptr, cols_ptr))
    parts = _parts(dq, of_rows), _parts(dk, of_columns), _parts(dv, of_columns)
    for (programs, of_parts, *shape), to in zip(of_rows, (dq, parts[0]), strict=False):
        attention_rows_kernel[programs, biases, heads if bias is None else 1](
            by_rows, of, bias, to, d_bias, scale, m, n, nse, heads, of_parts, d, e, *shape,
            **OPTIONS,
        )  # fmt: skip
    for (programs, of_parts, *shape), both in zip(of_columns, ((dk, dv), parts[1:]), strict=False):
        attention_columns_kernel[programs, biases, heads // biases](
            by_cols, of, bias, *both, scale, m, n, nse, of_parts, d, e, *shape, **OPTIONS
        )
    for lines, part, whole in zip((ptr, cols_ptr, cols_ptr), parts, (dq, dk, dv), strict=True):
        if part.shape[1]:
            join_parts(lines, part, whole)
    return dq, dk, dv, q.new_empty(0) if d_bias is None else d_bias.to(q.dtype)
