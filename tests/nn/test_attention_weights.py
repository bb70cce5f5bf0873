"""Weights of sparse attention: against those of torch.nn.MultiheadAttention."""

import pytest
import torch
from beside_torch import DOUBLE, tokens
from torch._dynamo.testing import CompileCounter

import spgrad
from spgrad import nn, support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.nn import patterns

L, HEADS = 8, 2


def pair(**options):
    """A layer and torch's, of the same weights."""
    ours = nn.SparseAttention(8, HEADS, **options, **DOUBLE)
    options = {name: value for name, value in options.items() if name not in ("pattern", "causal")}
    theirs = torch.nn.MultiheadAttention(8, HEADS, **options, **DOUBLE)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def in_torchs_order(weights, wanted):
    """The weights (L, S | *b) as torch has them, (*b, L, S)."""
    found = weights.to_dense()
    return found.permute(*range(2, found.dim()), 0, 1).reshape(wanted.shape)


def compare(ours, theirs, found, wanted, *leaves):
    """Results, weights, and the gradients of a loss of both."""
    y, weights = found
    torch.testing.assert_close(y, wanted[0])
    dense = in_torchs_order(weights, wanted[1])
    torch.testing.assert_close(dense, wanted[1])
    cotangents = torch.randn_like(y), torch.randn_like(dense)
    got = torch.autograd.grad((y, dense), [*ours.parameters(), *leaves], cotangents)
    want = torch.autograd.grad(wanted, [*theirs.parameters(), *leaves], cotangents)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "first"), [(None, False), (3, False), (3, True)])
def test_weights_are_those_of_torch(average, causal, batch, first):
    pattern = patterns.band(L, 2, 1)
    ours, theirs = pair(pattern=pattern, causal=causal, batch_first=first)
    x = tokens(*((L, 8) if batch is None else (batch, L, 8) if first else (L, batch, 8)))
    mask = pattern.to_dense().tril() if causal else pattern.to_dense()
    options = {"average_attn_weights": average, "need_weights": True}
    wanted = theirs(x, x, x, attn_mask=~mask, **options)
    found = ours(x, x, x, **options)
    inner = [size for size in (batch, None if average else HEADS) if size is not None]
    assert list(found[1].shape) == [L, L, *inner]
    assert found[1].pattern.nse == ours.pattern.nse
    compare(ours, theirs, found, wanted, x)


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("kind", ["bool", "values", "heads"])
@pytest.mark.parametrize("padded", [False, True])
def test_masks_of_every_layout(layout, kind, padded):
    ours, theirs = pair(batch_first=True)
    inner, blocks = ((HEADS,) if kind == "heads" else ()), {}
    dense = torch.randn(L, L, *inner, **DOUBLE)
    there = patterns.band(L, 3).to_dense().reshape(L, L, *[1] * len(inner))
    if layout.startswith("b"):
        blocks = {"blocksize": (2, 2)}
    mask = spgrad.from_dense(dense * there, LAYOUTS[layout], dense_dim=len(inner), **blocks)
    if kind == "bool":
        mask = spgrad.from_values(mask.values() > -0.8, mask)  # some are False
    there = testing.mask_of(mask.pattern)
    full = spgrad.to_dense(mask)
    given = (full & there) if kind == "bool" else full.where(there, -torch.inf)
    given = ~given if kind == "bool" else given.repeat(1, 1, 3) if kind == "heads" else given
    given = given.permute(2, 0, 1) if kind == "heads" else given
    x, padding = tokens(3, L, 8), None
    if padded:
        padding = torch.zeros(3, L, **DOUBLE)
        padding[1, 6:] = -torch.inf
        padding[2] = torch.randn(L, **DOUBLE)
    options = {"average_attn_weights": False, "need_weights": True}
    wide = torch.zeros(L, L, **DOUBLE).masked_fill(given, -torch.inf) if kind == "bool" else given
    wanted = theirs(x, x, x, padding, attn_mask=wide, **options)
    found = ours(x, x, x, padding, attn_mask=mask, **options)
    assert found[1].layout == mask.layout
    compare(ours, theirs, found, wanted, x)


