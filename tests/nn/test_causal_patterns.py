"""Causal patterns, of blocks too, beside torch.nn.MultiheadAttention with a dense mask."""

import pytest
import torch
from beside_torch import DOUBLE, same, tokens
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import SDPBackend, sdpa_kernel

import spgrad
from spgrad import kernels, nn, testing
from spgrad.nn import patterns

HEADS = 2
FULL = torch.ones(4, 4, dtype=torch.bool).tril(1)
FULL[2, 1] = False


def block_pattern(side=8, layout=torch.sparse_bsr):
    """Blocks (side, side), some of which are above the diagonal."""
    dense = FULL.repeat_interleave(side, 0).repeat_interleave(side, 1)
    return spgrad.from_dense(dense).to_sparse(layout=layout, blocksize=(side, side))


def pair(pattern, **options):
    """A causal layer and torch's, of the same weights."""
    ours = nn.SparseAttention(8, HEADS, pattern=pattern, causal=True, **options, **DOUBLE)
    theirs = torch.nn.MultiheadAttention(8, HEADS, **options, **DOUBLE)
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def left_out(pattern):
    return ~pattern.to_dense().tril()


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc])
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("side", [2, 8, 64])
def test_blocks_are_those_of_torch(side, batch, layout):
    """Below 64, elements are left out one by one; from there on, within whole blocks."""
    pattern = block_pattern(side, layout)
    ours, theirs = pair(pattern, batch_first=True)
    x = tokens(*([] if batch is None else [batch]), 4 * side, 8)
    wanted, _ = theirs(x, x, x, attn_mask=left_out(pattern), need_weights=False)
    same(ours, theirs, ours(x, x, x)[0], wanted, x)
    given = nn.SparseAttention(8, HEADS, batch_first=True, **DOUBLE)
    given.load_state_dict(ours.state_dict())
    for found in (
        given(x, x, x, attn_mask=pattern, is_causal=True)[0],
        given(x, x, x, attn_mask=ours.pattern)[0],
    ):
        torch.testing.assert_close(found, wanted)


@pytest.mark.skipif(not kernels.compiled(), reason="other kernels take elements one by one")
def test_large_blocks_stay_blocks():
    """Their kernel is the faster one, though it computes scores that take no part."""
    for side, layout in ((8, torch.sparse_csr), (64, torch.sparse_bsr)):
        made = nn.SparseAttention(8, HEADS, pattern=block_pattern(side), causal=True).pattern
        assert made.layout == layout
        testing.assert_close(made.int(), block_pattern(side).to_dense().tril().int())
    assert made.nse == FULL.tril().sum()  # blocks above the diagonal are left out
    alone = patterns.block(256, 64).to_sparse_bsr((64, 64))
    made = nn.SparseAttention(8, HEADS, pattern=alone, causal=True).pattern
    assert made.layout == torch.sparse_csr  # half of what they hold takes no part


@pytest.mark.parametrize("heads", [None, HEADS])
@pytest.mark.parametrize("side", [2, 8])
def test_values_of_blocks_are_added_to_scores(side, heads):
    """Above the diagonal, blocks hold minus infinity: a zero would be a score like any other."""
    pattern = block_pattern(side)
    shape = (*pattern.values().shape, *([] if heads is None else [heads]))
    values = tokens(*shape, seed=1)
    size = tuple(pattern.shape) + (() if heads is None else (heads,))
    A = spgrad.sparse_bsr_tensor(pattern.crow_indices(), pattern.col_indices(), values, size)
    ours, theirs = pair(None)
    x = tokens(4 * side, 8)
    dense = spgrad.from_values(values, A.pattern).to_dense()
    dense = (dense if heads is None else dense.movedim(2, 0)).masked_fill(
        left_out(pattern), -torch.inf
    )
    wanted, _ = theirs(x, x, x, attn_mask=dense, need_weights=False)
    found, _ = ours(x, x, x, attn_mask=A)
    same(ours, theirs, found, wanted, x, values)
    kept = nn.SparseAttention(8, HEADS, pattern=A.detach(), causal=True, **DOUBLE)
    kept.load_state_dict(ours.state_dict())
    torch.testing.assert_close(kept(x, x, x)[0], wanted)


