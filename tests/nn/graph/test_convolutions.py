"""Graph convolutions: against dense torch and torch_geometric."""

import copy

import pytest
import torch
import torch.nn.functional as F
from nn_graphs import (  # noqa: F401
    EDGES,
    NODES,
    features,
    graph,
    peer,
    random_graph,
    same_results,
    weights,
)
from torch._dynamo.testing import CompileCounter

import spgrad
from spgrad import nn
from spgrad.errors import SpgradError

LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo]
DOUBLE = {"dtype": torch.float64}
LAYERS = [
    lambda: nn.GraphConv(4, 3, **DOUBLE),
    lambda: nn.SAGEConv(4, 3, **DOUBLE),
    lambda: nn.SAGEConv(4, 3, "max", **DOUBLE),
    lambda: nn.GINConv(torch.nn.Linear(4, 3, **DOUBLE), train_eps=True, **DOUBLE),
]


def dense_gcn(x, A, layer, fill):
    A = A + fill * torch.diag((A.diagonal() == 0).to(A.dtype)) if fill else A
    degrees = A.sum(1)
    scale = torch.where(degrees == 0, 0, torch.where(degrees == 0, 1, degrees) ** -0.5)
    return (scale[:, None] * A * scale) @ (x @ layer.lin.weight.T) + layer.bias


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("improved", "loops", "fill"), [(0, 1, 1), (1, 1, 2), (0, 0, 0)])
def test_gcn_is_the_dense_formula(layout, improved, loops, fill):
    layer = nn.GraphConv(4, 3, bool(improved), add_self_loops=bool(loops), **DOUBLE)
    torch.nn.init.normal_(layer.bias)
    A = graph(layout, weights=weights()).requires_grad_()
    x = features().requires_grad_()
    dense = A.detach().to_dense().requires_grad_()
    found, wanted = layer(x, A), dense_gcn(x, dense, layer, fill)
    torch.testing.assert_close(found, wanted)
    leaves = [x, layer.lin.weight, layer.bias]
    g = torch.randn_like(wanted)
    *grads, of_A = torch.autograd.grad(found, [*leaves, A], g)
    *others, of_dense = torch.autograd.grad(wanted, [*leaves, dense], g)
    torch.testing.assert_close(grads, others)
    assert of_A.pattern is A.pattern
    at = A.detach().to_dense() != 0
    torch.testing.assert_close(of_A.to_dense(), torch.where(at, of_dense, 0))
    norm = spgrad.nn.gcn_norm(A, bool(improved), bool(loops))
    torch.testing.assert_close(norm @ (x @ layer.lin.weight.T) + layer.bias, wanted)


def test_gcn_has_derivatives_of_second_order():
    layer, A = nn.GraphConv(2, 2, **DOUBLE), graph()
    x = features(channels=2).requires_grad_()

    def run(x, w):
        return layer(x, spgrad.from_values(w, A))

    vals = weights()[: A.nse].requires_grad_()
    assert torch.autograd.gradcheck(run, (x, vals))
    assert torch.autograd.gradgradcheck(run, (x, vals))


@pytest.mark.parametrize("options", [{}, {"improved": True}, {"bias": False}, {"normalize": False}])
def test_gcn_is_that_of_torch_geometric(peer, options):  # noqa: F811
    ours = nn.GraphConv(4, 3, **options, **DOUBLE)
    theirs = peer.GCNConv(4, 3, **options).double()
    x, w = features().requires_grad_(), weights().requires_grad_()

    def with_ours(layer):
        return layer(x, spgrad.from_edges(EDGES.flip(0), w, NODES))

    same_results(ours, theirs, with_ours, lambda layer: layer(x, EDGES, w), x, w)


def test_cached_keeps_the_first_graph_and_refuses_one_that_is_learned():
    layer, x = nn.GraphConv(4, 3, cached=True, **DOUBLE), features()
    A = graph(weights=weights())
    with pytest.raises(SpgradError, match="`A` requires a gradient"):
        layer(x, A.clone().requires_grad_())
    first = layer(x, A)
    torch.testing.assert_close(first, dense_gcn(x, A.to_dense(), layer, 1))
    torch.testing.assert_close(layer(x, graph()), first)
    with pytest.raises(SpgradError, match="`A` requires a gradient"):  # which it would not get
        layer(x, A.clone().requires_grad_())
    layer.reset_parameters()
    torch.testing.assert_close(layer(x, graph()), dense_gcn(x, graph().to_dense(), layer, 1))


