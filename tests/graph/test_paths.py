"""Shortest paths against SciPy's, their gradients, and min-plus products."""

import math

import numpy as np
import pytest
import scipy.sparse.csgraph
import torch

import spgrad
from spgrad import graph, support
from spgrad.core.pattern import LAYOUTS


def lengths(seed, n=8, low=0.1):
    generator = torch.Generator().manual_seed(seed)
    x = low + torch.rand(n, n, dtype=torch.float64, generator=generator)
    return x * (torch.rand(n, n, generator=generator) < 0.25)


@pytest.mark.parametrize("layout", support.ALL[:3])
@pytest.mark.parametrize("seed", range(5))
def test_lengths_are_those_of_scipy(layout, seed):
    x = lengths(seed)
    A = spgrad.from_dense(x).to_sparse(layout=LAYOUTS[layout])
    found = graph.shortest_paths(A, [3, 0, 3])
    wanted = scipy.sparse.csgraph.bellman_ford(x.numpy(), indices=[3, 0, 3])
    np.testing.assert_allclose(found.numpy(), wanted)


def test_lengths_may_be_negative():
    A = spgrad.from_edges([[0, 0, 1, 2], [1, 2, 3, 1]], torch.tensor([1.0, 4.0, 1.0, -5.0]))
    assert graph.shortest_paths(A, [0]).tolist() == [[0, -1, 4, 0]]


@pytest.mark.parametrize("reduce", ["min_plus", "max_plus"])
def test_gradients_of_a_transposed_operand(reduce):
    A = spgrad.from_edges([[0, 0, 1, 2], [1, 2, 2, 1]], torch.tensor([1.0, 4.0, 1.0, -5.0]))
    x = torch.tensor([[1.0, 2.0, 0.0], [5.0, 4.0, 9.0]], requires_grad=True)
    found = torch.autograd.grad(spgrad.spmm(A, x.mT, reduce).sum(), x)
    copied = x.mT.contiguous().detach().requires_grad_()
    (wanted,) = torch.autograd.grad(spgrad.spmm(A, copied, reduce).sum(), copied)
    assert torch.equal(found[0].mT, wanted)


@pytest.mark.parametrize(("reduce", "nothing"), [("min_plus", math.inf), ("max_plus", -math.inf)])
def test_gradients_without_elements(reduce, nothing):
    A = spgrad.zeros(3, 2).requires_grad_()
    x = torch.ones(2, 4, requires_grad=True)
    y = spgrad.spmm(A, x, reduce)
    assert torch.equal(y, torch.full((3, 4), nothing))
    of_A, of_x = torch.autograd.grad(y, (A, x), torch.ones(3, 4))
    assert of_A.shape == (3, 2)
    assert of_A.values().numel() == 0
    assert torch.equal(of_x, torch.zeros(2, 4))


@pytest.mark.parametrize("seed", range(4))
def test_gradients(seed):
    x = lengths(seed, 6)
    A = spgrad.from_dense(x)

    def run(vals):
        found = graph.shortest_paths(spgrad.from_values(vals, A), [0, 2, 5])
        return torch.where(found.isinf(), 0, found)

    vals = A.values().clone().requires_grad_()
    assert torch.autograd.gradcheck(run, vals)
    assert torch.autograd.gradgradcheck(run, vals)


def test_each_path_counts_at_each_of_its_edges():
    A = spgrad.from_edges([[0, 1, 2, 1], [1, 2, 3, 4]], size=5).requires_grad_()
    graph.shortest_paths(A, [0]).sum().backward()
    assert A.grad.to_dense()[[0, 1, 2, 1], [1, 2, 3, 4]].tolist() == [4, 2, 1, 1]


def test_cycles_of_length_zero_end():
    A = spgrad.from_edges([[0, 1, 2], [1, 2, 1]], torch.tensor([1.0, 0.0, 0.0])).requires_grad_()
    found = graph.shortest_paths(A, [0])
    assert found.tolist() == [[0, 1, 1]]
    found.sum().backward()
    assert A.grad.values().tolist() == [2, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(10))
