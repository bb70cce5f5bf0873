"""NeighborLoader of graphs of torch_geometric: beside torch_geometric's own functions."""

import copy
import types
import warnings

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad import data

NODES, EDGES = 40, 240
SAMPLED = {"n_id", "e_id", "input_id", "batch_size", "num_sampled_nodes", "num_sampled_edges"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def attributes():
    """A graph with repeated edges and self-loops, and attributes of every kind."""
    g = generator()
    edges = torch.randint(NODES, (2, EDGES), generator=g)
    edges[:, 1] = edges[:, 0]
    return {
        "edge_index": edges,
        "x": torch.randn(NODES, 3, generator=g),
        "y": torch.arange(NODES),
        "train_mask": torch.rand(NODES, generator=g) < 0.5,
        "edge_attr": torch.randn(EDGES, 2, generator=g),
        "edge_weight": torch.rand(EDGES, generator=g),
        "name": "of the whole graph",
        "threshold": torch.tensor(0.5),
    }


def geometric(**more):
    """The graph as torch_geometric has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import warns of its own code
        pytest.importorskip("torch_geometric")
        from torch_geometric.data import Data
    return Data(**(attributes() | more))


def plain(**more):
    """An object of another class with the same attributes."""
    return types.SimpleNamespace(**(attributes() | {"num_nodes": NODES} | more))


@pytest.mark.parametrize("make", [geometric, plain])
@pytest.mark.parametrize("replace", [False, True])
def test_parts_of_all_attributes(make, replace):
    graph = make()
    loader = data.NeighborLoader(
        graph, [3, 2], graph.train_mask, batch_size=7, replace=replace, generator=generator()
    )
    for batch in loader:
        assert type(batch) is type(graph)
        source, target = batch.n_id[batch.edge_index]
        assert torch.equal(torch.stack([source, target]), graph.edge_index[:, batch.e_id])
        assert_close(batch.x, graph.x[batch.n_id])
        assert torch.equal(batch.y, batch.n_id)
        assert torch.equal(batch.train_mask, graph.train_mask[batch.n_id])
        assert_close(batch.edge_attr, graph.edge_attr[batch.e_id])
        assert_close(batch.edge_weight, graph.edge_weight[batch.e_id])
        assert batch.name == "of the whole graph"
        assert batch.threshold is graph.threshold
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])  # of a mask
        assert batch.train_mask[: batch.batch_size].all()
        assert batch.num_nodes == sum(batch.num_sampled_nodes) == len(batch.n_id)
        assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
        assert bool((batch.edge_index[1].diff() >= 0).all())  # by target, as PyG sorts them
        if not replace:
            assert batch.e_id.unique().numel() == batch.e_id.numel()
            first = batch.edge_index[1, : batch.num_sampled_edges[0]]
            degrees = graph.edge_index[1].bincount(minlength=NODES)[batch.n_id[: batch.batch_size]]
            assert torch.equal(first.bincount(minlength=batch.batch_size), degrees.clamp(max=3))
    assert graph.x.shape == (NODES, 3)
    assert not hasattr(graph, "n_id")


def test_attributes_are_filtered_as_torch_geometric_filters_them():
    graph = geometric(pos_index=torch.arange(2 * NODES).view(2, NODES), num_nodes=NODES)
    from torch_geometric.loader.utils import filter_data

    for batch in data.NeighborLoader(graph, [3, 2], batch_size=7):
        row, col = batch.edge_index
        wanted = filter_data(graph, batch.n_id, row, col, batch.e_id)
        assert {*batch.keys()} - {*wanted.keys()} == SAMPLED
        for key, value in wanted.to_dict().items():
            found = batch[key]
            same = torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
            assert same, key


def test_a_layer_of_torch_geometric_gives_what_it_gives_on_the_whole_graph():
    graph = geometric()
    from torch_geometric.nn import SAGEConv

    torch.manual_seed(0)
    first, second = SAGEConv(3, 5), SAGEConv(5, 4)

    def network(graph):
        return second(first(graph.x, graph.edge_index).relu(), graph.edge_index)

    wanted = network(graph)
    seeds = torch.tensor([5, 30, 2, 17])
    for batch in data.NeighborLoader(graph, [-1, -1], seeds, batch_size=3):
        found = network(batch)[: batch.batch_size]
        assert_close(found, wanted[seeds[batch.input_id]])
        assert torch.equal(seeds[batch.input_id], batch.n_id[: batch.batch_size])


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"filter_per_worker": False}])
def test_workers_change_nothing(options):
    graph = plain()
    common = {"batch_size": 16, "shuffle": True}
    alone = data.NeighborLoader(graph, [3, 2], generator=generator(), **common)
    other = data.NeighborLoader(graph, [3, 2], generator=generator(), **common, **options)
    for a, b in zip(alone, other, strict=True):
        for key, value in vars(a).items():
            equal = torch.equal(value, vars(b)[key]) if hasattr(value, "shape") else True
            assert equal, key


def test_names_tell_attributes_of_nodes_and_edges_apart_where_there_are_as_many():
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    given = {"x": torch.arange(4.0), "edge_weight": torch.arange(4.0) + 10, "num_nodes": 4}
    graph = types.SimpleNamespace(edge_index=edges, **given)
    (batch,) = data.NeighborLoader(graph, [-1], torch.tensor([2]))
    torch.testing.assert_close(batch.edge_weight, torch.tensor([11.0]))  # of the edge 1 -> 2
    torch.testing.assert_close(batch.x, torch.tensor([2.0, 1.0]))


@pytest.mark.parametrize("by_worker", [None, True, False])
def test_who_gathers_attributes(by_worker):
    """Workers do, unless the loader is told that the process that iterates shall."""
    loader = data.NeighborLoader(plain(), [3], batch_size=7, filter_per_worker=by_worker)
    _, gathered, _ = next(torch.utils.data.DataLoader.__iter__(loader))
    assert ("x" in gathered) == (by_worker is not False)


@pytest.mark.parametrize("workers", [0, 1])
def test_gradients_of_features(workers):
    x = torch.randn(NODES, 3, requires_grad=True)
    weight = torch.rand(EDGES, requires_grad=True)
    graph = plain(x=2 * x, edge_weight=weight)  # x is no leaf, which no process can send
    loader = data.NeighborLoader(graph, [-1], batch_size=NODES, num_workers=workers)
    (batch,) = loader
    (batch.x.sum() + batch.edge_weight.sum()).backward()
    assert_close(x.grad, torch.full((NODES, 3), 2.0))
    assert_close(weight.grad, torch.ones(EDGES))


def test_weights_are_an_attribute():
    graph = plain()
    graph.edge_weight[graph.edge_index[0] % 2 == 0] = 0
    loader = data.NeighborLoader(graph, [2], weight_attr="edge_weight", batch_size=NODES)
    (batch,) = loader
    assert bool((batch.edge_weight > 0).all())
    (same,) = data.NeighborLoader(graph, [2], weights=graph.edge_weight, batch_size=NODES)
    assert bool((same.edge_weight > 0).all())


def test_a_transform_sees_each_batch():
    def doubled(batch):
        batch.x = 2 * batch.x
        return batch

    graph = plain()
    for batch in data.NeighborLoader(graph, [2], batch_size=16, transform=doubled):
        assert_close(batch.x, 2 * graph.x[batch.n_id])


def test_numpy_arrays_and_lists():
    graph = geometric()
    graph.ages, graph.names = torch.arange(NODES).numpy(), [f"node {i}" for i in range(NODES)]
    batch = next(iter(data.NeighborLoader(graph, [2], batch_size=4)))
    assert torch.equal(batch.ages, batch.n_id)
    assert batch.names == [f"node {i}" for i in batch.n_id.tolist()]


def test_a_graph_without_edges_and_attributes():
    graph = types.SimpleNamespace(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=3)
    batches = list(data.NeighborLoader(graph, [2, 2], batch_size=2))
    assert [batch.num_nodes for batch in batches] == [2, 1]
    assert batches[0].edge_index.shape == (2, 0)


def test_the_matrix_of_a_batch_multiplies_as_the_layer_does():
    graph = geometric()
    batch = next(iter(data.NeighborLoader(graph, [4], batch_size=8)))
    A = spgrad.from_pyg(batch, weight="edge_weight").mT  # row i: the neighbours of node i
    wanted = torch.zeros(batch.num_nodes, 3)
    source, target = batch.edge_index
    wanted.index_add_(0, target, batch.edge_weight[:, None] * batch.x[source])
    assert_close(A @ batch.x, wanted)


def hetero():
    geometric()
    from torch_geometric.data import HeteroData

    graph = HeteroData()
    graph["a"].x = graph["b"].x = torch.ones(2, 1)
    graph["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    return graph


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (plain, {"weight_attr": "x"}, r"`weight_attr` is 'x'; 'edge_attr', 'edge_weight' is"),
        (plain, {"weight_attr": "edge_attr"}, r"`weights` has shape \(240, 2\)"),
        (plain, {"x": torch.ones(NODES)}, r"`x` is given beside a graph .* Set `data.x`"),
        (plain, {"disjoint": True}, "`disjoint` is True; False is accepted"),
        (plain, {"subgraph_type": "induced"}, "`subgraph_type` is 'induced'; 'directional' is"),
        (plain, {"time_attr": "time"}, "`time_attr` is 'time'; None is accepted"),
        (plain, {"sampler": range(3)}, "`sampler` is range"),
        (plain, {"collate_fn": str}, "`collate_fn` is .*; None is accepted. `transform` is called"),
        (plain, {"dataset": [0]}, "`dataset` is .*; None is accepted. Pass the graph as `data`"),
        (plain, {"input_nodes": [40]}, "`input_nodes` has 40"),
        (lambda: plain(num_nodes=30), {}, r"`data.edge_index` has \d+; numbers in \[0, 30\)"),
        (lambda: plain(num_nodes=None), {}, "`data.num_nodes` is None; an int is accepted"),
        (lambda: plain(edge_index=None), {}, "`data.edge_index` is None; integers"),
        (lambda: plain(edge_index=torch.ones(2, 3)), {}, "`data.edge_index` has dtype"),
        (hetero, {}, "`data` has several types of nodes; one type is accepted"),
        (lambda: [1], {}, "`data` is a list; a SparseTensor, or an object with"),
        (lambda: spgrad.eye(3), {"weight_attr": "w"}, "`weight_attr` is 'w' for a matrix"),
    ],
)
def test_refusals(make, options, text):
    with pytest.raises(spgrad.SpgradError, match=text) as caught:
        data.NeighborLoader(make(), [2], **options)
    assert str(caught.value).startswith("spgrad.data.NeighborLoader: ")


def test_values_that_torch_geometric_takes_by_default():
    loader = data.NeighborLoader(
        plain(), [2], None, subgraph_type="directional", disjoint=False, is_sorted=True
    )
    assert len(loader) == NODES
    assert copy.copy(loader.data).num_nodes == NODES
