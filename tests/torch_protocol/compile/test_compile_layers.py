"""Layers inside a compiled graph, of matrices and features that another operation of it gave."""

import pytest
import torch
from compiling import compare, compiled
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter

import spgrad
from spgrad import nn
from spgrad.nn.graph import pairs

DOUBLE = {"dtype": torch.float64}

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def graph(seed: int = 0) -> spgrad.SparseTensor:
    """A graph of six nodes with self-loops and weights that are no zeros."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(6, 6, generator=generator) < 0.4
    weights = torch.rand(6, 6, generator=generator, **DOUBLE) + 0.5
    return spgrad.from_dense(torch.where(kept | torch.eye(6, dtype=torch.bool), weights, 0))


def traced(function):
    return compiled(function, "aot_eager")


LAYERS = [
    nn.GraphConv(4, 3, **DOUBLE),
    nn.GraphConv(4, 3, normalize=False, **DOUBLE),
    nn.SAGEConv(4, 3, **DOUBLE),
    nn.GINConv(torch.nn.Linear(4, 3, **DOUBLE)),
    nn.GraphAttention(4, 3, 2, add_self_loops=False, **DOUBLE),
    nn.GraphAttention(4, 3, 2, add_self_loops=False, version=2, **DOUBLE),
]
GIVEN = {
    "scaled": lambda A: A * 2,
    "mapped": lambda A: spgrad.map(A, torch.exp),
    "softmax": lambda A: torch.softmax(A, 1),
    "other_values": lambda A: spgrad.from_values(A.values().square(), A),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_of_graphs_that_an_operation_gave(layer, given):
    def function(A, x):
        return layer(x, GIVEN[given](A))

    x = torch.randn(6, 4, **DOUBLE)
    compare(function, traced(function), graph().to_sparse_csr(), x)


@pytest.mark.parametrize("given", [torch.relu, lambda X: spgrad.dropout(X, 0.5, False)])
def test_of_features_that_an_operation_gave(given):
    layer = nn.GraphConv(6, 3, normalize=False, **DOUBLE)

    def function(A, X):
        return layer(given(X), A)

    compare(function, traced(function), graph().to_sparse_csr(), graph(1).to_sparse_csr())


@pytest.mark.parametrize("version", [1, 2])
def test_of_features_of_edges_that_an_operation_gave(version):
    layer = nn.GraphAttention(4, 3, 2, add_self_loops=False, edge_dim=5, version=version, **DOUBLE)
    edges = graph().to_sparse_coo().indices()
    A = spgrad.from_edges(edges, torch.randn(edges.shape[1], 5, **DOUBLE), 6)

    def function(A, x):
        return layer(x, A.sin())

    compare(function, traced(function), A, torch.randn(6, 4, **DOUBLE))


def test_attention_with_a_mask_that_an_operation_gave():
    layer = nn.SparseAttention(4, 2, batch_first=True, **DOUBLE)

    def function(mask, x):
        return layer(x, x, x, attn_mask=mask * 2)[0]

    x = torch.randn(6, 4, **DOUBLE)
    compare(function, traced(function), graph().to_sparse_csr(), x)


def test_a_sparse_layer_transposes_nothing_in_the_graph():
    """Its kernels do, so that elementwise loops run in the order of the data."""
    called = []

    def noted(graph, inputs):
        called.append({str(n.target) for n in graph.graph.nodes if n.op == "call_function"})
        return make_boxed_func(graph.forward)

    layer = torch.nn.Sequential(nn.SparseLinear(8, 6, density=0.5), torch.nn.ReLU())
    backend = aot_autograd(fw_compiler=noted, bw_compiler=noted)
    fast = torch.compile(layer, fullgraph=True, backend=backend)
    x = torch.randn(16, 8, requires_grad=True)
    y = fast(x)
    torch.testing.assert_close(y, layer(x))
    (got,), (wanted,) = (torch.autograd.grad(t.sin().sum(), x) for t in (y, layer(x)))
    torch.testing.assert_close(got, wanted)
    assert {"spgrad.row_spmm.default", "aten.relu.default"} <= called[0]
    assert "spgrad.row_spmm_sddmm.default" in called[1]
    assert not any("permute" in name or "clone" in name for name in called[0] | called[1])


def test_compiled_code_sees_the_layout():
    closure = graph().to_sparse_csc()

    def function(A, x):
        given = A * 2
        layouts = [A.layout, given.layout, closure.layout]
        wanted = [torch.sparse_csr, torch.sparse_csr, torch.sparse_csc]
        known = A.is_sparse_csr and given.is_sparse_csr and not closure.is_sparse_csr
        return x * 2 if layouts == wanted and known else x

    x = torch.randn(6, 4)
    torch.testing.assert_close(traced(function)(graph().to_sparse_csr(), x), 2 * x)
    assert torch.equal(function(graph().to_sparse_csr(), x), 2 * x)


def test_what_a_graph_break_leaves_to_python_is_not_compiled():
    """Dynamo would find graphs in the callees of an operation that it is not tracing."""

    def in_python(x):
        return pairs.added_scores(A, x, x)

    A, x, counter = graph(), torch.ones(6, 2, **DOUBLE), CompileCounter()
    called = torch._dynamo.disable(in_python, recursive=False)
    found = torch.compile(lambda x: called(x), backend=counter)(x)  # noqa: PLW0108
    assert torch.equal(found.values(), torch.full((A.nse, 2), 2.0, **DOUBLE))
    assert counter.frame_count == 0
