"""The row of attention."""

from __future__ import annotations

import torch

from spgrad.support.table import Op


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor,
    *,
    mask: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    mask, bias = (attn_mask, 0) if attn_mask.dtype == torch.bool else (mask, attn_mask)
    scores = (query @ key.mT * factor + bias).where(mask, -torch.inf)
    weights = scores.softmax(-1).where(mask, 0)
    return weights.where(mask.any(-1, keepdim=True), 0) @ value


ROWS = (
    Op(
        "scaled_dot_product_attention",
        "attention",
        ("torch.nn.functional.scaled_dot_product_attention",),
        (
            "q[m,d] k[k,d] v[k,c] A[m,k] -> y[m,c]",
            "q[2,3,m,d] k[2,3,k,d] v[2,3,k,c] A[m,k] -> y[2,3,m,c]",
            "q[b,3,m,d] k[b,3,k,d] v[1,3,k,c] A[b,1,m,k] -> y[b,3,m,c]",
            "q[m,d] k[k,d] v[b,k,c] A[b,m,k] -> y[b,m,c]",
        ),
        _attention,
        masked=True,
        samples=({}, {"scale": 2.0}),
    ),
)
