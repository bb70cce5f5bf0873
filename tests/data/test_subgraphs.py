"""Walks, induced subgraphs, GraphSAINT's samples and partitions."""

import itertools

import pytest
import torch
from operands import check
from torch.testing import assert_close

import spgrad
from spgrad import data


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def graph(n=20, layout="csr"):
    dense = torch.rand(n, n, generator=generator(), dtype=torch.float64)
    dense = dense * (dense > 0.7)
    dense[0] = 0
    return getattr(spgrad.from_dense(dense), f"to_sparse_{layout}")()


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_subgraph(layout):
    A = graph(layout=layout).requires_grad_()
    nodes = [7, 0, 3, 12, 9]
    part = data.subgraph(A, nodes)
    assert_close(part.A.to_dense(), A.to_dense()[nodes][:, nodes])
    assert_close(spgrad.values(A)[part.e_id], part.A.values())
    (part.A * 2).sum().backward()
    wanted = torch.zeros(20, 20, dtype=torch.float64)
    wanted[torch.tensor(nodes)[:, None], torch.tensor(nodes)] = 2
    assert_close(A.grad.to_dense(), wanted * (A.to_dense() != 0))
    assert data.subgraph(A, []).A.shape == (0, 0)
    assert_close(data.subgraph(A, torch.ones(20, dtype=torch.bool)).A.to_dense(), A.to_dense())


def test_subgraph_of_a_native_tensor_whose_elements_repeat():
    indices = torch.tensor([[2, 0, 2, 1], [0, 2, 0, 1]])
    val = torch.tensor([1.0, 2.0, 4.0, 8.0], requires_grad=True)
    native = torch.sparse_coo_tensor(indices, val, (3, 3), check_invariants=True)
    part = spgrad.data.subgraph(native, [2, 0])
    assert part.A.to_dense().tolist() == [[0, 5], [2, 0]]
    assert torch.equal(part.A.values(), native.detach().coalesce().values()[part.e_id])
    (part.A.to_dense() * torch.tensor([[0.0, 3.0], [7.0, 0.0]])).sum().backward()
    assert val.grad.tolist() == [3, 7, 3, 0]


def test_walks_follow_entries():
    A = graph()
    starts = torch.arange(20).repeat(5)
    for p, q in ((1.0, 1.0), (0.25, 4.0), (1e9, 1e-9)):
        walk = data.random_walk(A, starts, 6, p=p, q=q, generator=generator())
        assert walk.shape == (100, 7)
        assert torch.equal(walk[:, 0], starts)
        a, b = walk[:, :-1].flatten(), walk[:, 1:].flatten()
        stuck = (A.to_dense() != 0).sum(1)[a] == 0
        assert ((A.to_dense()[a, b] != 0) | (stuck & (a == b))).all()
        assert torch.equal(walk, data.random_walk(A, starts, 6, p=p, q=q, generator=generator()))


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.5, 2.0), (4.0, 0.25), (1e4, 1e4)])
def test_probabilities_of_steps(p, q):
    """0 - 1, 0 - 2, 1 - 2, 1 - 3: from 1, reached from 0, to 0, 2 and 3."""
    dense = torch.zeros(4, 4)
    for i, j in ((0, 1), (0, 2), (1, 2), (1, 3)):
        dense[i, j] = dense[j, i] = 1
    A = spgrad.from_dense(dense).to_sparse_csr()
    walk = data.random_walk(A, torch.zeros(40_000).long(), 2, p=p, q=q, generator=generator())
    walk = walk[walk[:, 1] == 1]
    weight = torch.tensor([1 / p, 0, 1, 1 / q])
    expected = len(walk) * weight / weight.sum()
    found = torch.bincount(walk[:, 2], minlength=4)
    kept = expected > 0
    assert float(((found - expected)[kept] ** 2 / expected[kept]).sum()) < 25
    assert found[1] == 0


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.5, 2.0), (1e9, 1e9)])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_walks_on_threads_and_by_the_reference_are_the_same(p, q, index):
    degree = torch.randint(0, 9, (500,), generator=generator())
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)]).to(index)
    idx = torch.cat([torch.randperm(500)[:d].sort().values for d in degree.tolist()]).to(index)
    check("random_walks", ptr, idx, torch.arange(500).repeat(3), 9, p, q, 2**62)


def test_a_near_node_is_one_to_which_an_entry_leads():
    """From 0 over 1: an entry leads from 0 to 2, and one from 3 to 0, which does not count."""
    A = spgrad.sparse_coo_tensor([[0, 0, 1, 1, 3], [1, 2, 2, 3, 0]], torch.ones(5), (4, 4))
    walk = data.random_walk(A, torch.zeros(400).long(), 2, q=1e9, generator=generator())
    over = walk[walk[:, 1] == 1]
    assert len(over) > 100
    assert over[:, 2].unique().tolist() == [2]


def test_every_neighbour_has_the_same_weight_by_default():
    A, starts = graph(), torch.arange(20)
    walk = data.random_walk(A, starts, 6, generator=generator())
    assert torch.equal(walk, data.random_walk(A, starts, 6, p=1.0, q=1.0, generator=generator()))


