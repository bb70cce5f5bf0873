"""Functions of indices that a graph checks in the run: constructors, and lookups in a table."""

import pytest
import torch
import torch.nn.functional as F
from compiling import compare, compiled
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def graph(n):
    """Edges, some of them repeated, with weights, and features of n nodes."""
    edges = torch.stack([torch.arange(3 * n) % n, torch.arange(3 * n) * 2 % n])
    return edges, torch.rand(3 * n, dtype=torch.float64), torch.randn(n, 2, dtype=torch.float64)


MADE = {
    "from_edges": spgrad.from_edges,
    "pair_of_vectors": lambda e, w, n: spgrad.from_edges((e[1], e[0]), w, (n, n)),
    "csc": lambda e, w, n: spgrad.from_edges(e, w, n, layout=torch.sparse_csc),
    "coo": lambda e, w, n: spgrad.sparse_coo_tensor(e, w, (n, n)),
    "normalized": lambda e, w, n: spgrad.nn.gcn_norm(spgrad.from_edges(e, w, n)),
    "csr": lambda e, w, n: spgrad.sparse_csr_tensor(
        torch.arange(n + 1), torch.arange(n).flip(0), w[:n], (n, n)
    ),
    "csr_as_csc": lambda e, w, n: spgrad.sparse_compressed_tensor(
        torch.arange(n + 1), torch.arange(n), w[:n], (n, n), layout=torch.sparse_csc
    ),
    "bsr": lambda e, w, n: spgrad.sparse_bsr_tensor(
        torch.arange(n + 1), torch.arange(n), w[:n].view(n, 1, 1), (n, n)
    ),
    "eye": lambda e, w, n: w[0] * spgrad.eye(n, dtype=w.dtype, layout=torch.sparse_csr),
    "zeros": lambda e, w, n: spgrad.zeros(n, n, dtype=w.dtype) + spgrad.from_edges(e, w, n),
}


@pytest.mark.parametrize("name", MADE)
def test_made_in_one_graph(name):
    counter = CompileCounterWithBackend("aot_eager")

    def function(edges, w, x):
        return MADE[name](edges, w, x.shape[0]) @ x

    whole = torch.compile(function, fullgraph=True, backend=counter)
    for n in (5, 7, 9, 12):
        edges, w, x = graph(n)
        compare(lambda w, x: whole(edges, w, x), lambda w, x: function(edges, w, x), w, x)  # noqa: B023
    assert counter.frame_count <= 2


LOOKED_UP = {
    "embedding": lambda W, i, offsets: F.embedding(i, W, padding_idx=1),
    "bags": lambda W, i, offsets: F.embedding_bag(i.view(-1, 3), W, mode="sum", padding_idx=2),
    "bags_by_offsets": lambda W, i, offsets: F.embedding_bag(i, W, offsets, mode="max"),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_looked_up_in_one_graph(name):
    """Rows of a sparse table, by numbers that the graph checks."""
    function, counter = LOOKED_UP[name], CompileCounterWithBackend("aot_eager")
    whole = torch.compile(function, fullgraph=True, backend=counter)
    offsets = torch.tensor([0, 2, 2, 5])
    for n in (5, 7, 9, 12):
        edges, w, _ = graph(n)
        W = spgrad.from_edges(edges, w, n)
        compare(lambda W: whole(W, edges[1], offsets), lambda W: function(W, edges[1], offsets), W)  # noqa: B023
    assert counter.frame_count <= 2
    bad = compiled(lambda i, o: function(W, i, o), "aot_eager")
    for number in (-1, 12, 10**12):
        with pytest.raises(RuntimeError, match="`input` has a number that is no row"):
            bad(torch.where(torch.arange(36) == 3, number, edges[1]), offsets)
    if name == "bags_by_offsets":
        with pytest.raises(RuntimeError, match="`offsets` does not grow from 0"):
            bad(edges[1], offsets + 1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_bad_indices_in_a_run(backend):
    """The run raises before a kernel reads them."""
    edges, w, x = graph(6)
    by_edges = compiled(lambda e: spgrad.from_edges(e, w, 6) @ x, backend)
    rows = torch.arange(7)
    by_rows = compiled(lambda r, c: spgrad.sparse_csr_tensor(r, c, w[:6], (6, 6)) @ x, backend)
    by_edges(edges)
    by_rows(rows, rows[:6])
    for bad in (-1, 6, 10**12, -(10**12)):
        at = torch.arange(18) == 4
        with pytest.raises(RuntimeError, match="`edge_index` has a number outside of the shape"):
            by_edges(torch.where(at, bad, edges))
        with pytest.raises(RuntimeError, match="`crow_indices` and `col_indices` do not fit"):
            by_rows(rows, torch.where(at[:6], bad, rows[:6]))
        with pytest.raises(RuntimeError, match="`crow_indices` and `col_indices` do not fit"):
            by_rows(torch.where(at[:7], bad, rows), rows[:6])


def test_indices_that_are_not_coalesced_in_a_run():
    edges, w, _ = graph(6)
    whole = compiled(
        lambda e, w: spgrad.sparse_coo_tensor(e, w, (6, 6), is_coalesced=True).sum(0), "aot_eager"
    )
    A = spgrad.from_edges(edges, w, 6, layout=torch.sparse_coo)
    assert torch.equal(whole(A.indices(), A.values()), A.sum(0))
    with pytest.raises(RuntimeError, match="is not sorted and unique as `is_coalesced` says"):
        whole(A.indices().flip(1), A.values())


@pytest.mark.parametrize("name", ["from_edges", "sparse_coo_tensor"])
def test_a_size_that_only_numbers_tell(name):
    edges, w, _ = graph(6)
    function = getattr(spgrad, name)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=rf"spgrad\.{name}: torch\.compile"):
        compiled(lambda e: function(e, w).sum(), "aot_eager")(edges)
    broken = torch.compile(lambda e: function(e, w).sum(), backend="aot_eager")
    assert torch.equal(broken(edges), function(edges, w).sum())


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = spgrad.nn.GraphConv(2, 3).double()

    def forward(self, x, edges, w):
        return self.conv(x, spgrad.from_edges(edges.flip(0), w, x.shape[0]))


def test_an_exported_network_makes_its_matrix():
    edges, w, x = graph(5)
    model = Network()
    nodes, count = torch.export.Dim("n", max=1000), torch.export.Dim("edges", max=1000)
    shapes = {0: nodes}, {1: count}, {0: count}
    exported = torch.export.export(model, (x, edges, w), dynamic_shapes=shapes).module()
    for n in (5, 8):
        edges, w, x = graph(n)
        torch.testing.assert_close(exported(x, edges, w), model(x, edges, w))
    with pytest.raises(RuntimeError, match="`edge_index` has a number outside of the shape"):
        exported(x, edges + 1, w)
