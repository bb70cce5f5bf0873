"""spgrad.graph against SciPy and dense torch: values, gradients of two orders, refusals."""

import pickle

import numpy as np
import pytest
import scipy.sparse.csgraph
import torch

import spgrad
from spgrad import graph, support
from spgrad.core.pattern import LAYOUTS

torch.manual_seed(0)
X = torch.rand(6, 6, dtype=torch.float64) * (torch.rand(6, 6) < 0.5)
X[4] = X[:, 4] = 0  # a node without edges
S = X + X.T


def in_layout(x, layout):
    blocks = (2, 2) if layout.startswith("b") else None
    return spgrad.from_dense(x).to_sparse(layout=LAYOUTS[layout], blocksize=blocks)


def inverse(d, power=-1.0):
    return torch.where(d == 0, 0, torch.where(d == 0, 1, d) ** power)


def normalized(x, how):
    if how == "row":
        return inverse(x.sum(1))[:, None] * x
    if how == "col":
        return x * inverse(x.sum(0))
    return inverse(x.sum(1), -0.5)[:, None] * x * inverse(x.sum(0), -0.5)


def laplacian(x, normalization):
    x = x - torch.diag(x.diagonal())
    d = x.sum(1)
    if normalization is None:
        return torch.diag(d) - x
    left, right = (inverse(d), torch.ones_like(d))
    if normalization == "sym":
        left = right = inverse(d, -0.5)
    return torch.diag((d != 0).to(d.dtype)) - left[:, None] * x * right


def symmetric(x, reduce):
    a, b = x != 0, x.T != 0
    if reduce == "sum":
        return x + x.T
    both = {"mean": (x + x.T) / 2, "amax": torch.maximum(x, x.T), "amin": torch.minimum(x, x.T)}
    return torch.where(a & b, both[reduce], x + x.T)


CASES = [
    *((graph.normalize, normalized, {"how": how}) for how in ("sym", "row", "col")),
    *((graph.laplacian, laplacian, {"normalization": n}) for n in (None, "sym", "rw")),
    *((graph.to_symmetric, symmetric, {"reduce": r}) for r in ("sum", "mean", "amax", "amin")),
]


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize(("function", "dense", "options"), CASES)
def test_value_and_gradients(function, dense, options, layout):
    A = in_layout(X, layout).requires_grad_()
    x = X.clone().requires_grad_()
    y, wanted = function(A, **options), dense(x, *options.values())
    assert y.pattern.name == layout
    mask = A.detach().to_dense() * 0 + spgrad.testing.mask_of(A.pattern)
    exact = layout[0] != "b" or function is not graph.to_symmetric or options["reduce"] == "sum"
    if exact:  # in blocks, specified zeros are weights too
        torch.testing.assert_close(y.to_dense(), wanted)
    g = torch.randn(6, 6, dtype=torch.float64)
    y.to_dense().backward(g)
    wanted.backward(g)
    if exact:
        torch.testing.assert_close(A.grad.to_dense(), x.grad * mask)

    def run(vals):
        return function(spgrad.from_values(vals, A.pattern), **options).to_dense()

    vals = A.detach()._vals.clone()
    if layout[0] != "b":
        assert torch.autograd.gradcheck(run, vals.requires_grad_())
        assert torch.autograd.gradgradcheck(run, vals)


@pytest.mark.parametrize("normed", [False, True])
def test_the_laplacian_is_that_of_scipy(normed):
    found = graph.laplacian(spgrad.from_dense(S), "sym" if normed else None)
    wanted = scipy.sparse.csgraph.laplacian(S.numpy(), normed=normed)
    np.testing.assert_allclose(found.to_dense().numpy(), wanted)


@pytest.mark.parametrize("layout", support.ALL[:3])
def test_degrees(layout):
    A = in_layout(X, layout)
    assert torch.equal(graph.degree(A), (X != 0).sum(1))
    assert torch.equal(graph.degree(A, -2), (X != 0).sum(0))
    torch.testing.assert_close(graph.degree(A, 0, weighted=True), X.sum(0))


@pytest.mark.parametrize("layout", support.ALL[:3])
def test_neighbourhoods_are_powers_of_the_pattern(layout):
    A, reach = in_layout(X, layout), torch.eye(6, dtype=torch.bool)
    for k in range(4):
        nodes, hops = graph.k_hop(A, [2, 4], k)
        assert nodes.sort().values.tolist() == (reach[2] | reach[4]).nonzero().flatten().tolist()
        assert hops.max() <= k
        assert torch.equal(hops, hops.sort().values)
        reach = reach | (reach.double() @ (X != 0).double() > 0)


@pytest.mark.parametrize("seed", [2, torch.tensor(2), torch.tensor(2, dtype=torch.int32)])
def test_one_int_is_one_seed(seed):
    A = in_layout(X, "csr")
    for found, wanted in zip(graph.k_hop(A, seed, 2), graph.k_hop(A, [2], 2), strict=True):
        assert torch.equal(found, wanted)


def test_names_of_other_packages_are_the_same_functions():
    assert graph.subgraph.__wrapped__ is spgrad.data.subgraph
    assert pickle.loads(pickle.dumps(graph.subgraph)) is graph.subgraph
    assert graph.connected_components is spgrad.connected_components
    assert graph.is_symmetric is spgrad.is_symmetric