def test_what_cached_keeps_moves_with_the_layer_and_serves_training():
    layer, x = nn.GraphConv(4, 3, cached=True, **DOUBLE), features()
    with torch.inference_mode():
        first = layer(x, graph())
    found = layer(x, graph())
    found.sum().backward()
    torch.testing.assert_close(found, first.clone())
    low = layer.float()(x.float(), graph(dtype=torch.float32))
    torch.testing.assert_close(low, first.float())


@pytest.mark.parametrize("aggr", ["mean", "sum", "max", "amin"])
@pytest.mark.parametrize("pair", [False, True])
def test_sage_is_that_of_torch_geometric(peer, aggr, pair):  # noqa: F811
    sizes = (4, 5) if pair else 4
    theirs_aggr = "min" if aggr == "amin" else aggr
    options = {"normalize": aggr == "sum", "project": aggr == "mean"}
    ours = nn.SAGEConv(sizes, 3, aggr, **options, **DOUBLE)
    theirs = peer.SAGEConv(sizes, 3, aggr=theirs_aggr, **options).double()
    x = features().requires_grad_()
    other = features(channels=5, seed=3).requires_grad_()
    given, leaves = ((x, other), (x, other)) if pair else (x, (x,))
    edges = EDGES
    same_results(
        ours,
        theirs,
        lambda layer: layer(given, graph()),
        lambda layer: layer(given, edges),
        *leaves,
    )


@pytest.mark.parametrize("train", [False, True])
def test_gin_is_that_of_torch_geometric(peer, train):  # noqa: F811
    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))

    ours = nn.GINConv(net().double(), 0.3, train, **DOUBLE)
    theirs = peer.GINConv(net(), 0.3, train).double()
    x = features().requires_grad_()
    same_results(ours, theirs, lambda layer: layer(x, graph()), lambda layer: layer(x, EDGES), x)


def test_sage_and_gin_of_two_kinds_of_nodes_without_features_of_targets():
    A = graph()[:2]
    y = nn.SAGEConv((4, 5), 3, **DOUBLE)((features(), None), A)
    assert y.shape == (2, 3)
    summed = nn.GINConv(torch.nn.Identity())((features(), None), A)
    torch.testing.assert_close(summed, A.to_dense() @ features())


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin", "prod", "add", "max"])
def test_message_passing_is_the_product(reduce):
    A, x = graph(weights=weights()), features()
    name = {"add": "sum", "max": "amax"}.get(reduce, reduce)
    torch.testing.assert_close(nn.MessagePassing(aggr=reduce)(x, A), spgrad.spmm(A, x, name))