def test_second_order_of_causal_blocks():
    ours, theirs = pair(block_pattern(64))
    x = tokens(256, 8)
    mask = left_out(block_pattern(64))
    results = []
    with sdpa_kernel(SDPBackend.MATH):  # the others of torch have no second order
        wanted = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
    for y in (ours(x, x, x)[0], wanted):
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(g.sin().sum(), x)[0])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", ["bool", "numbers"])
def test_padding_and_weights_of_causal_blocks(kind):
    pattern = block_pattern(64)
    ours, theirs = pair(pattern, batch_first=True)
    x, padding = tokens(2, 256, 8), torch.rand(2, 256, **DOUBLE) > 0.8
    padding[:, 0] = False
    padding = padding if kind == "bool" else torch.randn(2, 256, **DOUBLE)
    mask = torch.zeros(256, 256, **DOUBLE).masked_fill(left_out(pattern), -torch.inf)
    of_keys = padding
    if kind == "bool":
        of_keys = torch.zeros(2, 256, **DOUBLE).masked_fill(padding, -torch.inf)
    options = {"attn_mask": mask, "key_padding_mask": of_keys}
    wanted, weights = theirs(x, x, x, **options, average_attn_weights=False)
    found, _ = ours(x, x, x, padding)
    same(ours, theirs, found, wanted, x)
    found, ours_weights = ours(x, x, x, padding, need_weights=True, average_attn_weights=False)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(ours_weights.to_dense().permute(2, 3, 0, 1), weights)


def test_dropout_of_causal_blocks():
    """A share of 1e-9 leaves no weight out, but takes the way of dropout."""
    ours, _ = pair(block_pattern(64), dropout=1e-9)
    x = tokens(256, 8)
    found = ours(x, x, x)[0]
    torch.testing.assert_close(found, ours.eval()(x, x, x)[0])
    ours.train().dropout = 0.5
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    assert bool(ours(x, x, x)[0].isfinite().all())


