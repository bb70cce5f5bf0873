"""Attention over a mask: what the dense function at the same places does not say."""

import pytest
import torch
from samples import drawn

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

F64 = torch.float64

layouts = pytest.mark.parametrize("name", support.ALL)


@layouts
@pytest.mark.parametrize("recorded", [False, True])
def test_dropout_sets_weights_to_zero_and_scales_the_others(name, recorded):
    mask = testing.random_sparse((40, 40), LAYOUTS[name], dtype=torch.bool, density=0.5)
    q, k = torch.randn(2, 40, 3, requires_grad=recorded)
    each = torch.eye(40)  # so that the result is the weights
    whole = spgrad.scaled_dot_product_attention(q, k, each, mask)
    some = spgrad.scaled_dot_product_attention(q, k, each, mask, dropout_p=0.25)
    kept = some != 0
    testing.assert_close(some[kept], whole[kept] / 0.75)
    share = kept.sum() / (whole != 0).sum()
    assert 0.65 < share < 0.85
    again = spgrad.scaled_dot_product_attention(q, k, each, mask, dropout_p=0.25)
    assert not torch.equal(some, again)


def test_no_dropout_is_repeatable():
    mask = testing.random_sparse((6, 6), dtype=torch.bool)
    q, k, v = torch.randn(3, 6, 4)
    first = spgrad.scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(first, spgrad.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.0))


@pytest.mark.parametrize("name", support.ALL)
def test_an_attention_layer_in_one_layout(sparse, name):
    q, k, v = (torch.randn(4, 3, dtype=F64, requires_grad=True) for _ in range(3))
    A = sparse(drawn(4, 4) + torch.eye(4, dtype=F64), name)
    mask = testing.mask_of(A.pattern)
    scores = torch.sparse.sampled_addmm(A, q, k.t(), beta=0.0)
    weights = torch.sparse.softmax(scores, -1)
    y = weights @ v
    assert scores.layout == weights.layout == A.layout
    assert weights.pattern is A.pattern
    dense = torch.where(mask, q @ k.t(), -torch.inf).softmax(-1) @ v
    testing.assert_close(y, dense)
    grads = torch.autograd.grad(y.square().sum(), (q, k, v))
    for got, want in zip(grads, torch.autograd.grad(dense.square().sum(), (q, k, v)), strict=True):
        testing.assert_close(got, want)
    x = torch.randn(4, 3, dtype=F64)
    terms = torch.where(mask[:, :, None], A.to_dense()[:, :, None] * x, -torch.inf)
    testing.assert_close(spgrad.spmm(A, x, "amax"), terms.amax(1))
