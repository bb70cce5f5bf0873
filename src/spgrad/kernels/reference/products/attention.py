"""References of attention over the entries of a pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import accumulate_dtype, widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers
from spgrad.kernels.reference.products.matmul import sddmm, spmm


def _scores(
    ptr: Tensor, idx: Tensor, bias: Tensor | None, left: Tensor, right: Tensor, scale: float
) -> Tensor:
    """scale left_i . right_j + bias of every entry, for one head; `bias` in the view's order."""
    scores = sddmm(ptr, idx, None, left, right) * scale
    return scores if bias is None else scores + bias


def _of_head(bias: Tensor | None, perm: Tensor | None, head: int) -> Tensor | None:
    """The bias of a head, in the view's order."""
    if bias is None:
        return None
    return in_view_order(bias if bias.dim() == 1 else bias[head % len(bias)], perm)


def lines_shape(*operands: Any) -> tuple[Tensor, Tensor]:
    """The results of attention, over entries or blocks, without their numbers."""
    q, _, v = operands[4:7]  # behind a view and the bias
    lse = q.new_empty(q.shape[:2], dtype=accumulate_dtype(q.dtype))
    return q.new_empty(*q.shape[:2], v.shape[2]), lse


@kernel(
    "attention(Tensor ptr, Tensor idx, Tensor? perm, Tensor? bias, Tensor q, Tensor k, Tensor v,"
    " float scale) -> (Tensor, Tensor)",
    fake=lines_shape,
)
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
    """out_i = sum over entries p of row i of softmax(s)_p v[idx[p]].

    The scores are s_p = scale q_i . k[idx[p]] + bias[perm[p]].

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `bias` (nse,); None for in place.
        bias: Added to the scores: (nse,), the same for every head, or (biases, nse), of which head
            h has that of number h % biases; None for nothing.
        q: Queries (heads, m, d); float32 or float64 where the compiled library answers.
        k: Keys (heads, n, d).
        v: Values (heads, n, e).
        scale: Factor of the scores.

    Returns:
        out (heads, m, e) and lse (heads, m), the logarithm of the sum of the exponentials of a
        row's scores, float32 for 16-bit operands. A row without entries, or whose scores are all
        minus infinity, gives 0 and minus infinity.
    """
    dtype, row = q.dtype, row_numbers(ptr, idx.shape[0])
    q, k, v = widened(q), widened(k), widened(v)
    outs, sums = [], []
    for head in range(q.shape[0]):
        scores = _scores(ptr, idx, _of_head(bias, perm, head), q[head], k[head], scale)
        none = scores.new_full((q.shape[1],), -torch.inf)
        largest = none.scatter_reduce(0, row.long(), scores, "amax")
        largest = largest.where(largest != -torch.inf, 0)  # a row without weights
        weights = (scores - largest[row]).exp()
        total = torch.zeros_like(none).index_add_(0, row, weights)
        weights = (weights / total[row]).where(total[row] != 0, 0)
        outs.append(spmm(ptr, idx, None, weights, v[head]))
        sums.append(largest + total.log())
    if not outs:
        return q.new_empty(0, q.shape[1], v.shape[2], dtype=dtype), q.new_empty(0, q.shape[1])
    return torch.stack(outs).to(dtype), torch.stack(sums)


def gradients_shape(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of attention, over entries or blocks, without their numbers."""
    bias, q, k, v = operands[6:10]  # behind two views
    made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    return *made, q.new_empty(0) if bias is None else torch.empty_like(bias)


@kernel(
    "attention_backward(Tensor ptr, Tensor idx, Tensor? perm, Tensor cols_ptr, Tensor cols_idx,"
    " Tensor? cols_perm, Tensor? bias, Tensor q, Tensor k, Tensor v, Tensor g, Tensor lse,"
    " Tensor delta, float scale) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=gradients_shape,
)
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
    """The gradients of `attention`.

    With w the weights and c = w (g . v - delta): dq_i = scale sum of c k_j over the row, dk_j =
    scale sum of c q_i and dv_j = sum of w g_i over the column, and d bias = c.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `bias` (nse,); None for in place.
        cols_ptr: Column pointers (n + 1,) of the same pattern.
        cols_idx: Row of every entry, by columns (nse,).
        cols_perm: Where its value stands in `bias` (nse,); None for in place.
        bias: As in `attention`.
        q: Queries (heads, m, d).
        k: Keys (heads, n, d).
        v: Values (heads, n, e).
        g: Cotangent (heads, m, e).
        lse: Of `attention` (heads, m).
        delta: Dot product of cotangent and result (heads, m), in the dtype of `lse`.
        scale: Factor of the scores.

    Returns:
        dq, dk, dv, and d bias, of the shape of the bias; empty if there is none.
    """
    row = row_numbers(ptr, idx.shape[0])
    made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dtype, wide = q.dtype, accumulate_dtype(q.dtype)
    d_bias = q.new_empty(0) if bias is None else torch.zeros_like(bias, dtype=wide)
    q, k, v, g = widened(q), widened(k), widened(v), widened(g)
    for head, (dq, dk, dv) in enumerate(zip(*made, strict=True)):
        scores = _scores(ptr, idx, _of_head(bias, perm, head), q[head], k[head], scale)
        of_row = lse[head][row]
        weights = (scores - of_row).exp().where(of_row != -torch.inf, 0)
        change = weights * (sddmm(ptr, idx, None, g[head], v[head]) - delta[head][row])
        if bias is not None:
            own = d_bias if d_bias.dim() == 1 else d_bias[head % len(d_bias)]
            own += in_value_order(change, perm)
        dq.copy_(spmm(ptr, idx, None, change * scale, k[head]))
        change, weights = in_value_order(change * scale, perm), in_value_order(weights, perm)
        dk.copy_(spmm(cols_ptr, cols_idx, cols_perm, change, q[head]))
        dv.copy_(spmm(cols_ptr, cols_idx, cols_perm, weights, g[head]))
    return *made, d_bias.to(dtype)
