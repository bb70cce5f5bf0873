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


def block_attention_backward(v, forward=block_attention):
    ptr, idx, perm, bias, q, k, val, *options = forward(v)
    out, lse = REFERENCES["block_attention"](ptr, idx, perm, bias, q, k, val, *options)
    g = randn(*out.shape)
    by_cols = kernels.transpose_plan(ptr, idx, v.n)
    columns = *by_cols[:2], perm[by_cols[2].long()]
    return ptr, idx, perm, *columns, bias, q, k, val, g, lse, (g * out).sum(-1), *options
