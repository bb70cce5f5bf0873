"""Keys that items of a batch leave out of sparse attention."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentKindError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert, flat_values
from spgrad.lowering.views import rows
from spgrad.nn.graph.loops import with_dense_dims
from spgrad.ops.products.attention import scaled_dot_product_attention
from spgrad.torch_protocol.compile import when_tracing


def padded_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: SparseTensor,
    key_padding_mask: Any,
    dropout: float,
) -> torch.Tensor:
    """Attention (B, heads, L, e) of q (B, heads, L, d), or without B, in which items lack keys.

    The items share the pattern of the mask (L, S) or (L, S | heads); what they add to the scores
    are values of their own, as heads have them.
    """
    if q.dim() == 3:
        return padded_attention(q[None], k[None], v[None], mask, key_padding_mask, dropout)[0]
    require_shared(mask)
    added = added_to_scores(key_padding_mask, (q.shape[0], mask._pattern.matrix[1]), q.dtype)
    mask = without_repeats(mask)
    if mask._pattern.blocksize is None:
        mask = convert(mask, torch.sparse_csr)
    column, own = _columns(mask._pattern), flat_values(mask)
    if own.dtype == torch.bool:
        own = torch.zeros_like(own, dtype=q.dtype).masked_fill(~own, -torch.inf)
    of_item = added[:, column].mT  # (elements, B)
    if own.dim() == 1:
        bias = of_item + own[:, None]
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    else:  # a value for each item and head
        bias = (of_item[:, :, None] + own[:, None, :]).flatten(1)
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    pattern = with_dense_dims(mask._pattern, (bias.shape[1],))
    every = on_pattern(bias.reshape(pattern.values_shape), pattern)
    y = scaled_dot_product_attention(q, k, v, every, dropout)
    return y.transpose(0, 1) if own.dim() == 1 else y.unflatten(0, (added.shape[0], -1))


when_tracing(padded_attention)


def require_shared(mask: SparseTensor) -> None:
    """Refuses a mask with a pattern for each item, or with more than a value for each head."""
    pattern = mask._pattern
    if len(pattern.shape) - pattern.dense_dim != 2 or pattern.dense_dim > 1:
        shape, hint = tuple(mask._pattern.shape), "Items of a batch share the pattern."
        raise checks.bad_shape("attn_mask", shape, "(L, S) or (L, S | num_heads)", hint)


def _columns(pattern: Pattern) -> torch.Tensor:
    """The column of each element of CSR, BSR or BSC, int64, in the order of the values."""
    if pattern.blocksize is None:
        return pattern.indices[1].to(torch.int64)
    view = rows(pattern)
    column = view.idx.to(torch.int64)
    assert view.perm is not None  # the lines of blocks list places of values
    return torch.empty_like(column).index_copy_(0, view.perm.to(torch.int64), column)


def added_to_scores(padding: Any, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """What is added to all scores of a key (B, S), or the refusal; (S,) stands for one item."""
    if not isinstance(padding, torch.Tensor) or isinstance(padding, SparseTensor):
        raise ArgumentKindError(
            f"`key_padding_mask` is {checks.describe_kind(padding)}; a dense tensor, True where a "
            "key is left out, is accepted. Leave it out for none."
        )
    if padding.dim() == 1 and shape[0] == 1:
        padding = padding[None]
    if tuple(padding.shape) != shape:
        hint = "It has a row for each item of the batch and a column for each key."
        raise checks.bad_shape("key_padding_mask", tuple(padding.shape), str(shape), hint)
    if padding.dtype == torch.bool:
        zeros = torch.zeros(shape, dtype=dtype, device=padding.device)
        return zeros.masked_fill(padding, -torch.inf)
    if not padding.dtype.is_floating_point:
        raise ArgumentKindError(
            f"`key_padding_mask` has dtype {padding.dtype}; bool and floating dtypes are accepted. "
            "Numbers are added to the scores; compare the ints with a number for a bool mask."
        )
    return padding.to(dtype)
