"""Sparse attention: against torch.nn.MultiheadAttention with the pattern as a dense mask."""

import copy

import pytest
import torch
from beside_torch import DOUBLE, same, tokens
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

import spgrad
from spgrad import nn
from spgrad.errors import SpgradError
from spgrad.nn import patterns

L = 7


def some_pattern(length=L):
    return patterns.band(length, 2, 1) | patterns.global_tokens(length, [3])


def pair(**options):
    """A layer and torch's, of the same weights."""
    own = {name: options.pop(name) for name in ("pattern", "causal") if name in options}
    ours = nn.SparseAttention(8, 2, **own, **options, **DOUBLE)
    theirs = torch.nn.MultiheadAttention(8, 2, **options, **DOUBLE)
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [None, 3])
def test_values_for_each_head_are_added_to_its_scores(batch, causal):
    ours, theirs = pair(batch_first=True, causal=causal)
    x = tokens(*([] if batch is None else [batch]), L, 8)
    some = some_pattern().to_dense()
    i, j = some.nonzero().T
    values = tokens(len(i), 2, seed=1)
    A = spgrad.sparse_coo_tensor(torch.stack([i, j]), values, (L, L, 2))
    dense = torch.full((2, L, L), -torch.inf, **DOUBLE).index_put(
        (torch.arange(2)[:, None], i, j), values.T
    )
    if causal:
        dense = dense.masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -torch.inf)
    mask = dense if batch is None else dense.repeat(batch, 1, 1)  # (batch heads, L, L)
    wanted, _ = theirs(x, x, x, attn_mask=mask, need_weights=False)
    found, _ = ours(x, x, x, attn_mask=A)
    same(ours, theirs, found, wanted, x, values)


def test_a_causal_pattern_with_values_for_each_head_stays_coalesced():
    i, j = some_pattern().to_dense().nonzero().T
    A = spgrad.sparse_coo_tensor(torch.stack([i, j]), tokens(len(i), 2), (L, L, 2))
    layer = nn.SparseAttention(8, 2, pattern=A, causal=True, **DOUBLE)
    assert layer.pattern.is_coalesced()
    kept = torch.ones(L, L).tril().unsqueeze(2)
    torch.testing.assert_close(layer.pattern.to_dense(), A.to_dense() * kept)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_that_of_torch(batch_first, batch, bias, causal):
    options = {"batch_first": batch_first, "bias": bias, "causal": causal}
    ours, theirs = pair(pattern=some_pattern(), **options)
    shape = (L, 8) if batch is None else (batch, L, 8) if batch_first else (L, batch, 8)
    x = tokens(*shape)
    mask = some_pattern().to_dense()
    mask = mask.tril() if causal else mask
    wanted, _ = theirs(x, x, x, attn_mask=~mask, need_weights=False)
    found, none = ours(x, x, x)
    assert none is None
    same(ours, theirs, found, wanted, x)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 6}])
def test_attention_of_other_keys_is_that_of_torch(sizes):
    ours, theirs = pair(**sizes)
    q = tokens(L, 3, 8)
    k, v = tokens(4, 3, sizes.get("kdim", 8), seed=1), tokens(4, 3, sizes.get("vdim", 8), seed=2)
    pattern = some_pattern()[:, :4]
    wanted, _ = theirs(q, k, v, attn_mask=~pattern.to_dense(), need_weights=False)
    same(ours, theirs, ours(q, k, v, attn_mask=pattern)[0], wanted, q, k, v)


@pytest.mark.parametrize("shared", ["query and key", "key and value"])
def test_attention_where_two_of_three_are_the_same(shared):
    ours, theirs = pair(pattern=some_pattern(), bias=shared == "query and key")
    x, y = tokens(L, 8), tokens(L, 8, seed=1)
    given = (x, x, y) if shared == "query and key" else (x, y, y)
    wanted, _ = theirs(*given, attn_mask=~some_pattern().to_dense(), need_weights=False)
    same(ours, theirs, ours(*given)[0], wanted, x, y)


def test_values_of_a_pattern_are_added_to_scores_and_learned():
    ours, theirs = pair()
    where = some_pattern()
    bias = torch.randn(where.nse, **DOUBLE).requires_grad_()
    x = tokens(L, 8)
    mask = torch.full((L, L), -torch.inf, **DOUBLE)
    at = where.to_dense().nonzero(as_tuple=True)
    wanted, _ = theirs(x, x, x, attn_mask=mask.index_put(at, bias), need_weights=False)
    found, _ = ours(x, x, x, attn_mask=spgrad.from_values(bias, where))
    same(ours, theirs, found, wanted, x, bias)


def test_derivatives_of_second_order():
    ours, _ = pair(pattern=some_pattern())
    x = tokens(L, 8)
    assert torch.autograd.gradcheck(lambda x: ours(x, x, x)[0], x)
    assert torch.autograd.gradgradcheck(lambda x: ours(x, x, x)[0], x)