def test_cycles_of_length_zero_but_for_rounding(seed, dtype):
    # with lengths p_j - p_i every cycle has the length 0, such as each edge there and back
    generator = torch.Generator().manual_seed(seed)
    n = 12
    p = torch.randn(n, dtype=torch.float64, generator=generator)
    edges = torch.nonzero(torch.rand(n, n, generator=generator) < 0.3).mT
    edges = torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
    edges = edges[:, edges[0] != edges[1]]
    vals = (p[edges[1]] - p[edges[0]]).to(dtype).requires_grad_()
    A = spgrad.from_edges(edges, vals, size=n)
    found = graph.shortest_paths(A, [0, 3])
    reached = found.isfinite()
    expected = (p - p[[0, 3], None]).to(dtype).where(reached, torch.inf)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(found[reached].sum(), vals)
    # each path is simple, so that what flows out of its source flows into its end
    into = torch.zeros(n, dtype=dtype).index_add(0, edges[1], grad)
    flow = into.index_add(0, edges[0], -grad)
    expected = reached.sum(0).to(dtype)
    expected[[0, 3]] -= reached.sum(1)
    torch.testing.assert_close(flow, expected)


def test_rounding_in_cycles_may_take_more_passes_than_nodes():
    edges = [[0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7], [5, 7, 4, 2, 6, 3, 6, 1, 7, 0, 3]]
    lengths = [-3.55025222, -855.589395, -10.7645048, 10.6842186, -1.1, 2.85253631, 1.6722501]
    lengths += [1001.0, 145.410605, -143.532603, -144.230318]
    found = graph.shortest_paths(spgrad.from_edges(edges, torch.tensor(lengths)), [6])
    expected = torch.tensor([[1.8780, 1001, 11.8645, 1.1803, 1.1, -1.6723, 0, 145.4106]])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("weight", [-1e-3, -1.0])
def test_a_cycle_of_little_negative_length(weight):
    A = spgrad.from_edges([[0, 1, 2, 3], [1, 2, 3, 1]], torch.tensor([5.0, 1.0, -1.0, weight]))
    with pytest.raises(ValueError, match="a cycle of negative length"):
        graph.shortest_paths(A, [0])


@pytest.mark.parametrize("n", [0, 3])
def test_no_edges_and_no_sources(n):
    A = spgrad.zeros(n, n)
    assert graph.shortest_paths(A, []).shape == (0, n)
    mask = torch.ones(n, dtype=torch.bool)
    assert torch.equal(graph.shortest_paths(A, mask).isinf(), ~torch.eye(n, dtype=torch.bool))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: graph.shortest_paths(
                spgrad.from_edges([[0, 1], [1, 0]], torch.tensor([1.0, -2.0])), [0]
            ),
            "a cycle of negative length",
        ),
        (lambda: graph.shortest_paths(spgrad.eye(3) * -math.inf, [0]), "NaN or -inf"),
        (lambda: graph.shortest_paths(spgrad.eye(3) * math.nan, [0]), "NaN or -inf"),
        (lambda: graph.shortest_paths(spgrad.eye(3), [3]), "`sources` has 3"),
        (lambda: graph.shortest_paths(spgrad.zeros(2, 3), [0]), "a square matrix"),
        (lambda: graph.shortest_paths(spgrad.eye(3).int(), [0]), "dtype int32"),
        (lambda: spgrad.spmm(spgrad.eye(3).int(), torch.ones(3, 1).int(), "min_plus"), "int32"),
        (lambda: spgrad.spmm(spgrad.eye(3), torch.ones(3, 1), "plus"), "min_plus, max_plus are"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError) as raised:
        call()
    assert text in str(raised.value)


def test_a_row_without_elements_is_infinitely_far():
    A = spgrad.sparse_csr_tensor([0, 0, 2], [0, 1], [1.0, 2.0], (2, 2))
    x = torch.tensor([[5.0, math.inf, -math.inf, math.nan, 1.0], [1.0] * 5])
    low = spgrad.spmm(A, x, "min_plus")
    assert low[0].tolist() == [math.inf] * 5
    assert low[1, :3].tolist() == [3, 3, -math.inf]
    assert low[1, 3].isnan()
    assert spgrad.spmm(A, x, "max_plus")[0].tolist() == [-math.inf] * 5


def test_of_equal_sums_the_first_has_the_gradient():
    A = spgrad.from_dense(torch.tensor([[1.0, 1.0]])).requires_grad_()
    spgrad.spmm(A, torch.zeros(2, 1), "max_plus").sum().backward()
    assert A.grad.values().tolist() == [1, 0]