def test_padding_without_a_batch():
    ours, theirs = pair(pattern=patterns.band(L, 2))
    x, padding = tokens(L, 8), torch.arange(L) == 3
    mask = ~patterns.band(L, 2).to_dense()
    wanted = theirs(x, x, x, padding, attn_mask=mask)
    compare(ours, theirs, ours(x, x, x, padding, need_weights=True), wanted, x)


def test_values_of_a_mask_have_a_gradient():
    ours, theirs = pair()
    where = patterns.band(L, 2)
    bias, x = tokens(where.nse, seed=3), tokens(L, 8)
    i, j = where.to_dense().nonzero().T
    dense = torch.full((L, L), -torch.inf, **DOUBLE).index_put((i, j), bias)
    mask = spgrad.from_values(bias, where)
    found = ours(x, x, x, attn_mask=mask, need_weights=True)
    assert found[1].pattern is mask.pattern
    compare(ours, theirs, found, theirs(x, x, x, attn_mask=dense), x, bias)


@pytest.mark.parametrize("average", [False, True])
def test_results_do_not_depend_on_whether_weights_are_asked_for(average):
    ours, _ = pair(pattern=patterns.band(L, 2), batch_first=True)
    x = tokens(3, L, 8)
    y, none = ours(x, x, x)
    assert none is None
    options = {"average_attn_weights": average, "need_weights": True}
    torch.testing.assert_close(ours(x, x, x, **options)[0], y)


def test_derivatives_of_second_order():
    ours, _ = pair(pattern=patterns.band(L, 2))
    x = tokens(L, 8)

    def weights(x):
        return spgrad.values(ours(x, x, x, need_weights=True)[1])

    assert torch.autograd.gradcheck(weights, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(weights, x, fast_mode=True)


def test_dropout_is_part_of_the_weights():
    """As in torch: the result is the product of the weights that are returned."""
    ours, _ = pair(pattern=patterns.band(L, 4), dropout=0.5, batch_first=True)
    x = tokens(3, L, 8)
    options = {"average_attn_weights": False, "need_weights": True}
    y, weights = ours(x, x, x, **options)
    v = ours._projected(x, x, x)[2].unflatten(-1, (HEADS, -1))
    product = spgrad.einsum("ijbh,bjhd->bihd", weights, v).flatten(-2)
    torch.testing.assert_close(y, ours.out_proj(product))
    whole = ours.eval()(x, x, x, **options)[1]
    kept = weights.values() != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(weights.values()[kept], 2 * whole.values()[kept])


def test_a_query_without_keys_has_weights_of_zero():
    ours, _ = pair(pattern=patterns.band(L, 1), batch_first=True)
    x, padding = tokens(3, L, 8), torch.zeros(3, L, dtype=torch.bool)
    padding[0, :4] = True
    y, weights = ours(x, x, x, padding, need_weights=True)
    torch.testing.assert_close(y, ours(x, x, x, padding)[0])
    assert not weights.to_dense()[:3, :, 0].any()
    (grad,) = torch.autograd.grad(spgrad.sum(weights) + y.sum(), x)
    assert grad.isfinite().all()


def test_one_compilation_serves_batches_and_lengths():
    torch._dynamo.reset()
    ours, backend = nn.SparseAttention(8, HEADS, **DOUBLE), CompileCounter()

    def weighted(x, mask):
        y, weights = ours(x, x, x, attn_mask=mask, need_weights=True)
        return y, weights

    fast = torch.compile(weighted, fullgraph=True, backend=backend)
    for length in (5, 7, 9, 12):
        where, x = patterns.band(length, 2), tokens(length, 8).detach()
        mask = spgrad.from_values(torch.randn(where.nse, **DOUBLE), where)
        for found, wanted in zip(fast(x, mask), weighted(x, mask), strict=True):
            testing.assert_close(found, testing.dense_result(wanted))
    assert backend.frame_count <= 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype):
    pattern = patterns.band(L, 2)
    ours = nn.SparseAttention(8, HEADS, pattern=pattern)
    x = torch.randn(L, 3, 8)
    y, weights = ours(x, x, x, need_weights=True)
    with torch.autocast("cpu", dtype):
        low, found = ours(x, x, x, need_weights=True)
    torch.testing.assert_close(low.float(), y, atol=0.05, rtol=0.05)
    torch.testing.assert_close(found.values().float(), weights.values(), atol=0.02, rtol=0.05)


