"""Graphs of PyTorch Geometric and DGL; stand-ins have the attributes that are read."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS

EDGES = torch.tensor([[2, 0, 0], [0, 1, 2]])
WEIGHTS = torch.tensor([5.0, 6.0, 7.0])
DENSE = torch.tensor([[0.0, 6, 7, 0], [0, 0, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]])


class TorchSparse:
    """What is read of a SparseTensor of torch_sparse."""

    def sparse_sizes(self):
        return 4, 4

    def coo(self):
        return *EDGES, WEIGHTS


@pytest.mark.parametrize("layout", support.ALL[:3])
def test_graphs_of_pyg(layout):
    given = SimpleNamespace(edge_index=EDGES, edge_weight=WEIGHTS, num_nodes=4, other=2 * WEIGHTS)
    A = spgrad.from_pyg(given, layout=LAYOUTS[layout])
    assert A.pattern.name == layout
    assert torch.equal(A.to_dense(), DENSE)
    assert torch.equal(spgrad.from_pyg(given, weight="other").to_dense(), 2 * DENSE)
    assert torch.equal(spgrad.from_pyg(TorchSparse()).to_dense(), DENSE)
    assert torch.equal(spgrad.from_pyg(SimpleNamespace(adj_t=TorchSparse())).to_dense(), DENSE)
    assert spgrad.from_pyg(EDGES).shape == (3, 3)


@pytest.mark.parametrize("layout", support.ALL[:3])
@pytest.mark.parametrize("native", [True, False])
def test_adj_t_is_a_native_tensor_where_torch_sparse_is_missing(layout, native):
    repeated = torch.sparse_coo_tensor(EDGES.repeat(1, 2), WEIGHTS.repeat(2) / 2, (4, 4))
    for made in (DENSE.to_sparse_csr(), DENSE.to_sparse_csc(), repeated):
        matrix = made.requires_grad_() if native else spgrad.from_torch(made).requires_grad_()
        for data in (matrix, SimpleNamespace(adj_t=matrix)):
            A = spgrad.from_pyg(data, layout=LAYOUTS[layout])
            assert A.pattern.name == layout
            assert torch.equal(A.to_dense(), DENSE)
        A.sum().backward()
        assert matrix.grad.layout == matrix.layout


@pytest.mark.filterwarnings("ignore")  # the import of torch_geometric warns of its own code
def test_what_to_sparse_tensor_makes():
    geometric = pytest.importorskip("torch_geometric")
    data = geometric.data.Data(edge_index=EDGES, edge_weight=WEIGHTS, num_nodes=4)
    turned = geometric.transforms.ToSparseTensor()(data)
    assert torch.equal(spgrad.from_pyg(turned).to_dense(), DENSE.t())


@pytest.mark.filterwarnings("ignore")  # the import of torch_geometric warns of its own code
def test_parts_of_heterogeneous_graphs_have_the_sizes_of_both_ends():
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    data["user"].x = torch.ones(5, 1)
    data["item"].num_nodes = 4
    data["user", "rates", "item"].edge_index = EDGES
    data["user", "follows", "user"].edge_index = EDGES
    data["tag", "of", "page"].edge_index = EDGES  # of whose nodes nothing is known
    assert spgrad.from_pyg(data["user", "rates", "item"]).shape == (5, 4)
    assert spgrad.from_pyg(data["user", "follows", "user"]).shape == (5, 5)
    assert spgrad.from_pyg(data["tag", "of", "page"]).shape == (3, 3)


@pytest.mark.filterwarnings("ignore")  # the import of torch_geometric warns of its own code
def test_layers_take_the_transpose_and_adj_t():
    geometric = pytest.importorskip("torch_geometric")
    data = geometric.data.Data(edge_index=torch.tensor([[0, 1, 2, 0], [1, 2, 3, 3]]), num_nodes=4)
    x, theirs = torch.randn(4, 3), geometric.nn.GCNConv(3, 2)
    ours = spgrad.nn.GraphConv(3, 2)
    ours.load_state_dict(theirs.state_dict())
    wanted = theirs(x, data.edge_index)
    torch.testing.assert_close(ours(x, spgrad.from_pyg(data).t()), wanted)
    turned = geometric.transforms.ToSparseTensor()(data)
    torch.testing.assert_close(ours(x, spgrad.from_pyg(turned)), wanted)


def test_the_weights_have_a_gradient():
    w = WEIGHTS.clone().requires_grad_()
    A = spgrad.from_pyg(SimpleNamespace(edge_index=EDGES, edge_weight=w, num_nodes=4))
    (A.to_dense() * torch.arange(16.0).view(4, 4)).sum().backward()
    assert w.grad.tolist() == [8, 1, 2]


@pytest.mark.parametrize("layout", support.ALL)
def test_there_and_back(layout):
    geometric = pytest.importorskip("torch_geometric")
    blocks = (2, 2) if layout.startswith("b") else None
    A = spgrad.from_dense(DENSE).to_sparse(layout=LAYOUTS[layout], blocksize=blocks)
    A.requires_grad_()
    data = spgrad.to_pyg(A)
    assert isinstance(data, geometric.data.Data)
    assert data.validate()
    assert torch.equal(spgrad.from_pyg(data).to_dense(), DENSE)
    data.edge_weight.sum().backward()
    assert A.grad.pattern is A.pattern
    edges, weights = spgrad.to_pyg(A, "edge_index")
    edges.validate()
    assert edges.sparse_size() == (4, 4)
    assert torch.equal(spgrad.from_edges(edges, weights).to_dense(), DENSE)


def test_graphs_of_dgl():
    graph = SimpleNamespace(edges=lambda: tuple(EDGES), num_nodes=lambda: 4, edata={"w": WEIGHTS})
    assert torch.equal(spgrad.from_dgl(graph, weight="w").to_dense(), DENSE)
    assert torch.equal(spgrad.from_dgl(graph).to_dense(), (DENSE != 0).float())
    assert spgrad.from_dgl(tuple(EDGES)).nse == 3
    with pytest.raises(spgrad.ArgumentValueError, match="`weight` is 'x'; 'w' is accepted"):
        spgrad.from_dgl(graph, weight="x")


def test_a_dgl_graph_between_nodes_of_two_types():
    counts = {"user": 3, "item": 5}
    graph = SimpleNamespace(
        canonical_etypes=[("user", "buys", "item")],
        edges=lambda: (torch.tensor([0, 2]), torch.tensor([4, 0])),
        num_nodes=lambda kind=None: counts[kind] if kind else sum(counts.values()),
    )
    A = spgrad.from_dgl(graph)
    assert A.shape == (3, 5)
    assert A.coo_indices().tolist() == [[0, 2], [4, 0]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: spgrad.from_pyg(3), "`data` is an int without edge_index"),
        (lambda: spgrad.from_pyg({}), "one kind of edges of HeteroData"),
        (
            lambda: spgrad.from_pyg(SimpleNamespace(adj_t=TorchSparse()), weight="w"),
            "`weight` is 'w' for a matrix, which has its own values",
        ),
        (lambda: spgrad.from_pyg(SimpleNamespace(adj_t=EDGES)), "`data` has a dense tensor"),
        (
            lambda: spgrad.from_pyg(spgrad.eye(2), layout=torch.sparse_bsr),
            "`layout` is torch.sparse_bsr; torch.sparse_csr, sparse_csc and sparse_coo are",
        ),
        (lambda: spgrad.from_dgl((EDGES[0], EDGES[1]), weight="w"), "`weight` is 'w' for a pair"),
        (lambda: spgrad.from_dgl((EDGES[0], EDGES[1, :2])), "`edge_index[1]` has shape (2,)"),
        (lambda: spgrad.from_pyg(EDGES, weight="w"), "`weight` is 'w' for edges alone"),
        (
            lambda: spgrad.from_pyg(SimpleNamespace(edge_index=EDGES), weight="w"),
            "`weight` is 'w', which `data` lacks",
        ),
        (lambda: spgrad.to_pyg(spgrad.eye(2), "x"), "`kind` is 'x'"),
        (lambda: spgrad.to_pyg(spgrad.zeros(2, 3)), "a square matrix"),
        (lambda: spgrad.to_pyg(spgrad.eye(2), "sparse_tensor"), "torch_sparse"),
        (lambda: spgrad.from_dgl(3), "`graph` is an int"),
        (lambda: spgrad.from_dgl(SimpleNamespace(edges=lambda: 3)), "`graph` is a SimpleNamespace"),
        (lambda: spgrad.from_dgl(SimpleNamespace(num_nodes=3)), "`graph` is a SimpleNamespace"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError) as raised:
        call()
    assert text in str(raised.value)


@pytest.mark.parametrize("first", ["torch_geometric", "spgrad"])
def test_functions_that_pyg_puts_into_torch_take_sparse_tensors(first):
    """torch_geometric replaces torch.select and torch.index_select when it is imported."""
    pytest.importorskip("torch_geometric")
    second = {"torch_geometric": "spgrad", "spgrad": "torch_geometric"}[first]
    program = f"""