def test_a_function_makes_the_pattern_of_each_length():
    ours, theirs = pair(pattern=some_pattern, causal=True)
    for length in (4, L):
        x = tokens(length, 8)
        mask = some_pattern(length).to_dense().tril()
        wanted, _ = theirs(x, x, x, attn_mask=~mask, need_weights=False)
        torch.testing.assert_close(ours(x, x, x)[0], wanted)


def test_it_takes_the_place_of_torchs_module_in_a_transformer():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **DOUBLE).eval()
    other = copy.deepcopy(layer)
    other.self_attn = nn.SparseAttention(8, 2, pattern=some_pattern(), batch_first=True, **DOUBLE)
    other.load_state_dict(layer.state_dict())
    x = tokens(3, L, 8).detach()
    with torch.no_grad():
        wanted = layer(x, src_mask=~some_pattern().to_dense())
        torch.testing.assert_close(other.eval()(x), wanted)


def test_weights_begin_as_those_of_torch():
    torch.manual_seed(3)
    ours = nn.SparseAttention(8, 2)
    torch.manual_seed(3)
    theirs = torch.nn.MultiheadAttention(8, 2)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, wanted in theirs.state_dict().items():
        found = ours.state_dict()[name]
        assert found.shape == wanted.shape
        assert found.abs().max() <= max(1.1 * float(wanted.abs().max()), 0.0)


def test_copies_and_devices():
    ours, _ = pair(pattern=some_pattern())
    x = tokens(L, 8)
    torch.testing.assert_close(copy.deepcopy(ours)(x, x, x)[0], ours(x, x, x)[0])
    assert ours.float().pattern.dtype == torch.bool
    assert ours.to("meta").pattern.device.type == "meta"


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_autocast(padded, weights, scores):
    ours = nn.SparseAttention(8, 2)
    where = some_pattern()
    mask = spgrad.from_values(torch.randn(where.nse), where) if scores else where
    x = torch.randn(L, 8, requires_grad=True)
    options = {"attn_mask": mask, "need_weights": weights}
    if padded:
        options["key_padding_mask"] = torch.arange(L) == 5
    wanted, _ = ours(x, x, x, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = ours(x, x, x, **options)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=0.05, rtol=0.05)
    found.sum().backward()
    assert x.grad.dtype == torch.float32


