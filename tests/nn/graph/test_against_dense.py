"""Layers that aggregate neighbours, beside the same formula of dense tensors: values, gradients.

And their defaults, beside those of torch_geometric.
"""

import inspect

import pytest
import torch
from nn_graphs import features, graph, peer, weights  # noqa: F401

from spgrad import nn

DOUBLE = {"dtype": torch.float64}


def aggregated(aggr, x, dense, mask):
    """What the neighbours of each row give, of messages A_ij x_j; 0 without any."""
    messages = dense[..., None] * x  # (m, k, c)
    there, any_there = mask[..., None], mask.any(1, keepdim=True)
    if aggr in ("sum", "mean"):
        y = (messages * there).sum(1)
        return y / mask.sum(1, keepdim=True).clamp(min=1) if aggr == "mean" else y
    if aggr == "prod":
        return torch.where(any_there, messages.where(there, 1).prod(1), 0)
    bound = -torch.inf if aggr == "amax" else torch.inf
    return torch.where(any_there, getattr(messages.where(there, bound), aggr)(1), 0)


def sage(layer, x, *graph_):
    return layer.lin_l(aggregated(layer.aggr, x, *graph_)) + layer.lin_r(x)


def gin(layer, x, *graph_):
    return layer.nn((1 + layer.eps) * x + aggregated("sum", x, *graph_))


CASES = {
    aggr: (nn.MessagePassing(aggr), lambda layer, *given: aggregated(layer.aggr, *given))
    for aggr in ("sum", "mean", "amax", "amin", "prod")
} | {
    "sage": (nn.SAGEConv(4, 3, **DOUBLE), sage),
    "sage, largest": (nn.SAGEConv(4, 3, "amax", **DOUBLE), sage),
    "gin": (nn.GINConv(torch.nn.Linear(4, 3, **DOUBLE), 0.3, train_eps=True, **DOUBLE), gin),
}


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
@pytest.mark.parametrize("case", CASES)
def test_layers_are_the_dense_formula(case, layout):
    layer, formula = CASES[case]
    A = graph(layout, weights=weights()).requires_grad_()
    dense = A.detach().to_dense().requires_grad_()
    mask = dense.detach() != 0
    x = features().requires_grad_()
    found, wanted = layer(x, A), formula(layer, x, dense, mask)
    torch.testing.assert_close(found, wanted)
    g, leaves = torch.randn_like(wanted), [x, *layer.parameters()]
    *grads, of_A = torch.autograd.grad(found, [*leaves, A], g)
    *others, of_dense = torch.autograd.grad(wanted, [*leaves, dense], g)
    torch.testing.assert_close(grads, others)
    assert of_A.pattern is A.pattern
    torch.testing.assert_close(of_A.to_dense(), torch.where(mask, of_dense, 0))


def defaults(layer):
    found = inspect.signature(layer).parameters.values()
    return {p.name: p.default for p in found if p.default is not p.empty}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.GraphConv, "GCNConv"),
        (nn.SAGEConv, "SAGEConv"),
        (nn.GINConv, "GINConv"),
        (nn.GraphAttention, "GATConv"),
    ],
)
def test_defaults_are_those_of_torch_geometric(peer, layer, name):  # noqa: F811
    theirs = defaults(getattr(peer, name))
    if name == "GCNConv":
        theirs["add_self_loops"] = theirs["normalize"]  # it says None for this
    ours = defaults(layer)
    assert {k: ours[k] for k in ours if k in theirs} == {k: theirs[k] for k in theirs if k in ours}
