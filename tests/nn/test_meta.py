"""Modules on the meta device: they give the shape of their result, and gradients have theirs."""

import pytest
import torch

import spgrad
from spgrad import nn
from spgrad.nn import patterns

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
BLOCKS = patterns.block(6, 2).to_sparse_bsr((2, 2))
HEADS = {"heads": 3, "device": "meta"}


def of_tokens(layer, **options):
    return layer, lambda x: layer(x, x, x, **options)[0], (2, 6, 8), (2, 6, 8)


def of_graph(layer, weights=None):
    A = spgrad.from_edges(EDGES, weights).to("meta")
    return layer, lambda x: layer(x, A), (3, 4), None


def attention(pattern, **options):
    return nn.SparseAttention(8, 2, pattern=pattern, batch_first=True, device="meta", **options)


PADDING = torch.zeros(2, 6, dtype=torch.bool, device="meta")
BAND = patterns.band(6, 2, device="meta")
CASES = {
    "attention": of_tokens(attention(BAND)),
    "attention of blocks": of_tokens(attention(BLOCKS.to("meta"))),
    "causal": of_tokens(attention(BAND, causal=True)),
    "is_causal": of_tokens(attention(BLOCKS.to("meta")), is_causal=True),
    "made on the CPU": of_tokens(attention(patterns.band(6, 2), causal=True).to("meta")),
    "made by a function": of_tokens(
        attention(lambda n: patterns.band(n, 2, device="meta"), causal=True)
    ),
    "tokens": of_tokens(
        attention(lambda n: patterns.global_tokens(n, torch.tensor([1, 3]), device="meta"))
    ),
    "padding": of_tokens(attention(BAND), key_padding_mask=PADDING),
    "weights": of_tokens(attention(BAND), need_weights=True),
    "GAT": of_graph(nn.GraphAttention(4, 2, **HEADS)),
    "GAT without loops": of_graph(nn.GraphAttention(4, 2, add_self_loops=False, **HEADS)),
    "GATv2": of_graph(nn.GraphAttention(4, 2, version=2, **HEADS)),
    "features of edges": of_graph(nn.GraphAttention(4, 2, edge_dim=5, **HEADS), torch.ones(4, 5)),
    "GCN": of_graph(nn.GraphConv(4, 2, device="meta")),
    "GCN that keeps its matrix": of_graph(nn.GraphConv(4, 2, cached=True, device="meta")),
    "SAGE": of_graph(nn.SAGEConv(4, 2, "max", device="meta")),
}


@pytest.mark.parametrize("case", CASES)
def test_shapes(case):
    layer, call, of_input, of_result = CASES[case]
    x = torch.empty(of_input, device="meta", requires_grad=True)
    y = call(x)
    assert y.is_meta
    if of_result is None:
        of_result = (3, 6 if isinstance(layer, nn.GraphAttention) else 2)
    assert y.shape == of_result
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert all(p.grad.shape == p.shape for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("offsets", [None, torch.zeros(4, dtype=torch.int64, device="meta")])
def test_bags(offsets):
    bags = nn.SparseEmbeddingBag(10, 3, device="meta")
    size = (4, 5) if offsets is None else (20,)
    rows = torch.zeros(size, dtype=torch.int64, device="meta")
    assert bags(rows, offsets).shape == (4, 3)
    for options in (
        {"mode": "max"},
        {"mode": "sum", "max_norm": 1.0},
        {"mode": "sum", "scale_grad_by_freq": True},
        {"mode": "sum", "sparse": True, "padding_idx": 1},
    ):
        with pytest.raises(spgrad.UnsupportedError, match=r"`input` is on meta"):
            nn.SparseEmbeddingBag(10, 3, device="meta", **options)(rows, offsets)
    weights = torch.ones(size, device="meta")
    weighted = nn.SparseEmbeddingBag(10, 3, mode="sum", device="meta")
    assert weighted(rows, offsets, weights).shape == (4, 3)
    for option in ({"sparse": True}, {"sparse": False, "padding_idx": 1}):
        bags = nn.SparseEmbeddingBag(10, 3, mode="sum", device="meta", **option)
        assert bags(rows, offsets).shape == (4, 3)
    with pytest.raises(spgrad.UnsupportedError, match=r"`input` is on meta"):
        nn.SparseEmbeddingBag(10, 3, mode="mean", device="meta")(rows, offsets, weights)


ROWS, STARTS = torch.tensor([1, 2, 4, 4]), torch.tensor([0, 3])
MISFITS = {
    "too few weights": (ROWS, STARTS, torch.ones(3)),
    "weights in a row": (ROWS, STARTS, torch.ones(1, 4)),
    "weights of another dtype": (ROWS, STARTS, torch.ones(4).double()),
    "offsets of floats": (ROWS, STARTS.float()),
    "offsets in a row": (ROWS, STARTS[None]),
    "offsets beside rows": (ROWS[None], STARTS),
    "no offsets": (ROWS,),
    "inputs of floats": (ROWS.float(), STARTS),
}


@pytest.mark.parametrize("given", MISFITS.values(), ids=MISFITS)
def test_bags_refuse_what_they_refuse_on_the_cpu(given):
    texts = []
    for device in ("cpu", "meta"):
        bags = nn.SparseEmbeddingBag(10, 3, mode="sum", device=device)
        with pytest.raises(spgrad.ArgumentValueError) as refused:
            bags(*(t.to(device) for t in given))
        texts.append(str(refused.value).splitlines()[0])
    assert texts[0] == texts[1]
    assert texts[0].startswith("spgrad.nn.SparseEmbeddingBag.forward: `")


def test_to_empty_keeps_what_no_state_has():
    """The pattern of attention, and the matrix that a layer has normalised."""
    pattern = patterns.band(6, 2)
    pattern = spgrad.from_values(torch.arange(float(pattern.nse)), pattern)
    layer = attention(pattern).to_empty(device="cpu")
    assert torch.equal(layer.pattern.values(), pattern.values())
    assert layer.double().pattern.dtype == torch.float64
    A = spgrad.from_edges(EDGES)
    layer = nn.GraphConv(4, 2, cached=True)
    x = torch.randn(3, 4)
    wanted = layer(x, A)
    state = {k: t.clone() for k, t in layer.state_dict().items()}
    layer.to_empty(device="cpu").load_state_dict(state)
    assert layer.double()(x.double(), A.double()).dtype == torch.float64
    torch.testing.assert_close(layer.float()(x, A), wanted)


def test_a_pattern_without_numbers_gets_none():
    with pytest.raises(spgrad.UnsupportedError, match=r"`input` is on meta"):
        attention(BAND).to_empty(device="cpu")