def test_nothing_of_a_graph_is_a_layer_of_nothing():
    A = spgrad.from_edges(torch.empty(2, 0, dtype=torch.int64), size=4)
    x = torch.randn(4, 3)
    conv = nn.GraphConv(3, 2)
    torch.testing.assert_close(conv(x, A), conv.lin(x))  # the self-loops alone
    assert not nn.GraphConv(3, 2, normalize=False)(x, A).any()
    nobody = spgrad.from_edges(torch.empty(2, 0, dtype=torch.int64), size=0)
    for layer in (conv, nn.SAGEConv(3, 2), nn.GINConv(torch.nn.Identity())):
        assert layer(torch.empty(0, 3), nobody).shape[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    A, x = graph(dtype=dtype), features(dtype=dtype)
    for layer in (nn.GraphConv(4, 3, dtype=dtype), nn.SAGEConv(4, 3, dtype=dtype)):
        y = layer(x, A)
        assert y.dtype == dtype
        wide = copy.deepcopy(layer).double()(x.double(), graph())
        torch.testing.assert_close(y.double(), wide, atol=0.05, rtol=0.05)


def test_what_cached_keeps_is_made_anew_after_the_meta_device():
    layer, x = nn.GraphConv(4, 3, cached=True, **DOUBLE), features()
    expected = layer(x, graph())
    empty = copy.deepcopy(layer).to("meta").to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    torch.testing.assert_close(empty(x, graph()), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_of_norm_1_where_some_are_zero(dtype):
    """torch's own function gives NaN for such a row in float16, and in second derivatives."""
    layer = nn.SAGEConv(4, 3, normalize=True, bias=False, dtype=dtype)
    x, A = features(dtype=dtype), graph(dtype=dtype)
    x[5] = 0  # the isolated node
    wanted = F.normalize(nn.SAGEConv.forward(_plain(layer), x, A)[:5], dim=1)
    found = layer(x.requires_grad_(), A)
    torch.testing.assert_close(found[:5], wanted)
    assert not found[5].any()
    y = found.square().sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert not first[5].any()
    (second,) = torch.autograd.grad(first[:5].sum(), x)
    assert second.isfinite().all()


def _plain(layer):
    layer = copy.deepcopy(layer)
    layer.normalize = False
    return layer


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_float16_where_the_sum_of_unscaled_neighbours_is_out_of_range(autocast, loops, cached):
    leaves = torch.arange(1, 70_000)
    edges = torch.stack([torch.zeros_like(leaves), leaves])
    A = spgrad.from_edges(torch.cat([edges, edges.flip(0)], 1))
    x = torch.full((len(leaves) + 1, 4), 8.0)
    options = {"add_self_loops": loops, "cached": cached}
    layer = nn.GraphConv(4, 3, **options)
    torch.nn.init.constant_(layer.lin.weight, 0.25)
    wide = copy.deepcopy(layer).double()(x.double(), A.double())
    if autocast:
        with torch.autocast("cpu", torch.float16):
            y = layer(x, A)
    else:
        y = layer.half()(x.half(), A.half())
    torch.testing.assert_close(y.double(), wide, atol=0, rtol=2e-3)


@pytest.mark.parametrize("make", LAYERS)
def test_autocast(make):
    layer, A = make().float(), graph(dtype=torch.float32)
    x = features(dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, A)
    torch.testing.assert_close(found.float(), layer(x, A), atol=0.05, rtol=0.05)
    found.sum().backward()
    assert x.grad.dtype == torch.float32


def test_blocks_and_repeated_edges():
    A = graph(weights=weights())
    conv, x = nn.GraphConv(4, 3, **DOUBLE), features()
    blocks = A.to_sparse_bsr((2, 2))
    elements = blocks.to_sparse_csr()  # the zeros that fill up blocks are edges of weight 0
    torch.testing.assert_close(conv(x, blocks), conv(x, elements))
    torch.testing.assert_close(nn.gcn_norm(blocks).to_dense(), nn.gcn_norm(elements).to_dense())
    twice = spgrad.sparse_coo_tensor(
        torch.cat([EDGES.flip(0)] * 2, 1), torch.cat([weights()] * 2) / 2, (NODES, NODES)
    )
    torch.testing.assert_close(conv(x, twice), conv(x, A))


def test_copies_and_states():
    layer = nn.GraphConv(4, 3, cached=True, **DOUBLE)
    wanted = layer(features(), graph())
    torch.testing.assert_close(copy.deepcopy(layer)(features(), graph()), wanted)
    other = nn.GraphConv(4, 3, **DOUBLE)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(features(), graph()), wanted)
    assert repr(other).startswith("GraphConv(\n  4, 3")


def test_self_loops_of_edge_features():
    A = graph()
    features_of_edges = spgrad.einsum("ij,d->ijd", A, torch.tensor([1.0, 2.0], **DOUBLE))
    found = nn.add_self_loops(features_of_edges, 7.0).to_dense()
    wanted = features_of_edges.to_dense()
    for i in range(NODES):
        if i != 3:
            wanted[i, i] = 7.0
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: nn.GraphConv(0, 3), r"`in_channels` is 0; an int of at least 1"),
        (lambda: nn.SAGEConv((1, 2, 3), 3), r"`in_channels` is \(1, 2, 3\); an int or a pair"),
        (lambda: nn.SAGEConv(3, 2, "median"), r"nn\.SAGEConv: `aggr` is 'median'; sum, mean"),
        (lambda: nn.SAGEConv(3, 2, ["mean", "max"]), r"`aggr` is \['mean', 'max'\]; sum, mean"),
        (
            lambda: nn.GraphConv(2, 3)(torch.ones(4, 2), torch.tensor([[0, 1], [1, 2]])),
            "from_edges",
        ),
        (lambda: nn.GINConv(3), r"`nn` is an int; a module or function"),
        (lambda: nn.GraphConv(4, 3)(features(), graph()[:2]), r"`A` has shape \(2, 6\); a square"),
        (lambda: nn.GraphConv(4, 3)(features(5), graph()), r"`x` has shape \(5, 4\); \(6, 4\)"),
        (lambda: nn.GraphConv(4, 3)(features().float(), graph()), r"`A` has dtype float64"),
        (lambda: nn.GraphConv(4, 3)(features(), features(6, 6)), r"`A` is a dense tensor"),
        (lambda: nn.SAGEConv(4, 3)(features(), graph()[:2]), r"`x` is one tensor; a pair"),
        (lambda: nn.SAGEConv(4, 3)((features(),), graph()), r"`x` has 1 items; a pair"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(SpgradError, match=text):
        call()


@pytest.mark.parametrize("make", LAYERS)
def test_one_compilation_serves_changing_graphs(make):
    torch._dynamo.reset()
    layer, backend = make(), CompileCounter()
    fast = torch.compile(layer, fullgraph=True, backend=backend)
    for nodes in (6, 9, 12, 20):
        A, x = random_graph(nodes), features(nodes)
        torch.testing.assert_close(fast(x, A), layer(x, A))
    assert backend.frame_count <= 2


@pytest.mark.parametrize(
    "layer",
    [
        nn.GraphConv(4, 3, **DOUBLE),
        nn.GraphAttention(4, 3, 2, add_self_loops=False, **DOUBLE),
        nn.GraphAttention(4, 3, 2, add_self_loops=False, version=2, **DOUBLE),
    ],
    ids=str,
)
def test_features_that_are_sparse_are_compiled(layer):
    torch._dynamo.reset()
    backend, weights = CompileCounter(), list(layer.parameters())
    fast = torch.compile(layer, fullgraph=True, backend=backend)
    for nodes in (6, 9, 12, 20):
        A, x = nn.add_self_loops(random_graph(nodes)), spgrad.from_dense(features(nodes).relu())
        found, wanted = fast(x, A), layer(x, A)
        torch.testing.assert_close(found, wanted)
        g = torch.randn_like(wanted)
        torch.testing.assert_close(
            torch.autograd.grad(found, weights, g), torch.autograd.grad(wanted, weights, g)
        )
    assert backend.frame_count <= 2


def test_a_kept_matrix_is_part_of_a_graph_after_the_first_call():
    torch._dynamo.reset()
    layer = nn.GraphConv(4, 3, cached=True, **DOUBLE)
    A, x = graph(), features()
    wanted = layer(x, A)
    fast = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(fast(x, A), wanted)


@pytest.mark.parametrize("project", [False, True])
def test_weights_of_sage_are_drawn_anew(project):
    layer = nn.SAGEConv((4, 5), 2, project=project)
    before = [p.detach().clone() for p in layer.parameters()]
    torch.manual_seed(3)
    layer.reset_parameters()
    drawn = [p.detach().clone() for p in layer.parameters()]
    assert len(drawn) == 5 if project else 3
    assert not any(torch.equal(a, b) for a, b in zip(before, drawn, strict=True))
    torch.manual_seed(3)
    layer.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(drawn, layer.parameters(), strict=True))


