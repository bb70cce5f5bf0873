"""Graphs of networkx, there and back."""

import networkx as nx
import numpy as np
import pytest
import torch

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
@pytest.mark.parametrize("layout", support.ALL[:3])
def test_the_matrix_is_that_of_networkx(kind, layout):
    G = kind()
    G.add_nodes_from("dcba")
    G.add_weighted_edges_from([("a", "b", 2.0), ("b", "c", 3.0), ("c", "c", 4.0), ("a", "b", 5.0)])
    G.add_edge("d", "a")
    A, nodes = spgrad.from_networkx(G, layout=LAYOUTS[layout])
    assert A.pattern.name == layout
    assert nodes == list("dcba")
    np.testing.assert_array_equal(A.to_dense().numpy(), nx.to_numpy_array(G))
    some, _ = spgrad.from_networkx(G, ["b", "a"], dtype=torch.float64)
    np.testing.assert_array_equal(some.to_dense().numpy(), nx.to_numpy_array(G, ["b", "a"]))
    ones, _ = spgrad.from_networkx(nx.Graph(G), weight=None)
    assert ones.values().unique().tolist() == [1]


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("directed", [False, True])
def test_there_and_back(layout, directed):
    x = torch.tensor([[1.0, 2, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 3, 0, 4]])
    blocks = (2, 2) if layout.startswith("b") else None
    A = spgrad.from_dense(x).to_sparse(layout=LAYOUTS[layout], blocksize=blocks).requires_grad_()
    G = spgrad.to_networkx(A, "wxyz", directed=directed, weight="w")
    assert G.is_directed() == directed
    B, nodes = spgrad.from_networkx(G, weight="w")
    assert nodes == list("wxyz")
    assert torch.equal(B.to_dense(), x)


def test_the_numbers_in_a_tensor_are_names():
    A = spgrad.from_edges([[0, 1], [1, 0]], [2.0, 3.0])
    for names in (torch.tensor([5, 7]), torch.tensor([5, 7]).numpy()):
        G = spgrad.to_networkx(A, names)
        assert G[5][7]["weight"] == 2
        assert all(type(node) is int for node in G)
        assert torch.equal(spgrad.from_networkx(G, names).A.to_dense(), A.to_dense())


def test_graphs_without_edges():
    assert spgrad.from_networkx(nx.Graph()).A.shape == (0, 0)
    assert spgrad.to_networkx(spgrad.zeros(3, 3)).number_of_nodes() == 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: spgrad.from_networkx([(0, 1)]), "`graph` is a list; a graph of networkx"),
        (lambda: spgrad.from_networkx(nx.path_graph(2), [0, 5]), "`nodes` has 5, which is"),
        (lambda: spgrad.from_networkx(nx.path_graph(2), [0, 0]), "`nodes` has 0 more than"),
        (lambda: spgrad.to_networkx(spgrad.eye(2), torch.tensor([5, 5])), "has 5 more than once"),
        (lambda: spgrad.to_networkx(spgrad.eye(2), [None, 1]), "`nodes` has None"),
        (lambda: spgrad.to_networkx(spgrad.zeros(2, 3)), "a square matrix"),
        (lambda: spgrad.to_networkx(spgrad.eye(2), "a"), "`nodes` has shape (1,)"),
        (lambda: spgrad.to_networkx(spgrad.eye(2), "aa"), "`nodes` has 'a' more than"),
        (
            lambda: spgrad.to_networkx(spgrad.from_edges([[0], [1]]), directed=False),
            "`A` is not symmetric",
        ),
        (lambda: spgrad.to_networkx(spgrad.zeros(1, 2, 2)), "one matrix of a batch"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError) as raised:
        call()
    assert text in str(raised.value)


@pytest.mark.parametrize("weight", ["much", None, [1.0], 2j, torch.ones(2)])
def test_a_weight_that_is_no_number(weight):
    G = nx.Graph()
    G.add_edge(0, 1, weight=weight)
    says = "`weight` is 'weight', which is no number of float32 for some edge"
    with pytest.raises(spgrad.ArgumentKindError, match=says):
        spgrad.from_networkx(G)


def test_a_weight_that_the_dtype_does_not_hold():
    G = nx.Graph()
    G.add_edge(0, 1, weight=300)
    with pytest.raises(spgrad.ArgumentKindError, match="no number of int8 for some edge"):
        spgrad.from_networkx(G, dtype=torch.int8)
