"""Layers that are called with the arguments of torch_geometric."""

import pytest
import torch

import spgrad
from spgrad import nn

LAYERS = [
    nn.MessagePassing,
    lambda: nn.GraphConv(2, 3),
    lambda: nn.SAGEConv(2, 3),
    lambda: nn.GINConv(torch.nn.Linear(2, 3)),
    lambda: nn.GraphAttention(2, 3),
]


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: type(make()).__name__)
def test_the_error_says_what_to_pass(make):
    layer, x = make(), torch.ones(3, 2)
    edges, weights = torch.tensor([[0, 1], [1, 2]]), torch.ones(2)
    accepted = r"are accepted, where A has the edges and their weights\. For PyG's edge_index and"
    for call in (
        lambda: layer(x, edges, weights, weights),
        lambda: layer(x, edges, edge_weight=weights),
        lambda: layer(x, edge_index=edges),
        lambda: layer(x),
        lambda: layer(x, A=edges, edge_attr=weights),
    ):
        with pytest.raises(spgrad.ArgumentKindError, match=accepted) as caught:
            call()
        assert str(caught.value).startswith(
            f"spgrad.nn.{type(layer).__name__}: the layer is called"
        )
    A = spgrad.from_edges(edges.flip(0), weights, 3)
    assert layer(x=x, A=A).shape == layer(x, A).shape


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: type(make()).__name__)
def test_a_batch_of_graphs_is_refused(make):
    hint = r"Join a batch of graphs with spgrad\.block_diag\."
    for A in (spgrad.eye(3).unsqueeze(0), spgrad.from_dense(torch.ones(3), torch.sparse_coo)):
        with pytest.raises(spgrad.ArgumentValueError, match=hint):
            make()(torch.ones(3, 2), A)


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: type(make()).__name__)
def test_a_dense_graph_is_refused_by_the_layer(make):
    layer = make()
    says = rf"spgrad\.nn\.{type(layer).__name__}: `A` is a dense tensor of shape \(3, 3\)"
    with pytest.raises(spgrad.ArgumentKindError, match=says):
        layer(torch.ones(3, 2), torch.ones(3, 3))


def test_three_arguments():
    layer = nn.GraphConv(2, 3)
    with pytest.raises(spgrad.ArgumentKindError, match=r"called with 3 arguments; \(x, A\) are"):
        layer(torch.ones(3, 2), torch.tensor([[0, 1], [1, 2]]), torch.ones(2))


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: type(make()).__name__)
def test_an_edge_index_and_a_graph_before_the_features(make):
    layer, x, edges = make(), torch.ones(3, 2), torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(spgrad.ArgumentKindError, match=r"from_edges\(edge_index\.flip\(0\)"):
        layer(x, edges)
    with pytest.raises(spgrad.ArgumentKindError, match=r"The features come first: layer\(x, A\)"):
        layer(spgrad.from_edges(edges, size=3), x)
