"""Sparse attention that also gives its weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.dense_at import dense_at_elements
from spgrad.lowering.products.spmm import sddmm, spmm
from spgrad.lowering.segments import segments_of
from spgrad.nn.graph.loops import with_dense_dims
from spgrad.nn.padding import require_shared
from spgrad.ops.products.attention import require_attention
from spgrad.ops.reductions.softmax import softmax_of_some
from spgrad.torch_protocol.compile import when_tracing


def attention_with_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: SparseTensor,
    added: torch.Tensor | None,
    dropout: float,
    average: bool,
) -> tuple[torch.Tensor, SparseTensor]:
    """Attention (B, heads, L, e) of q (B, heads, L, d), and its weights on the pattern of the mask.

    All may lack B. The mask (L, S) or (L, S | heads) is shared by the items; `added` (B, S) is
    added to the scores of the keys of an item. Weights are (L, S | B, heads), or (L, S | B) if they
    are averaged, and 0 in a row whose scores all are minus infinity.
    """
    require_shared(mask)
    mask, m = without_repeats(mask), q.shape[-2]
    require_attention(mask, q, k, v)
    lead = checks.broadcast_shapes(*(t.shape[:-2] for t in (q, k, v)))
    q, k, v = (t.expand(*lead, *t.shape[-2:]) for t in (q, k, v))
    pattern = with_dense_dims(mask._pattern, lead if len(lead) > 1 else (1, *lead))
    wide = torch.promote_types(q.dtype, torch.float32)
    heads = math.prod(lead)
    left, right, content = (  # (L, B heads, d)
        t.to(wide).reshape(heads, *t.shape[-2:]).transpose(0, 1) for t in (q, k, v)
    )
    scores = sddmm(left / math.sqrt(max(q.shape[-1], 1)), right, pattern)
    scores = scores.reshape(pattern.values_shape)
    if added is not None:
        scores = scores + dense_at_elements(added.to(wide).mT[None, :, :, None], pattern)
    own = stored_values(mask)
    own = own[..., None, :] if mask._pattern.dense_dim else own[..., None, None]
    scores = scores.where(own, -torch.inf) if own.dtype == torch.bool else scores + own
    weights = softmax_of_some(scores.reshape(pattern.elements, heads), segments_of(pattern, (1,)))
    if dropout:
        weights = F.dropout(weights, dropout)
    y = spmm(weights, content, pattern)  # (L, B heads, e)
    y = y.transpose(0, 1).reshape(*lead, m, v.shape[-1]).to(v.dtype)
    vals = weights.to(v.dtype).reshape(*pattern.values_shape[:-2], *lead)
    vals, inner = (vals.mean(-1), lead[:-1]) if average else (vals, lead)
    return y, on_pattern(vals, with_dense_dims(mask._pattern, inner))


when_tracing(attention_with_weights)
