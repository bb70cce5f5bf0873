"""Layers within torch.func, where the first call with a graph finds its patterns."""

import pytest
import torch
from nn_graphs import random_graph
from torch.autograd import forward_ad

from spgrad import nn

NODES = 8
LAYERS = {
    "convolution": lambda: nn.GraphConv(4, 3),
    "attention": lambda: nn.GraphAttention(4, 3, 2),
    "attention of version 2": lambda: nn.GraphAttention(4, 3, 2, version=2),
    "mean": lambda: nn.SAGEConv(4, 3),
    "maximum": lambda: nn.MessagePassing("amax"),
}


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", LAYERS.values(), ids=list(LAYERS))
def test_the_first_call_with_a_graph(make):
    """Of vmap, of both modes, and of gradients of the weights, each with a graph of its own."""
    layer, func = make().double(), torch.func
    xs = draw(2, NODES, 4)
    A = random_graph(NODES)

    def call(x, A=A):
        return layer(x, A)

    def anew(transform):
        """The transform of a call with equal elements, of which nothing is kept."""
        other = random_graph(NODES)
        return transform(lambda x: call(x, other))

    torch.testing.assert_close(anew(func.vmap)(xs), torch.stack([call(x) for x in xs]))
    wanted = torch.autograd.functional.jacobian(call, xs[0])
    torch.testing.assert_close(anew(func.jacrev)(xs[0]), wanted)
    torch.testing.assert_close(anew(func.jacfwd)(xs[0]), wanted)
    other = random_graph(NODES)
    with forward_ad.dual_level():
        moved = call(forward_ad.make_dual(xs[0], xs[1]), other)
        tangent = forward_ad.unpack_dual(moved).tangent
    torch.testing.assert_close(tangent, (wanted * xs[1]).sum((2, 3)))
    torch.testing.assert_close(call(xs[0], other), call(xs[0]))


@pytest.mark.parametrize("make", list(LAYERS.values())[:-1], ids=list(LAYERS)[:-1])
def test_gradients_of_the_weights_for_each_item(make):
    layer, func, A = make().double(), torch.func, random_graph(NODES)
    xs = draw(2, NODES, 4)

    def total(parameters, x):
        return func.functional_call(layer, parameters, (x, A)).square().sum()

    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    found = func.vmap(func.grad(total), (None, 0))(parameters, xs)
    names, leaves = zip(*layer.named_parameters(), strict=True)
    for i, x in enumerate(xs):
        grads = torch.autograd.grad(layer(x, random_graph(NODES)).square().sum(), leaves)
        torch.testing.assert_close([found[name][i] for name in names], list(grads))


def test_what_was_found_in_a_transform_serves_other_calls():
    """It is no tensor of the transform."""
    layer, A, xs = nn.GraphConv(4, 3).double(), random_graph(NODES), draw(2, NODES, 4)
    torch.func.vmap(lambda x: layer(x, A))(xs)
    found, wanted = layer(xs[0], A), layer(xs[0], random_graph(NODES))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        *(torch.autograd.grad(y.sum(), layer.lin.weight) for y in (found, wanted))
    )


@pytest.mark.parametrize("make", LAYERS.values(), ids=list(LAYERS))
def test_autocast_takes_features_of_16_bits(make):
    """As the layer before gives them; torch.nn.Linear takes them too."""
    layer, A, x = make(), random_graph(NODES).float(), draw(NODES, 4).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x.bfloat16(), A)
    torch.testing.assert_close(found.float(), layer(x, A), atol=0.05, rtol=0.05)
