"""NeighborLoader: its batches, workers, and what it gives torch_geometric."""

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad import data


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def graph(n=40):
    dense = torch.rand(n, n, generator=generator(), dtype=torch.float64)
    return spgrad.from_dense(dense * (dense > 0.8)).to_sparse_csr()


def same(a, b):
    assert a.batch_size == b.batch_size
    assert_close((a.n_id, a.e_id, a.x), (b.n_id, b.e_id, b.x), rtol=0, atol=0)
    for one, two in zip(a.blocks, b.blocks, strict=True):
        assert_close(one.to_dense(), two.to_dense(), rtol=0, atol=0)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers):
    A, x = graph(), torch.rand(40, 3)

    def loader(num_workers):
        return data.NeighborLoader(
            A,
            x=x,
            num_neighbors=[3, 2],
            batch_size=16,
            shuffle=True,
            generator=generator(),
            num_workers=num_workers,
        )

    alone, together = loader(0), loader(workers)
    assert len(alone) == 3
    first = list(alone)
    for a, b in zip(first, together, strict=True):
        same(a, b)
        assert_close(a.x, x[a.n_id])
    assert first[0].n_id.tolist() != next(iter(alone)).n_id.tolist()  # a new epoch


def test_each_batch_draws_anew():
    """Also where the neighbours are the same."""
    A = spgrad.from_dense(torch.ones(500, 500))
    loader = data.NeighborLoader(
        A, input_nodes=torch.arange(50), num_neighbors=[1], batch_size=1, generator=generator()
    )
    assert len({batch.n_id[-1].item() for batch in loader}) > 40


def test_every_node_comes_once():
    mask = torch.arange(40) % 3 == 0
    loader = data.NeighborLoader(
        graph(), input_nodes=mask, num_neighbors=[2], batch_size=4, shuffle=True
    )
    seen = []
    for batch in loader:
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(batch.input_id, seeds)
        seen += seeds.tolist()
    assert sorted(seen) == list(range(0, 40, 3))
    dropped = data.NeighborLoader(graph(), input_nodes=mask, batch_size=4, drop_last=True)
    assert [batch.batch_size for batch in dropped] == [4, 4, 4]
    assert len(dropped) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_gradients_of_values_and_features(workers):
    A = graph().requires_grad_()
    x = torch.rand(40, 2, dtype=torch.float64, requires_grad=True)
    loader = data.NeighborLoader(A, [-1], x=x, batch_size=40, num_workers=workers)
    (batch,) = loader
    (batch.blocks[0] @ batch.x).sum().backward()
    found = A.grad.to_dense(), x.grad.clone()
    A.grad = x.grad = None
    (A @ x).sum().backward()
    assert_close(found, (A.grad.to_dense(), x.grad))


def test_a_network_learns_from_samples():
    """Labels that are a function of the sum of a node's neighbours."""
    torch.manual_seed(0)
    A = graph(80).to(torch.float32)
    x = torch.randn(80, 4)
    label = ((A @ x)[:, 0] > 0).long()
    layer = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        for batch in data.NeighborLoader(A, [12], x=x, batch_size=40, shuffle=True):
            out = layer(batch.blocks[0] @ batch.x)
            loss = torch.nn.functional.cross_entropy(out, label[batch.n_id[: batch.batch_size]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_to_another_device():
    batch = next(iter(data.NeighborLoader(graph(), x=torch.rand(40, 2), batch_size=4)))
    moved = batch.to("meta")
    assert {t.device.type for t in (moved.x, moved.n_id, moved.e_id, *moved.blocks)} == {"meta"}


def test_neighbors_are_drawn_once_by_default():
    A = spgrad.from_dense(torch.ones(6, 6) - torch.eye(6))
    (batch,) = data.NeighborLoader(A, [5], batch_size=6)
    assert batch.e_id.tolist() == list(range(30))


@pytest.mark.parametrize("replace", [False, True])
def test_to_pyg(replace):
    pytest.importorskip("torch_geometric")
    A = graph().requires_grad_()
    loader = data.NeighborLoader(A, [3, 2], x=torch.rand(40, 2), batch_size=5, replace=replace)
    batch = next(iter(loader))
    found = batch.to_pyg()
    source, target = found.n_id[found.edge_index]
    assert_close(A.detach().to_dense()[target, source], found.edge_weight.detach())
    assert_close(A.values()[found.e_id], found.edge_weight)
    (found.edge_weight * 3).sum().backward()
    times = found.e_id.bincount(minlength=A.nse)
    assert_close(A.grad.values(), 3 * times.to(A.dtype))
    assert found.batch_size == 5
    assert found.num_nodes == len(batch.n_id) == sum(found.num_sampled_nodes)
    assert found.num_edges == sum(found.num_sampled_edges)


def test_one_number_for_each_node():
    numbers = torch.rand(40)
    for batch in data.NeighborLoader(graph(), [3], x=numbers, batch_size=7):
        assert torch.equal(batch.x, numbers[batch.n_id])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"x": torch.rand(3, 2)}, r"`x` has shape \(3, 2\); \(40, ...\)"),
        ({"x": [1]}, "`x` is a list"),
        ({"x": torch.tensor(1.0)}, r"`x` has shape \(\); \(40, ...\)"),
        ({"input_nodes": [40]}, "`input_nodes` has 40 at position 0"),
        ({"input_nodes": [4, 4]}, "`input_nodes` has 4 more than once"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"num_neighbors": [2, -3]}, "`num_neighbors` is -3"),
        ({"generator": 1}, "`generator` is an int"),
    ],
)
def test_refusals(options, text):
    with pytest.raises(spgrad.SpgradError, match=text) as caught:
        data.NeighborLoader(graph(), **options)
    assert str(caught.value).startswith("spgrad.data.NeighborLoader: ")
