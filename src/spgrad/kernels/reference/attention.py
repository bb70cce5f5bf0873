"""References of attention over the entries of a pattern."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.matmul import sddmm, spmm
from spgrad.kernels.reference.structure import row_numbers


def _scores(
    ptr: Tensor, idx: Tensor, bias: Tensor | None, left: Tensor, right: Tensor, scale: float
) -> Tensor:
    """scale left_i . right_j + bias of every entry, for one head; `bias` in the view's order."""
    scores = sddmm(ptr, idx, None, left, right) * scale
    return scores if bias is None else scores + bias


def _in_view(t: Tensor | None, perm: Tensor | None) -> Tensor | None:
    return t if t is None or perm is None else t[perm]


def _lines_shape(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])


@kernel(
    "attention(Tensor ptr, Tensor idx, Tensor? perm, Tensor? bias, Tensor q, Tensor k, Tensor v,"
    " float scale) -> (Tensor, Tensor)",
    fake=_lines_shape,
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
        bias: Added to the scores (nse,), the same for every head; None for nothing.
        q: Queries (heads, m, d), float32 or float64.
        k: Keys (heads, n, d).
        v: Values (heads, n, e).
        scale: Factor of the scores.

    Returns:
        out (heads, m, e) and lse (heads, m), the logarithm of the sum of the exponentials of a
        row's scores. A row without entries, or whose scores are all minus infinity, gives 0 and
        minus infinity.
    """
    row = row_numbers(ptr, idx.shape[0])
    bias = _in_view(bias, perm)
    outs, sums = [], []
    for head in range(q.shape[0]):
        scores = _scores(ptr, idx, bias, q[head], k[head], scale)
        none = scores.new_full((q.shape[1],), -torch.inf)
        largest = none.scatter_reduce(0, row.long(), scores, "amax")
        largest = largest.where(largest != -torch.inf, 0)  # a row without weights
        weights = (scores - largest[row]).exp()
        total = torch.zeros_like(none).index_add_(0, row, weights)
        weights = (weights / total[row]).where(total[row] != 0, 0)
        outs.append(spmm(ptr, idx, None, weights, v[head]))
        sums.append(largest + total.log())
    if not outs:
        return q.new_empty(0, q.shape[1], v.shape[2]), q.new_empty(0, q.shape[1])
    return torch.stack(outs), torch.stack(sums)


def _sides_shape(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    bias: Tensor | None,
    left: Tensor,
    right: Tensor,
    g: Tensor,
    v: Tensor,
    lse: Tensor,
    delta: Tensor,
    scale: float,
    by_rows: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    db = g.new_empty(0 if by_rows else g.shape[0], *g.shape[1:])
    return (
        torch.empty_like(left),
        db,
        left.new_empty(idx.shape[0] if by_rows and bias is not None else 0),
    )


@kernel(
    "attention_backward(Tensor ptr, Tensor idx, Tensor? perm, Tensor? bias, Tensor left,"
    " Tensor right, Tensor g, Tensor v, Tensor lse, Tensor delta, float scale, bool by_rows)"
    " -> (Tensor, Tensor, Tensor)",
    fake=_sides_shape,
)
def attention_backward(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    bias: Tensor | None,
    left: Tensor,
    right: Tensor,
    g: Tensor,
    v: Tensor,
    lse: Tensor,
    delta: Tensor,
    scale: float,
    by_rows: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of one side of `attention`; with w the weights, c = w (g.v - delta).

    By rows, left_i = q_i, right_j = k_j: dq_i = scale sum of c k_j, and d bias = c. By columns, on
    the transposed view, left_j = k_j, right_i = q_i, and `g`, `v` have changed places:
    dk_j = scale sum of c q_i, dv_j = sum of w g_i.

    Args:
        ptr: Line pointers (lines + 1,), of rows or of columns.
        idx: Index across the lines of every entry (nse,).
        perm: Where an entry's value stands in `bias` (nse,); None for in place.
        bias: As in `attention`.
        left: q or k (heads, lines, d).
        right: k or q (heads, across, d).
        g: The cotangent, or the values (heads, lines, e).
        v: The values, or the cotangent (heads, across, e).
        lse: Of `attention` (heads, rows).
        delta: Dot product of cotangent and result (heads, rows).
        scale: Factor of the scores.
        by_rows: Which of the two.

    Returns:
        dq or dk; empty or dv; d bias (nse,) by rows if there is a bias, or else empty.
    """
    line = row_numbers(ptr, idx.shape[0])
    row = line if by_rows else idx
    in_view = _in_view(bias, perm)
    of_left, of_right = (
        torch.empty_like(left),
        g.new_empty(0 if by_rows else g.shape[0], *g.shape[1:]),
    )
    of_bias = left.new_zeros(idx.shape[0])
    for head in range(left.shape[0]):
        scores = _scores(ptr, idx, in_view, left[head], right[head], scale)
        of_row = lse[head][row]
        weights = (scores - of_row).exp().where(of_row != -torch.inf, 0)
        change = weights * (sddmm(ptr, idx, None, g[head], v[head]) - delta[head][row])
        of_left[head] = spmm(ptr, idx, None, change * scale, right[head])
        if not by_rows:
            of_right[head] = spmm(ptr, idx, None, weights, v[head])
        of_bias += change
    if not by_rows or bias is None:
        return of_left, of_right, of_bias[:0].clone()
    if perm is None:
        return of_left, of_right, of_bias
    return of_left, of_right, torch.empty_like(of_bias).index_copy_(0, perm.long(), of_bias)