def test_nothing_of_the_size_of_the_mask_is_made():
    length = 2**17
    ours = nn.SparseAttention(4, 2, pattern=patterns.band(length, 0), batch_first=True)
    x = torch.randn(1, length, 4, requires_grad=True)
    y, weights = ours(x, x, x, need_weights=True)
    assert torch.equal(weights.values(), torch.ones(length, 1))
    (y.sum() + weights.values().sum()).backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (patterns.band(L + 1, 1), r"`query` has shape .*; \(..., 9, features\) is accepted"),
        (patterns.band(L, 1)[:, :5], r"`key` has shape .*; \(..., 5, features\) is accepted"),
        (testing.random_sparse((L, L)).float(), "dtype"),
        (testing.random_sparse((3, L, L)), r"`attn_mask` has shape \(3, 8, 8\); \(L, S\) or"),
        (testing.random_sparse((L, L, 3), dense_dim=1), "leading dimensions that broadcast"),
    ],
)
def test_wrong_masks(mask, text):
    ours, _ = pair()
    x = tokens(L, 8)
    with pytest.raises(ValueError, match=text):
        ours(x, x, x, attn_mask=mask, need_weights=True)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize(
    ("shape", "dense_dim"), [((2, L, L), 0), ((2, L, L, 2), 1), ((L, L, 2, 2), 2)]
)
def test_items_with_padding_share_a_matrix_of_scores(shape, dense_dim, layout, weights):
    ours, _ = pair()
    mask = testing.random_sparse(shape, layout, dense_dim=dense_dim)
    x, padding = tokens(L, 2, 8), torch.zeros(2, L, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"`attn_mask` has shape .*; \(L, S\) or \(L, S \| num_"):
        ours(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=weights)


def test_no_tokens():
    ours = nn.SparseAttention(8, HEADS, **DOUBLE)
    none = tokens(0, 8)
    y, weights = ours(none, none, none, attn_mask=patterns.band(0, 1), need_weights=True)
    assert y.shape == (0, 8)
    assert weights.shape == (0, 0)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("items", [(2, 1, 2), (2, 2, 1), (2, 1, 1), (1, 2, 2)])
def test_one_item_serves_all(items, weights):
    layer = nn.SparseAttention(8, HEADS, pattern=patterns.band(L, 2), **DOUBLE)
    given = [tokens(L, n, 8) for n in items]
    found = layer(*given, need_weights=weights)
    wanted = layer(*(t.expand(L, 2, 8) for t in given), need_weights=weights)
    torch.testing.assert_close(found[0], wanted[0])
    if weights:
        torch.testing.assert_close(found[1].to_dense(), wanted[1].to_dense())


@pytest.mark.parametrize("options", [{}, {"need_weights": True}, {"is_causal": True}])
def test_a_vector_is_no_mask(options):
    mask = spgrad.from_dense(torch.ones(L, **DOUBLE), torch.sparse_coo)
    x = tokens(L, 8)
    with pytest.raises(spgrad.ArgumentValueError, match=r"`attn_mask` has shape \(8,\); \(L, S\)"):
        nn.SparseAttention(8, HEADS, **DOUBLE)(x, x, x, attn_mask=mask, **options)


@pytest.mark.parametrize("flag", ["need_weights", "average_attn_weights", "is_causal"])
def test_a_flag_of_a_call_is_true_or_false(flag):
    layer, x = nn.SparseAttention(8, HEADS, pattern=patterns.band(L, 2), **DOUBLE), tokens(L, 8)
    for stranger in (torch.ones(2), 1, "no"):
        with pytest.raises(
            spgrad.ArgumentKindError,
            match=rf"^spgrad\.nn\.SparseAttention: `{flag}` is .* True and",
        ):
            layer(x, x, x, **{flag: stranger})
