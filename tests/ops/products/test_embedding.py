"""Rows of a sparse table against torch's of the dense one: offsets, padding, weights, refusals."""

import pytest
import torch
import torch.nn.functional as F

import spgrad

X = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, -1.0], [0.0, 0.0, 3.0], [4.0, 5.0, 0.0]]).double()
INDEX, OFFSETS = torch.tensor([1, 3, 3, 0, 2]), torch.tensor([0, 3, 3])


def both(call):
    A, x = spgrad.from_dense(X).requires_grad_(), X.clone().requires_grad_()
    y, wanted = call(A), call(x)
    torch.testing.assert_close(y, wanted)
    g = torch.randn_like(wanted)
    y.backward(g)
    wanted.backward(g)
    torch.testing.assert_close(A.grad.to_dense(), x.grad * (X != 0))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3, -4])
def test_bags(mode, padding):
    both(lambda W: F.embedding_bag(INDEX, W, OFFSETS, mode=mode, padding_idx=padding))
    last = torch.cat([OFFSETS, torch.tensor([5])])
    both(lambda W: F.embedding_bag(INDEX, W, last, mode=mode, include_last_offset=True))


def test_weights_of_a_bag():
    w = torch.randn(5, dtype=torch.float64, requires_grad=True)
    W = spgrad.from_dense(X)
    y = F.embedding_bag(INDEX, W, OFFSETS, mode="sum", per_sample_weights=w)
    v = w.detach().clone().requires_grad_()
    wanted = F.embedding_bag(INDEX, X, OFFSETS, mode="sum", per_sample_weights=v)
    torch.testing.assert_close(y, wanted)
    y.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(w.grad, v.grad)


@pytest.mark.parametrize("padding", [None, 3, -4])
def test_rows(padding):
    both(lambda W: F.embedding(INDEX.view(1, 5), W, padding))


def test_no_input():
    W = spgrad.from_dense(X)
    none = INDEX[:0]
    assert F.embedding(none, W).shape == (0, 3)
    assert F.embedding_bag(none, W, torch.tensor([0, 0])).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda W: F.embedding(INDEX + 2, W), "`input` has 5; rows in"),
        (lambda W: spgrad.embedding(INDEX, W, 4), "`padding_idx` is 4 for 4 rows"),
        (lambda W: spgrad.embedding(INDEX, W, max_norm=1.0), "`max_norm` is given for a sparse"),
        (lambda W: spgrad.embedding(INDEX.double(), W), "`input` has dtype float64"),
        (lambda W: spgrad.embedding(INDEX, W.unsqueeze(0)), "`weight` has shape"),
        (lambda W: spgrad.embedding_bag(INDEX, W), "without offsets"),
        (lambda W: spgrad.embedding_bag(INDEX, W, OFFSETS, mode="x"), "`mode` is 'x'"),
        (
            lambda W: spgrad.embedding_bag(INDEX, W, OFFSETS, per_sample_weights=X[0]),
            "for the mode 'mean'",
        ),
        (
            lambda W: spgrad.embedding_bag(INDEX, W, OFFSETS, mode="sum", per_sample_weights=X[0]),
            "`per_sample_weights` has shape",
        ),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text):
        call(spgrad.from_dense(X))