import {first}, {second}, torch
A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
print(torch.select(A, 0, 1).to_dense().tolist())
print(torch.index_select(A, 1, torch.tensor([1])).to_dense().tolist())
with spgrad.dropin():
    print(torch.select(A.to_dense().to_sparse(), 0, 1).to_dense().tolist())
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.stdout.splitlines() == ["[3.0, 4.0]", "[[2.0], [4.0]]", "[3.0, 4.0]"], run.stderr


LAYERS = {
    "gcn": lambda nn: nn.GCNConv(3, 2),
    "attention": lambda nn: nn.GATConv(3, 2, heads=2),
    "sage of maxima": lambda nn: nn.SAGEConv(3, 2, aggr="max"),
    "sage of minima": lambda nn: nn.SAGEConv(3, 2, aggr="min"),
    "isomorphism": lambda nn: nn.GINConv(torch.nn.Linear(3, 2)),
}


@pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR", "ignore:.torch.jit")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_layers_of_pyg_take_a_sparse_tensor(layout, name):
    pyg = pytest.importorskip("torch_geometric")
    native = DENSE.to_sparse(layout=LAYOUTS[layout])
    layer, found = LAYERS[name](pyg.nn), []
    for adjacency in (native, spgrad.from_torch(native)):
        x = torch.linspace(-1, 2, 12).view(4, 3).requires_grad_()
        y = layer(x, adjacency)
        y.square().sum().backward()
        found.append((y, x.grad))
    torch.testing.assert_close(found[1], found[0])


def test_a_sparse_tensor_of_torch_sparse(monkeypatch):
    """A stand-in keeps what torch_sparse, which does not run with every torch, would be given."""
    library: Any = ModuleType("torch_sparse")
    library.__spec__ = ModuleSpec("torch_sparse", None)
    library.SparseTensor = SimpleNamespace
    monkeypatch.setitem(sys.modules, "torch_sparse", library)
    A = spgrad.from_dense(DENSE)
    made = spgrad.to_pyg(A.to_sparse_csc(), "sparse_tensor")
    assert made.sparse_sizes == (4, 4)
    found = spgrad.sparse_coo_tensor(torch.stack([made.row, made.col]), made.value, (4, 4))
    assert torch.equal(found.to_dense(), DENSE)
    rows = spgrad.to_pyg(A[:2], "sparse_tensor")
    assert rows.sparse_sizes == (2, 4)
