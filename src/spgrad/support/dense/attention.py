"""The dense functions that attention is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor,
    *,
    mask: torch.Tensor,
    heads: bool,
    scale: float | None = None,
) -> torch.Tensor:
    """softmax(scale Q K^T + A) V over the elements of A, or over those that are True."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if heads:
        attn_mask, mask = attn_mask.movedim(-1, -3), mask.movedim(-1, -3)
    mask, bias = (attn_mask, 0) if attn_mask.dtype == torch.bool else (mask, attn_mask)
    scores = (query @ key.mT * factor + bias).where(mask, -torch.inf)
    weights = scores.softmax(-1).where(mask, 0)
    return weights.where(mask.any(-1, keepdim=True), 0) @ value


def additive_attention(
    left: torch.Tensor,
    right: torch.Tensor,
    x: torch.Tensor,
    attn_mask: torch.Tensor,
    *,
    mask: torch.Tensor,
    heads: bool,
    negative_slope: float = 0.2,
) -> torch.Tensor:
    """softmax(leaky_relu(left_i + right_j + a_ij)) x, with or without heads behind the rows."""
    several = heads or x.dim() > attn_mask.dim()
    if not several:
        left, right, x = left[..., None], right[..., None], x[..., None, :]
    if not heads:
        attn_mask, mask = attn_mask[..., None], mask[..., None]
    mask, bias = (attn_mask, 0) if attn_mask.dtype == torch.bool else (mask, attn_mask)
    sums = left[..., None, :] + right[..., None, :, :] + bias  # (*b, m, k, h)
    scores = F.leaky_relu(sums, negative_slope).where(mask, -torch.inf)
    weights = scores.softmax(-2).where(mask, 0).where(mask.any(-2, keepdim=True), 0)
    y = torch.einsum("...mkh,...khn->...mhn", weights, x)
    return y if several else y.squeeze(-2)
