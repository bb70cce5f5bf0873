"""Layers in one graph of torch.compile, with a matrix that the graph makes."""

import pytest
import torch
from nn_graphs import random_graph
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad
from spgrad import nn, testing

MADE = {
    "normalised": nn.gcn_norm,
    "with self-loops": nn.add_self_loops,
    "a sum": lambda A: A + A.t().to_sparse_csr(),
    "a sum of three": lambda A: A + A.t().to_sparse_csr() + spgrad.nn.patterns.band(len(A), 1),
    "a part": lambda A: spgrad.prune(A, 0.3),
}
LAYERS = {
    "convolution": lambda: nn.GraphConv(4, 3),
    "attention": lambda: nn.GraphAttention(4, 3, 2),
    "maximum": lambda: nn.MessagePassing("amax"),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("case", MADE)
def test_a_layer_takes_a_matrix_that_the_graph_makes(case, name):
    """Value and gradients of changing graphs, by at most two compilations."""
    torch._dynamo.reset()
    layer = LAYERS[name]().double()

    def call(x, A):
        made = MADE[case](A)
        return layer(x, made if made.dtype == x.dtype else made.double())

    counter = CompileCounterWithBackend("aot_eager")
    whole = torch.compile(call, fullgraph=True, backend=counter)
    for nodes in (6, 9, 13):
        A = random_graph(nodes)
        A = spgrad.from_values(torch.rand(A.nse, dtype=torch.float64), A).requires_grad_()
        x = torch.randn(nodes, 4, dtype=torch.float64, requires_grad=True)
        found, wanted = whole(x, A), call(x, A)
        torch.testing.assert_close(found, wanted)
        leaves = [x] if name == "attention" else [x, A]  # which does not read the values of A
        results = [torch.autograd.grad(y.sin().sum(), leaves) for y in (found, wanted)]
        for got, grad in zip(*results, strict=True):
            testing.assert_close(got, testing.dense_result(grad))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_self_loops_of_edges_with_several_weights(layout):
    """Those that a graph has keep their weights; the matrix need not be square."""
    A = torch.zeros(3, 4, 2)
    A[0, 0], A[1, 2], A[2, 3] = torch.tensor([[5.0, 6.0], [1.0, 2.0], [3.0, -0.5]])
    at = torch.tensor([[0, 1, 2], [0, 2, 3]])
    made = spgrad.sparse_coo_tensor(at, A[at[0], at[1]], A.shape).to_sparse(layout=layout)
    wanted = A.clone()
    wanted[1, 1] = wanted[2, 2] = 0.5
    found = nn.add_self_loops(made, 0.5)
    assert found.layout == layout
    assert found.pattern.nse == 5
    torch.testing.assert_close(found.to_dense(), wanted)
