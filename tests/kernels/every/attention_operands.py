"""Operands of the attention kernels, made of a view."""

import torch

from spgrad import kernels
from spgrad.kernels import REFERENCES


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def attention(v):
    return *v.valued, randn(2, v.m, 3), randn(2, v.n, 3), randn(2, v.n, 5), 0.5


def attention_by_head(v):
    ptr, idx, perm, _, *operands = attention(v)
    return ptr, idx, perm, randn(2, v.nse), *operands


def attention_backward(v, forward=attention):
    ptr, idx, perm, bias, q, k, val, factor = forward(v)
    out, lse = REFERENCES["attention"](ptr, idx, perm, bias, q, k, val, factor)
    g = randn(*out.shape)
    by_cols = kernels.transpose_plan(ptr, idx, v.n)
    columns = *by_cols[:2], perm[by_cols[2].long()]
    return ptr, idx, perm, *columns, bias, q, k, val, g, lse, (g * out).sum(-1), factor


def block_attention(v, bias=None):
    """Blocks of 3 x 4 elements; one bias for two heads."""
    bias = randn(12 * v.nse) if bias is None else bias
    q, k, val = randn(2, 3 * v.m, 3), randn(2, 4 * v.n, 3), randn(2, 4 * v.n, 5)
    return *v.permuted, bias, q, k, val, 0.5, 3, 4


def block_attention_by_head(v):
    return block_attention(v, randn(2, 12 * v.nse))


def masked_block_attention(v):
    return block_attention(v, torch.rand(12 * v.nse) > 0.3)


def block_attention_backward(v, forward=block_attention):
    ptr, idx, perm, bias, q, k, val, *options = forward(v)
    out, lse = REFERENCES["block_attention"](ptr, idx, perm, bias, q, k, val, *options)
    g = randn(*out.shape)
    by_cols = kernels.transpose_plan(ptr, idx, v.n)
    columns = *by_cols[:2], perm[by_cols[2].long()]
    return ptr, idx, perm, *columns, bias, q, k, val, g, lse, (g * out).sum(-1), *options


def additive_attention(v, heads, n, biased=False, slope=0.2):
    """With additive scores; with a slope of 0 and a bias, without sums of the scores above zero."""
    bias = randn(v.nse, heads) if biased else None
    operands = randn(v.m, heads), randn(v.n, heads), randn(v.n, heads * n)
    return *v.permuted, bias, *operands, slope, not biased or slope > 0


def additive_attention_backward(v, *options):
    ptr, idx, perm, *operands, split = additive_attention(v, *options)
    found = REFERENCES["additive_attention"](ptr, idx, perm, *operands, split)
    by_cols = kernels.transpose_plan(ptr, idx, v.n)
    columns = *by_cols[:2], perm[by_cols[2].long()]
    return *columns, *operands, randn(*found[0].shape), *found


ADDED = [(1, 5), (8, 4, True), (16, 2), (3, 7, True), (24, 1, True, 0.0), (4, 0), (0, 0)]
"""Heads and columns of each, whether there is a bias, and the slope."""
ADDITIVE = [lambda v, o=o: additive_attention(v, *o) for o in ADDED]
ADDITIVE_BACKWARD = [lambda v, o=o: additive_attention_backward(v, *o) for o in ADDED]