MAKERS = {
    "joined": lambda n: patterns.band(n, 2, 1) | patterns.global_tokens(n, [3]),
    "few tokens": lambda n: patterns.global_tokens(n, 2) | patterns.strided(n, 3),
    "tensor of tokens": lambda n: patterns.global_tokens(n, torch.arange(0, n, 4)),
    "repeated tokens": lambda n: (
        patterns.global_tokens(n, torch.tensor([1, 3, 1, 1])) | patterns.band(n, 1)
    ),
    "block": lambda n: patterns.block(n, 4),
    "tril": lambda n: patterns.band(n, 2).tril(),
    "by the length": lambda n: patterns.band(n, 2) if n > 5 else patterns.block(n, 2),
    "blocks": lambda n: patterns.block(n, 1).to_sparse_bsr((1, 1)),
    "tril of blocks": lambda n: patterns.band(n, 2).to_sparse_bsr((1, 1)).tril(),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", MAKERS)
def test_a_graph_makes_the_pattern_of_each_length(case, causal):
    torch._dynamo.reset()
    ours = nn.SparseAttention(8, HEADS, pattern=MAKERS[case], causal=causal, **DOUBLE)
    same_in_one_graph(ours, lambda f, x, length: f(x, x, x)[0])


def some_mask(length, kind):
    where = patterns.band(length, 2, 1) | patterns.global_tokens(length, [3])
    if kind == "bool":
        return where
    if kind == "heads":
        coo = where.to_sparse_coo()
        shape = (length, length, HEADS)
        return spgrad.sparse_coo_tensor(coo.indices(), tokens(where.nse, HEADS), shape)
    if kind == "blocks":
        where = patterns.block(8 * length, 16).to_sparse_bsr((8, 8))
    return spgrad.from_values(tokens(*where.values().shape), where)


@pytest.mark.parametrize("kind", ["bool", "scores", "heads", "blocks"])
def test_a_graph_leaves_out_what_is_not_causal(kind):
    torch._dynamo.reset()
    ours = nn.SparseAttention(8, HEADS, causal=True, **DOUBLE)

    def call(layer, x, length):
        mask = some_mask(length, kind).detach()
        return layer(x, x, x, attn_mask=mask)[0]

    same_in_one_graph(ours, call, step=8 if kind == "blocks" else 1)


def same_in_one_graph(ours, call, step=1):
    """Value and gradient of changing lengths, by at most two compilations."""
    backend = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(ours, fullgraph=True, backend=backend)
    for length in (5, 7, 9, 12):
        x = tokens(length * step, 8)
        found, wanted = call(fast, x, length), call(ours, x, length)
        torch.testing.assert_close(found, wanted)
        (got,), (grad,) = (torch.autograd.grad(y.sin().sum(), x) for y in (found, wanted))
        torch.testing.assert_close(got, grad)
    assert backend.frame_count <= 2


def test_a_function_that_keeps_its_patterns():
    """They leave the graph that makes them, and are inputs of the next."""
    torch._dynamo.reset()
    made = {}

    def kept(length):
        if length not in made:
            made[length] = patterns.band(length, 2)
        return made[length]

    ours = nn.SparseAttention(8, HEADS, pattern=kept, **DOUBLE)
    fast = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for length in (5, 7, 5, 7):
        x = tokens(length, 8)
        found, wanted = fast(x, x, x)[0], ours(x, x, x, attn_mask=patterns.band(length, 2))[0]
        torch.testing.assert_close(found, wanted)
        (got,), (grad,) = (torch.autograd.grad(y.sin().sum(), x) for y in (found, wanted))
        torch.testing.assert_close(got, grad)


def of_products(length):
    return (patterns.band(length, 1).double() @ patterns.block(length, 2).double()).bool()


def of_numbers(length):
    return torch.stack(patterns.band(length, 1).unbind()).to_sparse_csr()


def test_a_product_of_patterns_is_in_the_graph():
    ours = nn.SparseAttention(8, HEADS, pattern=of_products, **DOUBLE)
    fast = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for length in (5, 8):
        x = tokens(length, 8)
        torch.testing.assert_close(fast(x, x, x)[0], ours(x, x, x)[0])


def test_a_function_that_reads_numbers_breaks_the_graph():
    ours = nn.SparseAttention(8, HEADS, pattern=of_numbers, **DOUBLE)
    x = tokens(5, 8)
    text = r"spgrad\.stack: torch\.compile .* Leave out fullgraph"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=text):
        torch.compile(ours, fullgraph=True, backend="aot_eager")(x, x, x)
    found = torch.compile(ours, backend="aot_eager")(x, x, x)[0]
    torch.testing.assert_close(found, ours(x, x, x)[0])


@pytest.mark.parametrize("place", [-1, 4])
def test_a_graph_refuses_tokens_outside_of_the_sequence(place):
    def function(x, tokens):
        pattern = patterns.global_tokens(len(x), tokens)
        return spgrad.scaled_dot_product_attention(x, x, x, pattern)

    fast = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = tokens(4, 8)
    with pytest.raises(RuntimeError, match=r"global_tokens: `tokens` has a place outside"):
        fast(x, torch.tensor([1, place]))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (-1, r"`tokens` is -1; .* accepted"),
        (5, r"`tokens` "),
        ([4], r"`tokens` "),
        ([-1], r"`tokens` "),
        (torch.tensor([1, 4]), r"`tokens` "),
        (torch.tensor([1.0]), r"`tokens` has dtype float32; places, as ints, are accepted"),
        (torch.tensor([True]), r"`tokens` has dtype bool; places, as ints, are accepted"),
    ],
)
def test_tokens_outside_of_the_sequence_are_refused(tokens, text):
    with pytest.raises(spgrad.SpgradError, match=rf"global_tokens: {text}"):
        patterns.global_tokens(4, tokens)


def test_a_graph_takes_the_tokens_as_an_operand():
    """As many elements for as many tokens; those of tokens that repeat are False."""
    backend = CompileCounterWithBackend("aot_eager")

    def function(tokens):
        return patterns.global_tokens(5, tokens)

    fast = torch.compile(function, fullgraph=True, backend=backend)
    for at in ([0, 2], [4, 1, 4], [3, 3, 3, 3, 3, 3, 3], []):
        at = torch.tensor(at, dtype=torch.int64)
        found = fast(at)
        assert torch.equal(found.to_dense(), function(at).to_dense())
        few = min(len(at), 5)
        assert found.nse == few * 5 + (5 - few) * few
    assert backend.frame_count <= 3  # one for no tokens