def test_what_is_shown_of_a_layer():
    shown = {
        "MessagePassing(aggr='amax')": nn.MessagePassing("max"),
        "GraphConv(": nn.GraphConv(4, 3),
        "SAGEConv(\n  4, 3, aggr='mean'": nn.SAGEConv(4, 3),
        "GINConv(\n  eps=0.5, train_eps=True\n  (nn): ": nn.GINConv(torch.nn.ReLU(), 0.5, True),
    }
    for begin, layer in shown.items():
        assert repr(layer).startswith(begin)


@pytest.mark.parametrize("train_eps", [False, True])
def test_gin_begins_anew(train_eps):
    inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    layer = nn.GINConv(inner, eps=0.25, train_eps=train_eps)
    before = [p.detach().clone() for p in inner.parameters()]
    with torch.no_grad():
        layer.eps.fill_(4)
    layer.reset_parameters()
    assert layer.eps.tolist() == [0.25]
    assert isinstance(layer.eps, torch.nn.Parameter) is train_eps
    assert not any(torch.equal(a, b) for a, b in zip(before, inner.parameters(), strict=True))
    function = nn.GINConv(torch.relu, eps=0.5)
    with torch.no_grad():
        function.eps.zero_()
    function.reset_parameters()
    assert function.eps.tolist() == [0.5]


@pytest.mark.parametrize("redrawn", [False, True])
def test_weights_are_spread_by_the_number_of_both_channels(redrawn):
    """After Glorot and Bengio (2010)."""
    layer = nn.GraphConv(2, 1000)
    if redrawn:
        for weight in layer.parameters():
            torch.nn.init.ones_(weight)
        layer.reset_parameters()
    assert not layer.bias.any()
    bound = (6 / 1002) ** 0.5
    assert 0.99 * bound < layer.lin.weight.max() <= bound
    assert -0.99 * bound > layer.lin.weight.min() >= -bound
