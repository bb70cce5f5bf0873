"""One layer of eight heads on the graphs of the benchmark, beside torch_geometric's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch

import spgrad
from benchmarks.matrices import load
from benchmarks.training.programs import OWN, Epoch, edges_of, geometric

GRAPHS = ("road", "wing", "memplus", "astro-ph", "grid-250k", "social")
HEADS, CHANNELS = 8, 4


@cache
def _graph(name: str) -> spgrad.SparseTensor:
    return spgrad.from_scipy(load(name, "float32")).to_sparse_csr()


def _of_heads(A: spgrad.SparseTensor) -> spgrad.SparseTensor:
    """A hybrid matrix on the pattern of A, with a value for each head."""
    return spgrad.einsum("ij,h->ijh", A.detach(), torch.ones(HEADS))


def _steps(forward: Callable[[], torch.Tensor], *leaves: torch.Tensor) -> Epoch:
    """Forward and backward, with the gradients of the leaves."""
    g = torch.randn_like(forward().detach())

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        forward().backward(g)

    return step


def _forward_alone(forward: Callable[[], torch.Tensor]) -> Epoch:
    """The forward without a graph of autograd, as in inference."""

    def run() -> None:
        with torch.no_grad():
            forward()

    return run


def _attention(name: str, own: bool, step: bool = True) -> Epoch:
    A, width = _graph(name), HEADS * CHANNELS
    make = spgrad.nn.GraphAttention if own else geometric().GATConv
    layer = make(width, CHANNELS, heads=HEADS, add_self_loops=False)
    x = torch.randn(A.shape[0], width, requires_grad=True)
    graph = A if own else edges_of(A)
    if not step:
        return _forward_alone(lambda: layer(x, graph))
    return _steps(lambda: layer(x, graph), x, *layer.parameters())


def _softmax(name: str, own: bool) -> Epoch:
    """A step of the softmax of the scores of all edges that lead to a node."""
    A = _graph(name)
    scores = torch.randn(A.nse, HEADS, requires_grad=True)
    if own:
        pattern = _of_heads(A)
        return _steps(
            lambda: spgrad.softmax(spgrad.from_values(scores, pattern), 1).values(), scores
        )
    geometric()
    from torch_geometric.utils import softmax

    target = A.coo_indices()[0].long()
    return _steps(lambda: softmax(scores, target, num_nodes=A.shape[0]), scores)


def _product(name: str, own: bool) -> Epoch:
    A = _graph(name)
    x = torch.randn(A.shape[0], HEADS, CHANNELS, requires_grad=True)
    weights = torch.rand(A.nse, HEADS, requires_grad=True)
    indices = A.coo_indices().long()
    if own:
        pattern = _of_heads(A)
        return _steps(lambda: spgrad.spmm(spgrad.from_values(weights, pattern), x), weights, x)
    geometric()
    from torch_geometric.utils import scatter

    target, source = indices

    def aggregated() -> torch.Tensor:
        return scatter(x[source] * weights[:, :, None], target, 0, A.shape[0], "sum")

    return _steps(aggregated, weights, x)


LAYERS: dict[str, dict[str, Callable[[], Epoch]]] = {
    f"{layer}-{name}": {
        OWN: partial(make, name, True),
        "torch_geometric": partial(make, name, False),
    }
    for layer, make in (
        ("gat", _attention),
        ("gat_forward", partial(_attention, step=False)),
        ("softmax8", _softmax),
        ("spmm8", _product),
    )
    for name in GRAPHS
}
"""By layer and graph, and contender."""
