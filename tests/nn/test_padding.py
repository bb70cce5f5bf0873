"""Sparse attention in which items lack keys: against torch.nn.MultiheadAttention."""

import pytest
import torch
from beside_torch import DOUBLE, same, tokens

import spgrad
from spgrad import nn
from spgrad.core.pattern import LAYOUTS
from spgrad.nn import padding, patterns

L, B, HEADS = 7, 3, 2
PADDING = torch.zeros(B, L, dtype=torch.bool)
PADDING[1, 5:] = PADDING[2, 4] = True


def pair(**options):
    """A layer and torch's, of the same weights."""
    ours = nn.SparseAttention(8, HEADS, batch_first=True, **options, **DOUBLE)
    theirs = torch.nn.MultiheadAttention(8, HEADS, batch_first=True, **DOUBLE)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def layouts():
    band = patterns.band(8, 2)
    whole = spgrad.to_sparse_bsr(band, (2, 2))
    return {"csr": band, "csc": band.to_sparse_csc(), "coo": band.to_sparse_coo(), "bsr": whole}


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("causal", [False, True])
def test_keys_that_are_left_out(layout, causal):
    """Each query keeps a key: itself, or one of its neighbours."""
    pattern = layouts()[layout]
    ours, theirs = pair(pattern=pattern, causal=causal)
    x = tokens(B, 8, 8)
    padding = torch.nn.functional.pad(PADDING, (0, 1))
    padding[1, 6:] = False
    mask = pattern.to_dense().tril() if causal else pattern.to_dense()
    options = {"key_padding_mask": padding, "need_weights": False}
    wanted, _ = theirs(x, x, x, attn_mask=~mask, **options)
    found, _ = ours(x, x, x, key_padding_mask=padding)
    same(ours, theirs, found, wanted, x)


@pytest.mark.parametrize("given", ["pattern", "mask"])
def test_a_call_leaves_out_later_keys(given):
    """`is_causal` of the call does what `causal` of the layer does."""
    band = patterns.band(L, 2)
    ours, theirs = pair(pattern=band)
    x = tokens(B, L, 8)
    wanted, _ = theirs(x, x, x, attn_mask=~band.to_dense().tril(), need_weights=False)
    options = {"attn_mask": band} if given == "mask" else {}
    found, _ = ours(x, x, x, is_causal=True, **options)
    same(ours, theirs, found, wanted, x)


def test_numbers_are_added_to_the_scores_of_a_key():
    ours, theirs = pair(pattern=patterns.band(L, 2))
    x, padding = tokens(B, L, 8), tokens(B, L, seed=2)
    mask = torch.zeros(L, L, **DOUBLE).masked_fill(~patterns.band(L, 2).to_dense(), -torch.inf)
    wanted, _ = theirs(x, x, x, padding, attn_mask=mask, need_weights=False)
    found, _ = ours(x, x, x, padding)
    same(ours, theirs, found, wanted, x, padding)


def test_truth_values_of_a_mask():
    """An element that is False takes no part, as one that is not specified."""
    ours, theirs = pair()
    x, kept = tokens(B, L, 8), patterns.band(L, 2).to_dense()
    every = spgrad.from_dense(torch.ones(L, L, dtype=torch.bool))
    A = spgrad.from_values(kept.flatten(), every)
    options = {"attn_mask": ~kept, "need_weights": False}
    wanted, _ = theirs(x, x, x, PADDING, **options)
    found, _ = ours(x, x, x, PADDING, attn_mask=A)
    same(ours, theirs, found, wanted, x)


def test_beside_values_for_each_head():
    ours, theirs = pair()
    x, values = tokens(B, L, 8), tokens(L * L, HEADS, seed=1)
    i, j = torch.ones(L, L).nonzero().T
    A = spgrad.sparse_coo_tensor(torch.stack([i, j]), values, (L, L, HEADS))
    dense = values.T.reshape(HEADS, L, L).repeat(B, 1, 1)
    numbers = torch.zeros(B, L, **DOUBLE).masked_fill(PADDING, -torch.inf)
    wanted, _ = theirs(x, x, x, numbers, attn_mask=dense, need_weights=False)
    found, _ = ours(x, x, x, PADDING, attn_mask=A)
    same(ours, theirs, found, wanted, x, values)


def test_without_a_batch_and_of_two_sequences():
    ours, theirs = pair(pattern=spgrad.from_dense(torch.ones(L, L, dtype=torch.bool)))
    x, padding = tokens(L, 8), PADDING[1]
    wanted, _ = theirs(x, x, x, padding, need_weights=False)
    same(ours, theirs, ours(x, x, x, padding)[0], wanted, x)


def test_a_query_without_keys_gets_zeros_and_no_gradient():
    ours, _ = pair(pattern=patterns.band(L, 1))
    x, padding = tokens(B, L, 8), torch.zeros(B, L, dtype=torch.bool)
    padding[0, :4] = True
    found, _ = ours(x, x, x, padding)
    torch.testing.assert_close(found[0, :3], ours.out_proj.bias.expand(3, 8))
    found.sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[0, :3].any()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_encoders_of_torch_pass_their_padding():
    layer = torch.nn.TransformerEncoderLayer(8, HEADS, 16, 0.0, batch_first=True, **DOUBLE)
    theirs = torch.nn.TransformerEncoder(layer, 2)
    state, x = theirs.state_dict(), tokens(B, L, 8)
    whole = spgrad.from_dense(torch.ones(L, L, dtype=torch.bool))
    layer.self_attn = nn.SparseAttention(8, HEADS, batch_first=True, pattern=whole, **DOUBLE)
    ours = torch.nn.TransformerEncoder(layer, 2)
    ours.load_state_dict(state)
    kept = ~PADDING
    wanted = theirs(x, src_key_padding_mask=PADDING)[kept]
    torch.testing.assert_close(ours(x, src_key_padding_mask=PADDING)[kept], wanted)


@pytest.mark.parametrize("layout", ["csr", "bsr", "bsc"])
def test_the_column_of_each_value(layout):
    band = patterns.band(8, 2)
    A = band if layout == "csr" else band.to_sparse(layout=LAYOUTS[layout], blocksize=(2, 2))
    column = padding._columns(A.pattern)
    assert torch.equal(column, A.coo_indices()[-1].reshape(-1))