@pytest.mark.parametrize("method", ["node", "edge", "walk"])
def test_saint_samples_are_subgraphs(method):
    A = graph()
    part = data.saint_sample(A, 4, method=method, generator=generator())
    assert_close(part.A.to_dense(), A.to_dense()[part.n_id][:, part.n_id])
    assert 1 <= len(part.n_id) <= 12
    empty = spgrad.from_dense(torch.zeros(3, 3)).to_sparse_csr()
    assert data.saint_sample(empty, 2, method=method).A.values().numel() == 0


def test_a_walk_of_no_steps_has_the_node_where_it_starts():
    A = spgrad.from_dense(1 - torch.eye(5)).to_sparse_csr()
    for seed in range(20):
        part = data.saint_sample(A, 1, method="walk", length=0, generator=generator(seed))
        assert len(part.n_id) == 1
        drawn = data.saint_sample(A, 1, method="edge", generator=generator(seed))
        assert len(drawn.n_id) == 2


def test_saint_probabilities():
    """Of single draws of a node, by its column, and of an edge, by the degrees of its ends."""
    dense = torch.tensor([[0.0, 1, 1], [0, 0, 1], [1, 0, 0]])
    A = spgrad.from_dense(dense).to_sparse_csr()
    nodes, edges = torch.zeros(3), torch.zeros(3, 3)
    for seed in range(2000):
        part = data.saint_sample(A, 1, method="node", generator=generator(seed))
        nodes[part.n_id] += 1
        pair = data.saint_sample(A, 1, method="edge", generator=generator(seed)).n_id
        edges[tuple(pair)] += 1
    assert_close(nodes / 2000, torch.tensor([0.25, 0.25, 0.5]), rtol=0, atol=0.05)
    degree = torch.tensor([2.0, 1, 1])
    weight = {(i, j): 1 / degree[i] + 1 / degree[j] for i, j in dense.nonzero().tolist()}
    total = sum(weight.values())
    for i, j in itertools.combinations(range(3), 2):
        wanted = (weight.get((i, j), 0) + weight.get((j, i), 0)) / total
        assert abs(edges[i, j] / 2000 - wanted) < 0.05


def test_partition():
    pytest.importorskip("pymetis")
    block = torch.ones(10, 10)
    dense = torch.block_diag(block, block, block)
    dense[0, 29] = 1
    A = spgrad.from_dense(dense).to_sparse_csr()
    part = data.partition(A, 3)
    assert all(part[i : i + 10].unique().numel() == 1 for i in (0, 10, 20))
    assert sorted(part.unique().tolist()) == [0, 1, 2]
    assert data.partition(A, 1).tolist() == [0] * 30
    heavy = torch.ones(30, dtype=torch.int64)
    heavy[:10] = 21
    part = data.partition(A, 2, weights=heavy)
    assert abs(heavy[part == 0].sum() - heavy[part == 1].sum()) < 30


@pytest.mark.parametrize("parts", [9, 18, 35, 36, 50])
@pytest.mark.parametrize("graph", ["clique", "ring"])
def test_parts_of_few_nodes(graph, parts):
    """METIS's direct method puts all nodes of a clique into one part, and leaves parts empty."""
    x = torch.ones(36, 36) if graph == "clique" else torch.eye(36).roll(1, 1)
    counts = data.partition(spgrad.from_dense(x), parts).bincount(minlength=parts)
    assert counts.max() <= 36 // parts + 2
    assert counts.count_nonzero() >= 0.9 * min(parts, 36)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda A: data.subgraph(A, [20]), "`nodes` has 20 at position 0"),
        (lambda A: data.subgraph(A, [1, 1]), "`nodes` has 1 more than once"),
        (lambda A: data.random_walk(A, [20], 2), "`starts` has 20"),
        (lambda A: data.random_walk(A, [2], -1), "`length` is -1"),
        (lambda A: data.random_walk(A, [2], 2, p=0), "`p` is 0"),
        (lambda A: data.random_walk(A, [2], 2, q=float("nan")), "`q` is nan"),
        (lambda A: data.saint_sample(A, 2, method="star"), "`method` is 'star'"),
        (lambda A: data.saint_sample(A, 0), "`num` is 0"),
        (lambda A: data.saint_sample(A, 1, method="node", length=-1), "`length` is -1"),
        (lambda A: data.partition(A, 0), "`parts` is 0"),
        (
            lambda A: data.partition(A, 2, weights=torch.ones(3).long()),
            r"`weights` has shape \(3,\)",
        ),
        (lambda A: data.partition(A, 2, weights=torch.ones(20)), "`weights` has dtype float32"),
        (
            lambda A: data.partition(A, 2, weights=torch.full((20,), 2**60)),
            r"`weights` has a sum of 2\^62 or more",
        ),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text):
        call(graph())


@pytest.mark.parametrize(("length", "other"), [(-1, "larger"), (2**63, "smaller")])
def test_numbers_of_steps_that_int64_cannot_hold(length, other):
    text = rf"`length` is {length}; a number of steps, below 2\^63, is accepted\. .* a {other} one"
    with pytest.raises(spgrad.ArgumentValueError, match=text):
        data.random_walk(graph(), [0], length)