@pytest.mark.parametrize("n", [0, 3])
def test_graphs_without_edges(n):
    A = spgrad.zeros(n, n)
    for function in (graph.normalize, graph.laplacian, graph.to_symmetric):
        assert function(A).to_dense().abs().sum() == 0
    assert graph.degree(A).tolist() == [0] * n
    assert graph.k_hop(A, [], 2).nodes.numel() == 0


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(
    ("function", "how"),
    [
        *((graph.normalize, how) for how in ("sym", "row", "col")),
        *((graph.laplacian, how) for how in ("sym", "rw")),
    ],
)
def test_the_gradient_is_0_where_weights_cancel(function, how):
    A = spgrad.from_dense(torch.tensor([[0.0, 2.0, -2.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0]]))
    A = A.t() if how == "col" else A
    vals = A.values().requires_grad_()
    with torch.autograd.detect_anomaly():  # no step of the backward pass gives NaN
        y = function(spgrad.from_values(vals, A.pattern), how).to_dense()
        (y.T if how == "col" else y)[0].sum().backward()
    assert vals.grad.tolist() == [0] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_degrees_beyond_float16(dtype):
    n, wide = 70_000, torch.ones(70_000)
    star = spgrad.from_edges(torch.stack([torch.zeros(n).long(), torch.arange(n)]), wide, n)
    functions = (
        spgrad.nn.gcn_norm,
        *(lambda A, how=how: graph.normalize(A, how) for how in ("row", "sym")),
        lambda A: graph.normalize(A.t(), "col"),
        *(lambda A, how=how: graph.laplacian(A, how) for how in ("rw", "sym")),
    )
    for function in functions:
        found, wanted = function(star.to(dtype)), function(star)
        assert found.dtype == dtype
        torch.testing.assert_close(found.values(), wanted.values().to(dtype))
    assert graph.laplacian(star.to(dtype)).dtype == dtype
    layer, x = spgrad.nn.GraphConv(2, 2), torch.ones(n, 2)
    torch.nn.init.constant_(layer.lin.weight, 0.1)
    y = layer(x, star)
    narrow = layer.to(dtype)(x.to(dtype), star.to(dtype))
    torch.testing.assert_close(narrow, y.to(dtype))


def test_complex_weights_have_no_order():
    with pytest.raises(spgrad.ArgumentValueError, match="`reduce` is 'amax' for complex weights"):
        graph.to_symmetric(spgrad.eye(2, dtype=torch.complex64), "amax")


def test_repeated_edges_add():
    A = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))
    assert graph.degree(A).tolist() == [1, 0]
    assert graph.laplacian(A).to_dense().tolist() == [[3, -3], [0, 0]]


@pytest.mark.parametrize(
    ("dtype", "weight", "wanted"),
    [
        (torch.bool, True, torch.float32),
        (torch.int8, 127, torch.float32),
        (torch.uint8, 200, torch.float32),
        (torch.float16, 60000, torch.float16),
    ],
)
def test_means_of_two_weights_whose_sum_the_dtype_does_not_hold(dtype, weight, wanted):
    edges = torch.tensor([[0, 1, 1], [1, 0, 2]])
    A = spgrad.from_edges(edges, torch.tensor([weight] * 3).to(dtype))
    found = graph.to_symmetric(A, "mean").values()
    assert found.dtype == wanted
    assert found.tolist() == torch.tensor([float(weight)] * 4).to(wanted).tolist()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda A: graph.normalize(A, "x"), "graph.normalize: `how` is 'x'"),
        (lambda A: graph.normalize(A.int()), "`A` has dtype int32; floating-point dtypes"),
        (lambda A: graph.normalize(A.to_dense()), "`A` is a dense tensor"),
        (lambda A: graph.laplacian(A, "x"), "`normalization` is 'x'"),
        (
            lambda A: graph.laplacian(spgrad.zeros(2, 3)),
            "a square matrix is accepted. Rows and columns stand for the same nodes.",
        ),
        (lambda A: graph.laplacian(A.unsqueeze(0)), "one adjacency matrix is accepted"),
        (lambda A: graph.degree(A, 2), "`dim` is 2 for 2"),
        (lambda A: graph.to_symmetric(A, "x"), "`reduce` is 'x'"),
        (lambda A: graph.to_symmetric(spgrad.zeros(2, 3)), "a square matrix"),
        (lambda A: graph.k_hop(A, [3], 1), "`seeds` has 3 at position 0"),
        (lambda A: graph.k_hop(A, [0, 3, 1, -1], 1), "`seeds` has 3 at position 1"),
        (lambda A: graph.k_hop(A, [0, -1, 3], 1), "`seeds` has -1 at position 1"),
        (lambda A: graph.k_hop(A, 3, 1), "`seeds` has 3 at position 0"),
        (lambda A: graph.k_hop(A, 1.5, 1), "`seeds` has dtype float32"),
        (lambda A: graph.k_hop(A, True, 1), "`seeds` has shape (); (3,) for a bool mask"),
        (lambda A: graph.k_hop(A, [[0]], 1), "Flatten it: seeds.flatten()"),
        (lambda A: graph.subgraph(A, 0), "spgrad.graph.subgraph: `nodes` has shape ()"),
        (lambda A: graph.subgraph(A, 0), "a vector is accepted. Put it into a list: [nodes]."),
        (lambda A: graph.k_hop(A, [0], -1), "`k` is -1"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError) as raised:
        call(spgrad.eye(3))
    assert text in str(raised.value)
