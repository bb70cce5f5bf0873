"""References of attention over the elements of dense blocks: that over entries, on all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import in_view_order
from spgrad.kernels.reference.layouts.blocks import expand_blocks
from spgrad.kernels.reference.products.attention import (
    attention,
    attention_backward,
    gradients_shape,
    lines_shape,
)


def _entries(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    lines: int,
    width: int,
    transposed: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The view of the elements of blocks, with the places of their values."""
    ptr, idx, place = expand_blocks(ptr, idx, lines, width, transposed)
    if perm is None:
        return ptr, idx, place
    size = lines * width
    return ptr, idx, in_view_order(perm, place // size) * size + place % size


def _is_mask(bias: Tensor | None) -> bool:
    return bias is not None and bias.dtype == torch.bool


def _added(bias: Tensor | None, q: Tensor) -> Tensor | None:
    """What is added to the scores, in the dtype of q; minus infinity where a bool bias is False."""
    if bias is None or bias.dtype != torch.bool:
        return bias
    return torch.zeros_like(bias, dtype=q.dtype).masked_fill(~bias, -torch.inf)


def _gradients_shape(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients without their numbers; a bool bias has none."""
    bias = operands[6]  # behind two views
    return gradients_shape(*operands[:6], None if _is_mask(bias) else bias, *operands[7:])


@kernel(
    "block_attention(Tensor ptr, Tensor idx, Tensor? perm, Tensor? bias, Tensor q, Tensor k,"
    " Tensor v, float scale, SymInt block_lines, SymInt block_width) -> (Tensor, Tensor)",
    fake=lines_shape,
)
def block_attention(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    block_lines: int,
    block_width: int,
) -> tuple[Tensor, Tensor]:
    """`attention` over the elements of a matrix of dense blocks, by rows of blocks.

    Args:
        ptr: Pointers to the blocks of each row of blocks (m / block_lines + 1,).
        idx: Column of every block, counted in blocks (nb,).
        perm: Where a block's values stand in `bias`, counted in blocks (nb,); None for in place.
        bias: As in `attention`, with nse = nb block_lines block_width; a block's row by row. A bool
            bias is True at the elements that take part.
        q: Queries (heads, m, d), float32 or float64.
        k: Keys (heads, n, d).
        v: Values (heads, n, e).
        scale: Factor of the scores.
        block_lines: Rows of a block.
        block_width: Columns of a block; they divide n.

    Returns:
        out (heads, m, e) and lse (heads, m), as `attention`.
    """
    view = _entries(ptr, idx, perm, block_lines, block_width, False)
    return attention(*view, _added(bias, q), q, k, v, scale)


@kernel(
    "block_attention_backward(Tensor ptr, Tensor idx, Tensor? perm, Tensor cols_ptr,"
    " Tensor cols_idx, Tensor? cols_perm, Tensor? bias, Tensor q, Tensor k, Tensor v, Tensor g,"
    " Tensor lse, Tensor delta, float scale, SymInt block_lines, SymInt block_width)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_gradients_shape,
)
def block_attention_backward(
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
    block_lines: int,
    block_width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of `block_attention`; as `attention_backward`.

    Args:
        ptr: Pointers to the blocks of each row of blocks (m / block_lines + 1,).
        idx: Column of every block, counted in blocks (nb,).
        perm: Where a block's values stand in `bias`, counted in blocks (nb,); None for in place.
        cols_ptr: Pointers to the blocks of each column of blocks (n / block_width + 1,).
        cols_idx: Row of every block, by columns, counted in blocks (nb,).
        cols_perm: Where its values stand in `bias`, counted in blocks (nb,); None for in place.
        bias: As in `block_attention`.
        q: Queries (heads, m, d).
        k: Keys (heads, n, d).
        v: Values (heads, n, e).
        g: Cotangent (heads, m, e).
        lse: Of `block_attention` (heads, m).
        delta: Dot product of cotangent and result (heads, m).
        scale: Factor of the scores.
        block_lines: Rows of a block.
        block_width: Columns of a block; they divide n.

    Returns:
        dq, dk, dv, and d bias, of the shape of the bias; empty if there is none or it is bool.
    """
    by_rows = _entries(ptr, idx, perm, block_lines, block_width, False)
    by_cols = _entries(cols_ptr, cols_idx, cols_perm, block_width, block_lines, True)
    operands = _added(bias, q), q, k, v, g, lse, delta
    *found, d_bias = attention_backward(*by_rows, *by_cols, *operands, scale)
    return *found, q.new_empty(0) if _is_mask(bias) else d_bias
