"""Attention in graphs: against dense torch and torch_geometric."""

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
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad
from spgrad import kernels, nn, testing
from spgrad.core.pattern import Pattern
from spgrad.errors import SpgradError
from spgrad.nn.graph import pairs

LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo]
DOUBLE = {"dtype": torch.float64}
VERSIONS = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that even these graphs need several."""
    monkeypatch.setattr(pairs, "_AT_ONCE", 16)


def edge_features(d=3, requires_grad=False):
    generator = torch.Generator().manual_seed(7)
    vals = torch.randn(EDGES.shape[1], d, generator=generator, dtype=torch.float64)
    return vals.requires_grad_(requires_grad)


def dense_attention(layer, x, mask, edges=None):
    """The layer on dense tensors: mask (n, n), edges (n, n, d)."""
    shape = layer.heads, layer.out_channels
    e = 0 if edges is None else (edges @ layer.lin_edge.weight.T).unflatten(-1, shape)
    if layer.version == 1:
        z = layer.lin(x).unflatten(1, shape)
        s = (z * layer.att_dst).sum(-1)[:, None] + (z * layer.att_src).sum(-1)
        s = F.leaky_relu(s if edges is None else s + (e * layer.att_edge).sum(-1), 0.2)
    else:
        z = layer.lin_l(x).unflatten(1, shape)
        joined = layer.lin_r(x).unflatten(1, shape)[:, None] + z + e
        s = (F.leaky_relu(joined, 0.2) * layer.att).sum(-1)
    s = s.masked_fill(~mask[..., None], -torch.inf).softmax(1)
    y = torch.einsum("ijh,jhc->ihc", s.nan_to_num(), z)
    y = y.flatten(1) if layer.concat else y.mean(1)
    return y + layer.bias


@VERSIONS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("loops", [True, False])
def test_attention_is_the_dense_formula(version, layout, loops):
    layer = nn.GraphAttention(4, 3, 2, add_self_loops=loops, version=version, **DOUBLE)
    x = features().requires_grad_()
    mask = graph().to_dense() != 0
    mask = mask | torch.eye(NODES, dtype=torch.bool) if loops else mask
    found, wanted = layer(x, graph(layout)), dense_attention(layer, x, mask)
    if not loops:  # softmax of nothing
        assert not found[5].any()
        found, wanted = found[:5], wanted[:5]
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, graph(layout))[: len(found)], found)
    g = torch.randn_like(wanted)
    leaves = [x, *layer.parameters()]
    ours = torch.autograd.grad(found, leaves, g)
    if loops:  # the dense softmax of an empty row has the gradient NaN
        torch.testing.assert_close(ours, torch.autograd.grad(wanted, leaves, g))


@VERSIONS
def test_derivatives_of_second_order(version):
    layer = nn.GraphAttention(2, 2, 2, edge_dim=2, version=version, **DOUBLE)
    A = spgrad.from_edges(EDGES.flip(0), edge_features(2), NODES)
    vals = A.values().clone().requires_grad_()
    x = features(channels=2).requires_grad_()

    def run(x, vals):
        return layer(x, spgrad.from_values(vals, A))

    assert torch.autograd.gradcheck(run, (x, vals))
    assert torch.autograd.gradgradcheck(run, (x, vals))


OPTIONS = [
    {},
    {"heads": 3},
    {"heads": 3, "concat": False, "bias": False},
    {"heads": 3, "concat": False, "residual": True},
    {"heads": 2, "residual": True, "negative_slope": 0.1},
    {"heads": 2, "add_self_loops": False},
]


@VERSIONS
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("pair", [False, True])
def test_it_is_that_of_torch_geometric(peer, version, options, pair):  # noqa: F811
    sizes = (4, 5) if pair else 4
    ours = nn.GraphAttention(sizes, 3, **options, version=version, **DOUBLE)
    theirs = (peer.GATConv if version == 1 else peer.GATv2Conv)(sizes, 3, **options).double()
    x = features().requires_grad_()
    other = features(channels=5, seed=3).requires_grad_()
    given, leaves = ((x, other), (x, other)) if pair else (x, (x,))
    with_ours = lambda layer: layer(given, graph())  # noqa: E731
    same_results(ours, theirs, with_ours, lambda layer: layer(given, EDGES), *leaves)


@VERSIONS
@pytest.mark.parametrize("fill", ["mean", "sum", 0.5, None])
def test_edge_features_are_those_of_torch_geometric(peer, version, fill):  # noqa: F811
    options = {"heads": 2, "edge_dim": 3}
    if fill is None:
        options["add_self_loops"] = False
    else:
        options["fill_value"] = fill
    ours = nn.GraphAttention(4, 3, **options, version=version, **DOUBLE)
    theirs = (peer.GATConv if version == 1 else peer.GATv2Conv)(4, 3, **options).double()
    x, e = features().requires_grad_(), edge_features(requires_grad=True)

    def with_ours(layer):
        return layer(x, spgrad.from_edges(EDGES.flip(0), e, NODES))

    same_results(ours, theirs, with_ours, lambda layer: layer(x, EDGES, e), x, e)


@pytest.mark.parametrize("edge_dim", [None, 3])
def test_shared_weights_are_those_of_torch_geometric(peer, edge_dim):  # noqa: F811
    options = {"heads": 2, "edge_dim": edge_dim, "share_weights": True}
    ours = nn.GraphAttention(4, 3, version=2, **options, **DOUBLE)
    theirs = peer.GATv2Conv(4, 3, **options).double()
    x = features().requires_grad_()
    e = None if edge_dim is None else edge_features()
    A = graph() if e is None else spgrad.from_edges(EDGES.flip(0), e, NODES)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    same_results(ours, theirs, lambda layer: layer(x, A), lambda layer: layer(x, EDGES, e), x)
    ours.reset_parameters()
    assert ours.lin_r.weight is ours.lin_l.weight


@pytest.mark.parametrize("options", [{}, {"version": 2}, {"edge_dim": 3}, {"residual": True}])
def test_all_parameters_are_drawn_anew(options):
    layer = nn.GraphAttention(4, 3, 2, **options)
    for weight in layer.parameters():
        torch.nn.init.ones_(weight)
    layer.reset_parameters()
    for name, weight in layer.named_parameters():
        assert not (weight == 1).any(), name
        assert bool(weight.any()) != name.endswith("bias")


def test_one_feature_of_edges_may_be_the_value():
    layer = nn.GraphAttention(4, 3, edge_dim=1, **DOUBLE)
    A = graph(weights=weights())
    hybrid = spgrad.from_edges(EDGES.flip(0), weights()[:, None], NODES)
    torch.testing.assert_close(layer(features(), A), layer(features(), hybrid))


@VERSIONS
def test_dropout_is_of_the_weights(version):
    layer = nn.GraphAttention(4, 3, 2, dropout=0.5, version=version, **DOUBLE)
    _, W = layer(features(), graph(), return_attention_weights=True)
    assert W.shape == (NODES, NODES, 2)
    assert (W.values() == 0).any()
    _, W = layer.eval()(features(), graph(), return_attention_weights=True)
    torch.testing.assert_close(W.to_dense().sum(1), torch.ones(NODES, 2, **DOUBLE))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_self_loops_have_the_index_dtype_of_the_graph(layout):
    A = graph(layout)
    narrow = tuple(i.to(torch.int32) for i in A.pattern.indices)
    A = spgrad.from_values(A.values(), Pattern.from_spec(A.pattern.spec, A.pattern.shape, narrow))
    layer = nn.GraphAttention(4, 3, **DOUBLE)
    _, W = layer(features(), A, return_attention_weights=True)
    assert {i.dtype for i in W.pattern.indices} == {torch.int32}


@VERSIONS
def test_nothing_of_a_graph(version):
    layer = nn.GraphAttention(3, 2, 2, version=version)
    A = spgrad.from_edges(torch.empty(2, 0, dtype=torch.int64), size=4)
    x = torch.randn(4, 3, requires_grad=True)
    y = layer(x, A)
    weight, bias = (layer.lin_l.weight, layer.lin_l.bias) if version == 2 else (layer.lin.weight, 0)
    torch.testing.assert_close(y, x @ weight.T + bias + layer.bias)  # each node itself alone
    layer.add_self_loops = False
    layer(x, A).sum().backward()
    assert not x.grad.any()
    nobody = spgrad.from_edges(torch.empty(2, 0, dtype=torch.int64), size=0)
    assert layer(torch.empty(0, 3), nobody).shape == (0, 4)


@VERSIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(version, dtype):
    layer = nn.GraphAttention(4, 3, 2, version=version, dtype=dtype)
    y = layer(features(dtype=dtype), graph(dtype=dtype))
    assert y.dtype == dtype
    wide = copy.deepcopy(layer).double()(features(dtype=dtype).double(), graph())
    torch.testing.assert_close(y.double(), wide, atol=0.05, rtol=0.05)


@VERSIONS
def test_autocast(version):
    layer = nn.GraphAttention(4, 3, 2, edge_dim=3, version=version)
    A = spgrad.from_edges(EDGES.flip(0), edge_features().float(), NODES)
    x = features(dtype=torch.float32).requires_grad_()
    wanted = layer(x, A)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, A)
    torch.testing.assert_close(found.float(), wanted, atol=0.05, rtol=0.05)
    found.sum().backward()
    assert x.grad.dtype == torch.float32


def test_targets_without_features():
    layer = nn.GraphAttention((4, 5), 3, residual=True, **DOUBLE)
    assert layer((features(), None), graph()[:2]).shape == (2, 3)
    other = nn.GraphAttention((4, 5), 3, version=2, **DOUBLE)
    with pytest.raises(SpgradError, match=r"`x\[1\]` is None"):
        other((features(), None), graph()[:2])


@VERSIONS
def test_copies_and_states(version):
    layer = nn.GraphAttention(4, 3, 2, version=version, **DOUBLE)
    wanted = layer(features(), graph())
    torch.testing.assert_close(copy.deepcopy(layer)(features(), graph()), wanted)
    other = nn.GraphAttention(4, 3, 2, version=version, **DOUBLE)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(features(), graph()), wanted)
    shown = "4, 3, heads=2" if version == 1 else "4, 3, heads=2, version=2"
    assert repr(other).startswith(f"GraphAttention(\n  {shown}\n")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: nn.GraphAttention(4, 3, 0), r"`heads` is 0; an int of at least 1"),
        (lambda: nn.GraphAttention(4, 3, version=3), r"`version` is 3; 1 and 2"),
        (lambda: nn.GraphAttention(4, 3, dropout=1.0), r"`dropout` is 1.0; numbers from 0"),
        (lambda: nn.GraphAttention(4, 3, fill_value="max"), r"`fill_value` is 'max'; a number"),
        (lambda: nn.GraphAttention(4, 3, negative_slope="a"), r"`negative_slope` is a str; numb"),
        (
            lambda: nn.GraphAttention(4, 3, edge_dim=3, fill_value=torch.ones(2)),
            r"`fill_value` has shape \(2,\); \(3,\)",
        ),
        (lambda: nn.GraphAttention(4, 3, share_weights=True), r"`share_weights` is True for ver"),
        (
            lambda: nn.GraphAttention((4, 5), 3, version=2, share_weights=True),
            r"version 2 and \(4, 5\) channels",
        ),
        (
            lambda: nn.GraphAttention(4, 3, edge_dim=2)(features(), graph()),
            r"`A` has shape \(6, 6\); a hybrid \(6, 6 | 2\)",
        ),
        (
            lambda: nn.GraphAttention((5, 4), 3, **DOUBLE)(features(), graph()),
            r"`x` has shape \(6, 4\); \(6, 5\) is accepted",
        ),
        (lambda: nn.GraphAttention(4, 3)(features(), graph()), r"dtype float32; `x` has float64"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(SpgradError, match=text):
        call()


@VERSIONS
@pytest.mark.parametrize(
    "options", [{}, {"add_self_loops": False}, {"edge_dim": 1}, {"edge_dim": 1, "fill_value": 2.0}]
)
def test_one_compilation_serves_changing_graphs(version, options):
    torch._dynamo.reset()
    layer = nn.GraphAttention(4, 3, 2, version=version, **options, **DOUBLE)
    backend = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(layer, fullgraph=True, backend=backend)
    for nodes in (6, 9, 12, 20):
        A, x = random_graph(nodes), features(nodes).requires_grad_()
        A = A.detach().requires_grad_("edge_dim" in options)
        leaves = [x, *layer.parameters(), *([A] if A.requires_grad else [])]
        found, wanted = fast(x, A), layer(x, A)
        torch.testing.assert_close(found, wanted)
        got, grads = (torch.autograd.grad(y.sin().sum(), leaves) for y in (found, wanted))
        for one, other in zip(got, grads, strict=True):
            testing.assert_close(one, testing.dense_result(other))
    assert backend.frame_count <= 2


@VERSIONS
def test_memory_is_that_of_scores(version):
    """No tensor of a step is as large as (edges, heads, channels)."""
    n, heads, c = 60, 2, 32
    A = spgrad.from_edges(torch.cartesian_prod(torch.arange(n), torch.arange(n)).T, size=n)
    layer = nn.GraphAttention(4, c, heads, version=version)
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Sizes():
        layer(torch.randn(n, 4), A).sum().backward()
    whole = n * n * heads
    assert largest < whole if version == 1 and kernels.compiled() else largest <= 4 * whole


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("slope", [0.2, 0.0, -0.3])
def test_the_result_does_not_depend_on_whether_weights_are_asked_for(layout, edge_dim, slope):
    layer = nn.GraphAttention(4, 3, 8, edge_dim=edge_dim, negative_slope=slope, **DOUBLE)
    A = spgrad.from_edges(EDGES.flip(0), edge_features(), NODES).to_sparse(layout=layout)
    x = features().requires_grad_()
    leaves = [x, *layer.parameters()]
    y = layer(x, A)
    stored, _ = layer(x, A, return_attention_weights=True)
    torch.testing.assert_close(y, stored)
    g = torch.randn_like(y)
    wanted = torch.autograd.grad(stored, leaves, g)
    torch.testing.assert_close(torch.autograd.grad(y, leaves, g), wanted)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("version", [1, 2])
def test_sparse_features(version, layout):
    """Words of a text, say: the result and the gradients of weights are those of dense ones."""
    torch.manual_seed(0)
    dense = torch.randn(5, 6) * (torch.rand(5, 6) < 0.4)
    A = spgrad.from_dense((torch.rand(5, 5) < 0.5).float())
    layer = spgrad.nn.GraphAttention(6, 2, heads=3, version=version)
    found = []
    for x in (dense, spgrad.from_dense(dense, layout)):
        layer.zero_grad()
        y = layer(x, A)
        y.square().sum().backward()
        found.append([y, *(p.grad.clone() for p in layer.parameters())])
    torch.testing.assert_close(found[0], found[1])
    conv = spgrad.nn.GraphConv(6, 2)
    torch.testing.assert_close(conv(dense, A), conv(spgrad.from_dense(dense, layout), A))


@VERSIONS
def test_features_of_loops_that_are_learned(version):
    fill = torch.nn.Parameter(torch.tensor([0.5, -1.0]))
    layer = nn.GraphAttention(4, 3, edge_dim=2, fill_value=fill, version=version)
    assert layer.fill_value is fill
    assert fill.tolist() == [0.5, -1.0]
    layer(torch.ones(3, 4), spgrad.zeros(3, 3, 2, dense_dim=1)).square().sum().backward()
    assert fill.grad.shape == (2,)


def test_features_of_loops_follow_the_layer():
    fill = torch.tensor([0.5, -1.0])
    layer = nn.GraphAttention(4, 3, edge_dim=2, fill_value=fill)
    assert layer.fill_value is fill
    names = set(layer.state_dict())
    assert not any("fill" in name for name in names)
    assert layer.double().fill_value.dtype == torch.float64
    assert fill.dtype == torch.float32
    emptied = copy.deepcopy(layer).to("meta").to_empty(device="cpu")
    emptied.load_state_dict(layer.state_dict())
    assert emptied.fill_value.tolist() == [0.5, -1.0]
    x, A = features(3, 4).double(), spgrad.zeros(3, 3, 2, dense_dim=1, dtype=torch.float64)
    assert torch.equal(emptied(x, A), layer(x, A))
