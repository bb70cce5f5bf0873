"""Graphs and comparisons for the tests of graph layers."""

import pytest
import torch

import spgrad

EDGES = torch.tensor([[0, 1, 1, 3, 2, 0, 4, 3, 4], [1, 0, 2, 2, 3, 4, 0, 3, 2]])  # 3 -> 3, no 5 ->
NODES = 6


def graph(layout=torch.sparse_csr, dtype=torch.float64, weights=None, size=NODES):
    """A[target, source] of the edges, ones by default; node 5 is isolated."""
    ones = torch.ones(EDGES.shape[1], dtype=dtype)
    vals = ones if weights is None else weights.to(dtype)
    return spgrad.from_edges(EDGES.flip(0), vals, size, layout=layout)


def random_graph(nodes):
    """A graph of about three edges a node, which `nodes` determines."""
    generator = torch.Generator().manual_seed(nodes)
    edges = torch.unique(torch.randint(0, nodes, (2, 3 * nodes), generator=generator), dim=1)
    return spgrad.from_edges(edges, torch.ones(edges.shape[1], dtype=torch.float64), nodes)


def features(nodes=NODES, channels=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(nodes, channels, generator=generator, dtype=dtype)


def weights(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(EDGES.shape[1], generator=generator, dtype=torch.float64) + 0.5


def same_results(ours, theirs, call_ours, call_theirs, *leaves):
    """Compares values, and gradients of all parameters and leaves, of two layers."""
    theirs.load_state_dict(ours.state_dict())
    found, wanted = call_ours(ours), call_theirs(theirs)
    torch.testing.assert_close(found, wanted)
    g = torch.randn_like(wanted)
    names = [name for name, p in ours.named_parameters() if p.requires_grad]
    of = lambda layer: [dict(layer.named_parameters())[name] for name in names]  # noqa: E731
    ours_grads = torch.autograd.grad(found, [*of(ours), *leaves], g)
    their_grads = torch.autograd.grad(wanted, [*of(theirs), *leaves], g)
    torch.testing.assert_close(ours_grads, their_grads)


@pytest.fixture
def peer():
    return pytest.importorskip("torch_geometric.nn")