def test_dropout_and_no_tokens():
    ours = nn.SparseAttention(8, 2, dropout=0.5, pattern=some_pattern(), **DOUBLE)
    x = tokens(L, 8)
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    ours.eval()
    torch.testing.assert_close(ours(x, x, x)[0], ours(x, x, x)[0])
    none = tokens(0, 8)
    assert ours(none, none, none, attn_mask=patterns.band(0, 1))[0].shape == (0, 8)


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_shown_of_attention(causal):
    layer = nn.SparseAttention(8, 2, causal=causal)
    assert repr(layer).startswith(f"SparseAttention(\n  8, num_heads=2, causal={causal}\n")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: nn.SparseAttention(8, 3), r"`num_heads` is 3 for 8 features; a divisor"),
        (lambda x: nn.SparseAttention(8, 2, 1.0), r"`dropout` is 1.0"),
        (lambda x: nn.SparseAttention(8, 2, add_bias_kv=True), r"`add_bias_kv` is True; False"),
        (lambda x: nn.SparseAttention(8, 2, add_zero_attn=True), r"`add_zero_attn` is True; False"),
        (lambda x: nn.SparseAttention(8, 2, pattern=torch.ones(2, 2)), r"`pattern` is a dense"),
        (lambda x: nn.SparseAttention(8, 2)(x, x, x), r"`attn_mask` is None; a sparse"),
        (lambda x: layer()(x, x, x, x), r"`key_padding_mask` has shape .*; \(1, 7\) is accepted"),
        (lambda x: layer()(x, x, x, [True] * 7), r"`key_padding_mask` is a list; a dense tensor"),
        (
            lambda x: layer()(x, x, x, torch.ones(7).int()),
            r"`key_padding_mask` has dtype",
        ),
        (lambda x: layer()(x[:, :4], x, x), r"`query` has shape \(7, 4\); \(length, batch, 8\)"),
        (lambda x: layer()(x[:5], x, x), r"`query` has shape"),
        (lambda x: patterns.band(-1, 2), r"`length` is -1; an int of at least 0"),
        (lambda x: patterns.block(4, 0), r"`size` is 0; an int of at least 1"),
        (lambda x: patterns.global_tokens(4, [4]), r"`tokens` has 4; places in \[0, 4\)"),
        (lambda x: patterns.global_tokens(4, 5), r"`tokens` has 4; places in \[0, 4\)"),
        (lambda x: patterns.global_tokens(4, [1, -1]), r"`tokens` has -1; places in \[0, 4\)"),
        (lambda x: patterns.global_tokens(4, x[0] > 0), r"`tokens` has dtype bool; places"),
        (lambda x: patterns.global_tokens(4, [1.5]), r"`tokens` is \[1.5\]; an int, or ints"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(SpgradError, match=text):
        call(torch.randn(L, 8))


def layer():
    return nn.SparseAttention(8, 2, pattern=some_pattern())


@pytest.mark.parametrize("length", [0, 1, 5, 12])
def test_patterns_are_those_of_the_formulas(length):
    i = torch.arange(length)[:, None]
    j = torch.arange(length)
    for found, wanted in [
        (patterns.band(length, 2), (i - j).abs() <= 2),
        (patterns.band(length, 3, 1), (i - j <= 3) & (j - i <= 1)),
        (patterns.strided(length, 3), (i - j) % 3 == 0),
        (patterns.block(length, 4), i // 4 == j // 4),
        (patterns.global_tokens(length, min(length, 2)), (i < 2) | (j < 2)),
    ]:
        assert found.dtype == torch.bool
        assert torch.equal(found.to_dense(), wanted)
        crow, col = found.crow_indices(), found.col_indices()
        spgrad.sparse_csr_tensor(crow, col, found.values(), found.shape)  # checks the indices


def test_patterns_of_long_sequences_take_the_memory_of_their_elements():
    assert patterns.band(1_000_000, 1).nse == 2_999_998
    assert patterns.global_tokens(1_000_000, 1).nse == 1_999_999


def test_a_graph_with_the_pattern_of_the_module():
    torch._dynamo.reset()
    where = some_pattern() & patterns.band(L, 3)
    some = spgrad.from_values(torch.arange(where.nse) % 3 > 0, where)  # some are False
    ours, backend = nn.SparseAttention(8, 2, pattern=some, causal=True), CompileCounter()
    fast = torch.compile(ours, fullgraph=True, backend=backend)
    for batch in (2, 3, 4):
        x = torch.randn(L, batch, 8)
        wanted = ours(x, x, x)[0]
        torch.testing.assert_close(fast(x, x, x)[0], wanted)
        torch.testing.assert_close(wanted, ours(x, x, x, attn_mask=some)[0])
    assert backend.frame_count <= 2


@pytest.mark.parametrize("bools", [False, True])
def test_one_compilation_serves_patterns_of_calls(bools):
    torch._dynamo.reset()
    ours, backend = nn.SparseAttention(8, 2, **DOUBLE), CompileCounter()
    fast = torch.compile(ours, fullgraph=True, backend=backend)
    for length in (5, 7, 9, 12):
        where, x = some_pattern(length), tokens(length, 8).detach()
        scores = torch.randn(where.nse, **DOUBLE)
        mask = spgrad.from_values(scores > -1 if bools else scores, where)
        wanted = ours(x, x, x, attn_mask=mask)[0]
        torch.testing.assert_close(fast(x, x, x, attn_mask=mask)[0], wanted)
    assert backend.frame_count <= 2


@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize("padded", [False, True])
def test_one_compilation_serves_batches(dropout, padded):
    """A share of 1e-9 leaves no weight out, but takes the way of dropout."""
    torch._dynamo.reset()
    ours = nn.SparseAttention(8, 2, dropout, pattern=some_pattern(), batch_first=True, **DOUBLE)
    backend = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(ours, fullgraph=True, backend=backend)
    for batch in (2, 3, 5):
        x = torch.randn(batch, L, 8, **DOUBLE, requires_grad=True)
        padding = (torch.arange(L) > L - batch).expand(batch, L) if padded else None
        found, wanted = fast(x, x, x, padding)[0], ours(x, x, x, padding)[0]
        torch.testing.assert_close(found, wanted)
        (got,), (grad,) = (torch.autograd.grad(y.sin().sum(), x) for y in (found, wanted))
        torch.testing.assert_close(got, grad)
    assert backend.frame_count <= 2


def test_whole_blocks_stay_blocks():
    """Their kernel is the faster one; small blocks of which elements are missing become CSR."""
    every = spgrad.sparse_bsr_tensor([0, 1, 2], [0, 1], torch.ones(2, 4, 4) > 0, (8, 8))
    layouts = {True: torch.sparse_csr, False: torch.sparse_bsr}
    for causal, layout in layouts.items():
        assert nn.SparseAttention(8, 2, pattern=every, causal=causal).pattern.layout == layout


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_torchs_own_sparse_masks(layout):
    ours, theirs = pair()
    x, mask = tokens(L, 8), some_pattern().to_dense()
    wanted, _ = theirs(x, x, x, attn_mask=~mask, need_weights=False)
    found, _ = ours(x, x, x, attn_mask=mask.to_sparse(layout=layout))
    same(ours, theirs, found, wanted, x)
    with pytest.raises(TypeError, match="`attn_mask` is a dense tensor"):
        ours(x, x, x, attn_mask=mask)
