"""References of attention whose scores are leaky_relu of sums, and of its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import accumulate_dtype, widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers
from spgrad.kernels.reference.products.heads import heads_sddmm, heads_spmm


def _scores(sums: Tensor, slope: float) -> Tensor:
    """leaky_relu; minus infinity stays, also with a slope of zero."""
    return torch.where((sums > 0) | (sums == -torch.inf), sums, sums * slope)


def _rows_shape(*operands: Any) -> tuple[Tensor, ...]:
    left, x, split = operands[4], operands[6], operands[8]
    (m, heads), dtype = left.shape, accumulate_dtype(x.dtype)
    largest, total = (x.new_empty(m, heads, dtype=dtype) for _ in range(2))
    some = m if split else 0
    above, share = x.new_empty(some, x.shape[1]), x.new_empty(some, heads, dtype=dtype)
    return x.new_empty(m, x.shape[1]), largest, total, above, share


@kernel(
    "additive_attention(Tensor ptr, Tensor idx, Tensor? perm, Tensor? bias, Tensor left,"
    " Tensor right, Tensor x, float slope, bool split)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_rows_shape,
)
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
    """out[i, c, :] = sum over entries p of row i of softmax(s)_pc x[idx[p], c, :].

    The scores are s_pc = leaky_relu(left[i, c] + right[idx[p], c] + bias[perm[p], c]). An entry
    whose sum is minus infinity takes no part.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's values stand in `bias` (nse,); None for in place.
        bias: Added to the scores (nse, heads), or where the compiled library does not answer (nse,
            1), the same for all heads; None for nothing.
        left: Part of the scores that depends on the row (m, heads); float32 or float64 where the
            compiled library answers.
        right: Part that depends on the column (k, heads).
        x: Dense factors (k, heads n), flat as those of `heads_spmm`.
        slope: Of leaky_relu for numbers below zero; 0 or more.
        split: Whether to sum the entries whose score is above zero apart too, as the gradient of
            `left` needs.

    Returns:
        out (m, heads n); max (m, heads), the largest score of a row; total (m, heads), the sum of
        the exponentials of its scores less that; above (m, heads n), the sums of `out` over the
        entries whose score is above zero alone, and share (m, heads), the sum of their weights.
        These two have no rows without `split`. All are 0 in a row without scores. For 16-bit
        operands max, total and share are float32.
    """
    dtype = x.dtype
    left, right, x = widened(left), widened(right), widened(x)
    row = row_numbers(ptr, idx.shape[0])
    sums = left.index_select(0, row) + right.index_select(0, idx)
    scores = _scores(sums if bias is None else sums + in_view_order(bias, perm), slope)
    where = row.long()[:, None].expand_as(scores)
    largest = torch.full_like(left, -torch.inf).scatter_reduce(0, where, scores, "amax")
    largest = largest.where(largest != -torch.inf, 0)  # a row without scores
    weights = (scores - largest.index_select(0, row)).exp()
    total = torch.zeros_like(left).index_add_(0, row, weights)
    weights = (weights / total.index_select(0, row)).where(weights != 0, 0)
    out = heads_spmm(ptr, idx, None, weights, x).to(dtype)
    if not split:
        none = out.new_empty(0, x.shape[1]), left.new_empty(0, left.shape[1])
        return out, largest, total, *none
    weights = weights.where(scores > 0, 0)
    share = torch.zeros_like(left).index_add_(0, row, weights)
    return out, largest, total, heads_spmm(ptr, idx, None, weights, x).to(dtype), share


def _gradients_shape(*operands: Any) -> tuple[Tensor, ...]:
    bias, left, right, x, above = *operands[3:7], operands[12]
    d_left = left.new_empty(above.shape[0], left.shape[1])
    d_bias = x.new_empty(0, left.shape[1]) if bias is None else torch.empty_like(bias)
    return d_left, torch.empty_like(right), torch.empty_like(x), d_bias


@kernel(
    "additive_attention_backward(Tensor ptr, Tensor idx, Tensor? perm, Tensor? bias, Tensor left,"
    " Tensor right, Tensor x, float slope, Tensor g, Tensor out, Tensor max, Tensor total,"
    " Tensor above, Tensor share) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_gradients_shape,
)
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
    """The gradients of `additive_attention`.

    With w the weights and delta = g . out, c = w (g . x - delta), times `slope` where the score is
    not above zero, is the gradient of a sum. Its sum over a row is the gradient of `left`, which
    is (1 - slope) (g . above - share delta), because w (g . x - delta) adds up to 0. Without
    entries it is 0, whatever g is.

    Args:
        ptr: Column pointers (k + 1,).
        idx: Row of every entry, by columns (nse,).
        perm: Where an entry's values stand in `bias`, a bijection (nse,); None for in place.
        bias: As in `additive_attention`, as the next four.
        left: (m, heads).
        right: (k, heads).
        x: (k, heads n).
        slope: Of leaky_relu.
        g: Cotangent (m, heads n).
        out: Of `additive_attention` (m, heads n), as the next four.
        max: (m, heads).
        total: (m, heads).
        above: (m, heads n), or no rows: `left` then gets no gradient.
        share: (m, heads), or no rows.

    Returns:
        d left (m, heads), or no rows; d right (k, heads); dx (k, heads n); d bias, of the shape of
        the bias, or no rows where there is none.
    """
    heads, dtype = left.shape[1], x.dtype
    left, right, x, g = widened(left), widened(right), widened(x), widened(g)
    out, above = widened(out), widened(above)
    column = row_numbers(ptr, idx.shape[0])
    sums = right.index_select(0, column) + left.index_select(0, idx)
    sums = sums if bias is None else sums + in_view_order(bias, perm)
    weights = (_scores(sums, slope) - max.index_select(0, idx)).exp()
    weights = (weights / total.index_select(0, idx)).where(weights != 0, 0)

    def by_head(t: Tensor) -> Tensor:
        return t.view(t.shape[0], heads, t.shape[1] // (heads or 1))

    delta = (by_head(g) * by_head(out)).sum(-1)
    dots = heads_sddmm(ptr, idx, None, x, g, heads)
    change = weights * (dots - delta.index_select(0, idx))
    change = change.where(sums > 0, change * slope)
    d_right = torch.zeros_like(right).index_add_(0, column, change)
    d_left = left.new_empty(0, heads)
    if above.shape[0]:
        d_left = (1 - slope) * ((by_head(g) * by_head(above)).sum(-1) - share * delta)
        d_left = d_left.where(total != 0, 0)  # rows without entries, whatever g is
    d_bias = x.new_empty(0, heads)
    if bias is not None:
        d_bias = in_value_order(change, perm)
        d_bias = d_bias if bias.shape[1] == heads else d_bias.sum(1, keepdim=True)
    dx = heads_spmm(ptr, idx, None, weights, g)
    return d_left.to(dtype), d_right.to(dtype), dx.to(dtype), d_bias.to(dtype)
