"""Products of features by chunks of rows give what two products of all rows give."""

import pytest
import torch

import spgrad
from spgrad import nn
from spgrad.nn.graph import features
from spgrad.nn.graph.features import two_products

F64 = torch.float64


def operands(rows=200, dtype=F64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, dtype=dtype, generator=generator).requires_grad_()
    mix = torch.randn(6, 3, dtype=dtype, generator=generator).requires_grad_()
    torch.manual_seed(0)
    return x, torch.nn.Linear(6, 4, bias=False, dtype=dtype), mix


@pytest.fixture
def chunks(monkeypatch):
    """Chunks of a few rows, and a list of how many each call had."""
    seen = []
    products = features._products

    def counted(x, weight, mix, rows):
        seen.append(-(-x.shape[0] // rows))
        return products(x, weight, mix, rows)

    monkeypatch.setattr(features, "_products", counted)
    monkeypatch.setattr(features, "_FEWEST", 1)
    monkeypatch.setattr(features, "_LEAST", 1000)
    monkeypatch.setattr(features, "_AT_ONCE", 600)
    return seen


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("wanted", [(0, 1, 2), (1, 2), (0,), (2,)])
def test_values_and_gradients(chunks, wanted):
    x, linear, mix = operands()
    leaves = [(x, linear.weight, mix)[i] for i in wanted]
    for leaf in (x, linear.weight, mix):
        leaf.requires_grad_(any(leaf is other for other in leaves))
    found, expected = two_products(x, linear, mix), (linear(x), x @ mix)
    assert chunks[0] >= 3
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(two_products(x, linear, mix), expected)
    assert len(chunks) == 2
    g = [torch.randn_like(y) for y in expected]
    for kept in ([0, 1], [0], [1]):
        args = ([ys[i] for i in kept] for ys in (found, expected))
        cotangents = [g[i] for i in kept]
        ours, theirs = (
            torch.autograd.grad(
                [y for y in ys if y.requires_grad],
                leaves,
                [c for y, c in zip(ys, cotangents, strict=True) if y.requires_grad],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            for ys in args
            if any(y.requires_grad for y in expected)
        )
        torch.testing.assert_close(ours, theirs)


def test_second_derivatives(chunks):
    x, linear, mix = operands()

    def call(x, weight, mix):
        linear._parameters["weight"] = weight
        return two_products(x, linear, mix)

    features._LEAST, features._AT_ONCE = 0, 19  # chunks of one row; the fixture sets them back
    given = x[:3].detach().requires_grad_(), linear.weight.detach().requires_grad_(), mix
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)
    assert set(chunks) == {3}


@pytest.mark.usefixtures("chunks")
def test_threads_change_no_bit():
    x, linear, mix = operands()
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        ys = two_products(x, linear, mix)
        total = sum(y.square().sum() for y in ys)
        found.append([*ys, *torch.autograd.grad(total, [x, linear.weight, mix])])
    torch.set_num_threads(before)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def test_layers_that_do_more_are_called(chunks):
    """Hooks, a bias, a sparse weight, other dtypes and few rows leave the chunks out."""
    x, linear, mix = operands()
    calls = []
    linear.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(two_products(x, linear, mix), (linear(x), x @ mix))
    assert len(calls) == 2
    x, linear, mix = operands()
    biased = torch.nn.Linear(6, 4, dtype=F64)
    torch.testing.assert_close(two_products(x, biased, mix)[0], biased(x))
    sparse = spgrad.nn.SparseLinear(6, 4, bias=False, dtype=F64, density=0.5)
    torch.testing.assert_close(two_products(x, sparse, mix)[0], sparse(x))
    x, linear, mix = operands(dtype=torch.bfloat16)
    two_products(x, linear, mix)
    x, linear, mix = operands(dtype=torch.float32)
    two_products(x[:9], linear, mix)
    with torch.autocast("cpu"):
        assert two_products(x, linear, mix)[0].dtype == torch.bfloat16
    assert not chunks


def test_graph_attention_takes_them(chunks):
    torch.manual_seed(0)
    layer, n = nn.GraphAttention(6, 4, heads=2).double(), 300
    A = spgrad.from_edges(torch.randint(n, (2, 900)), size=n)
    x, g = torch.randn(n, 6, dtype=F64, requires_grad=True), torch.randn(n, 8, dtype=F64)
    leaves = [x, *layer.parameters()]
    found = [layer(x, A)]
    found += torch.autograd.grad(found[0], leaves, g)
    assert chunks[0] >= 3
    layer.lin.register_forward_hook(lambda *_: None)
    wanted = [layer(x, A)]
    wanted += torch.autograd.grad(wanted[0], leaves, g)
    torch.testing.assert_close(found, wanted)
    assert len(chunks) == 1


def test_chunks_of_few_rows_are_left_out(chunks, monkeypatch):
    x, linear, mix = operands()
    y, s = two_products(x, linear, mix)
    assert chunks
    chunks.clear()
    monkeypatch.setattr(features, "_FEWEST", 10_000)
    whole = two_products(x, linear, mix)
    assert not chunks
    torch.testing.assert_close(whole, (y, s))
