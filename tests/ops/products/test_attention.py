"""Attention over a mask: cases that the dense function at the same elements does not cover."""

import functools

import pytest
import torch
from samples import drawn

import spgrad
from spgrad import kernels, support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.lowering.convert import convert
from spgrad.ops.products.attention import true_part

F64 = torch.float64

layouts = pytest.mark.parametrize("name", support.ALL)


@layouts
@pytest.mark.parametrize("recorded", [False, True])
def test_dropout_sets_weights_to_zero_and_scales_the_others(name, recorded):
    mask = testing.random_sparse((40, 40), LAYOUTS[name], dtype=torch.bool, density=0.5)
    q, k = torch.randn(2, 40, 3, requires_grad=recorded)
    each = torch.eye(40)  # so that the result is the weights
    whole = spgrad.scaled_dot_product_attention(q, k, each, mask)
    some = spgrad.scaled_dot_product_attention(q, k, each, mask, dropout_p=0.25)
    kept = some != 0
    testing.assert_close(some[kept], whole[kept] / 0.75)
    share = kept.sum() / (whole != 0).sum()
    assert 0.65 < share < 0.85
    again = spgrad.scaled_dot_product_attention(q, k, each, mask, dropout_p=0.25)
    assert not torch.equal(some, again)


def test_no_dropout_is_repeatable():
    mask = testing.random_sparse((6, 6), dtype=torch.bool)
    q, k, v = torch.randn(3, 6, 4)
    first = spgrad.scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(first, spgrad.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.0))


def by_head(dense, name):
    """A hybrid (m, n | h), and a batch (h, m, n) of the same matrices with a pattern of their own.

    Args:
        dense: (h, m, n); the elements that are zero in all heads are left out.
        name: The layout of the first.
    """
    some = (dense != 0).any(0)
    whole = torch.where(some, dense, 0)
    i, j = some.nonzero().T
    values, shape = whole[:, i, j].T, (*some.shape, len(dense))
    hybrid = spgrad.sparse_coo_tensor(torch.stack([i, j]), values, shape)
    return convert(hybrid, LAYOUTS[name], (2, 2) if name.startswith("bs") else None), whole


@layouts
@pytest.mark.parametrize("more", [(), (3,)], ids=["", "batch"])
def test_each_head_has_values_of_its_own(name, more):
    """Against the heads one by one, with values at the elements that any of them has."""
    dense = drawn(4, 6, 8) * ((drawn(1, 6, 8) > 0) | torch.eye(6, 8, dtype=torch.bool))
    A, whole = by_head(dense, name)
    A = A.detach().requires_grad_()
    q, k, v = (torch.randn(*more, 4, m, 3, dtype=F64, requires_grad=True) for m in (6, 8, 8))
    y = spgrad.scaled_dot_product_attention(q, k, v, A)
    mask = testing.mask_of(A.pattern)[:, :, 0]
    bias = torch.where(mask, whole, -torch.inf).requires_grad_()
    weights = ((q @ k.mT) / 3**0.5 + bias).softmax(-1)
    z = weights @ v
    testing.assert_close(y, z)
    g = torch.randn_like(y)
    found = torch.autograd.grad(y, (q, k, v, A), g)
    wanted = torch.autograd.grad(z, (q, k, v, bias), g)
    for got, want in zip(found[:3], wanted[:3], strict=True):
        testing.assert_close(got, want)
    assert found[3].pattern is A.pattern
    testing.assert_close(found[3].to_dense(), wanted[3].movedim(0, -1))


def test_second_derivatives_of_a_batch_with_values_for_each_head():
    """The items of the batch share the values of a head."""
    A, whole = by_head(drawn(2, 4, 6), "csr")
    q, k, v = (torch.randn(3, 2, m, 2, dtype=F64, requires_grad=True) for m in (4, 6, 6))
    bias = torch.where(testing.mask_of(A.pattern)[:, :, 0], whole, -torch.inf)
    weights = ((q @ k.mT) / 2**0.5 + bias).softmax(-1)
    results = spgrad.scaled_dot_product_attention(q, k, v, A.detach()), weights @ v
    w = torch.randn(3, 2, 4, 2, dtype=F64)
    second = []
    for y in results:
        (of_q,) = torch.autograd.grad((y * w).sum(), q, create_graph=True)
        second.append(torch.autograd.grad((of_q * w).sum(), (q, k, v)))
    for found, wanted in zip(*second, strict=True):
        testing.assert_close(found, wanted)


def test_truth_values_of_each_head():
    some = drawn(4, 6, 8) > 0
    A, _ = by_head(some.to(F64), "csr")
    q, k, v = (torch.randn(4, m, 3) for m in (6, 8, 8))
    y = spgrad.scaled_dot_product_attention(q, k, v, A.to(torch.bool))
    for head in range(4):
        one = spgrad.from_dense(some[head])
        testing.assert_close(
            y[head], spgrad.scaled_dot_product_attention(q[head], k[head], v[head], one)
        )


def test_heads_of_a_mask_widen_operands_that_have_none():
    A, _ = by_head(drawn(4, 6, 8), "csr")
    q, k, v = (torch.randn(m, 3, dtype=F64) for m in (6, 8, 8))
    y = spgrad.scaled_dot_product_attention(q, k, v, A)
    assert y.shape == (4, 6, 3)
    for head in range(4):
        one = A.to_sparse_coo()
        one = spgrad.from_values(one.values()[:, head], spgrad.sum(one, -1))
        testing.assert_close(y[head], spgrad.scaled_dot_product_attention(q, k, v, one))


def test_masks_whose_heads_do_not_fit_are_refused():
    A, _ = by_head(drawn(4, 6, 8), "csr")
    q, k, v = (torch.randn(3, m, 2, dtype=F64) for m in (6, 8, 8))
    with pytest.raises(ValueError, match="leading dimensions that broadcast"):
        spgrad.scaled_dot_product_attention(q, k, v, A)
    two = spgrad.sparse_coo_tensor([[0], [0]], torch.ones(1, 2, 2), (1, 1, 2, 2))
    with pytest.raises(spgrad.SpgradError, match="2 dense dimension"):
        spgrad.scaled_dot_product_attention(*torch.ones(3, 1, 1), two)


@pytest.mark.parametrize("name", support.ALL)
def test_an_attention_layer_in_one_layout(sparse, name):
    q, k, v = (torch.randn(4, 3, dtype=F64, requires_grad=True) for _ in range(3))
    A = sparse(drawn(4, 4) + torch.eye(4, dtype=F64), name)
    mask = testing.mask_of(A.pattern)
    scores = torch.sparse.sampled_addmm(A, q, k.t(), beta=0.0)
    weights = torch.sparse.softmax(scores, -1)
    y = weights @ v
    assert scores.layout == weights.layout == A.layout
    assert weights.pattern is A.pattern
    dense = torch.where(mask, q @ k.t(), -torch.inf).softmax(-1) @ v
    testing.assert_close(y, dense)
    grads = torch.autograd.grad(y.square().sum(), (q, k, v))
    for got, want in zip(grads, torch.autograd.grad(dense.square().sum(), (q, k, v)), strict=True):
        testing.assert_close(got, want)
    x = torch.randn(4, 3, dtype=F64)
    terms = torch.where(mask[:, :, None], A.to_dense()[:, :, None] * x, -torch.inf)
    testing.assert_close(spgrad.spmm(A, x, "amax"), terms.amax(1))


@pytest.mark.parametrize("name", ["bool", "bias"])
def test_rows_in_which_no_score_is_finite_give_zeros_in_every_way(name):
    """The ways that store weights agree with the kernel: dropout, transforms, second order."""
    dense = torch.tensor([[[True, True], [True, False]], [[False, False], [True, True]]])
    A, _ = by_head(dense.to(F64), "csr")
    A = A.to(torch.bool)
    if name == "bias":
        A = spgrad.from_values(torch.where(A.values(), 0.5, -torch.inf).to(F64), A.pattern)
    q, k, v = (torch.randn(2, 2, 3, dtype=F64, requires_grad=True) for _ in range(3))

    def attend(*operands, **options):
        return spgrad.scaled_dot_product_attention(*operands, A, **options)

    y = attend(q, k, v)
    assert not bool(y[1, 0].any())
    grads = torch.autograd.grad(y.sum(), (q, k, v))
    again = torch.autograd.grad(attend(q, k, v).sum(), (q, k, v), create_graph=True)
    for got, want in zip(again, grads, strict=True):
        testing.assert_close(got, want)
    second = torch.autograd.grad(sum(t.square().sum() for t in again), (q, k, v))
    assert all(bool(t.isfinite().all()) for t in second)
    testing.assert_close(torch.func.vmap(attend)(q[None], k[None], v[None])[0], y)
    dropped = attend(q, k, v, dropout_p=0.5)
    assert bool(dropped.isfinite().all())
    assert not bool(dropped[1, 0].any())


@pytest.mark.skipif(not kernels.compiled(), reason="other kernels take elements one by one")
def test_large_blocks_have_a_kernel_of_their_own(monkeypatch):
    called = []

    def noted(name, kernel, *args):
        called.append(name)
        return kernel(*args)

    for name in ("attention", "block_attention"):
        kernel = functools.partial(noted, name, getattr(kernels, name))
        monkeypatch.setattr(kernels, name, kernel)
    mask = spgrad.from_dense(torch.ones(12, 24))
    q, k, v = (drawn(2, n, 3) for n in (12, 24, 24))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    for block in ((4, 8), (3, 8), (4, 6)):
        A = spgrad.zeros_like(mask.to_sparse_bsr(block), dtype=q.dtype)
        testing.assert_close(spgrad.scaled_dot_product_attention(q, k, v, A), wanted)
    assert called == ["block_attention", "attention", "attention"]


@pytest.mark.skipif(not kernels.compiled(), reason="blocks are multiplied by the library alone")
def test_blocks_that_are_mostly_true_stay_and_those_without_any_are_left_out():
    truth = torch.ones(3, 4, 8, dtype=torch.bool)
    A = spgrad.sparse_bsr_tensor([0, 2, 3], [0, 1, 2], truth, (8, 24))
    assert true_part(A) is A
    truth[1] = False
    truth[2, 3, 7] = False
    part = true_part(A)
    assert part.pattern.blocksize == (4, 8)
    assert part.nse == 2
    assert torch.equal(part.to_dense(), A.to_dense())
    truth[2] = False
    assert true_part(A).nse == 1
    truth[0, 0, :2] = False  # fewer than 95 % are True
    part = true_part(A)
    assert part.layout == torch.sparse_csr
    assert part.nse == 30
    assert torch.equal(part.to_dense(), A.to_dense())


@pytest.mark.parametrize("name", ["bsr", "bsc"])
@pytest.mark.parametrize("block", [(4, 8), (8, 8), (5, 9), (16, 16)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "bias"])
def test_a_mask_in_blocks_that_are_multiplied_as_dense_matrices(name, block, kind):
    """Blocks of at least 4 x 8 have loops of their own: value, gradients, and the second order."""
    some = drawn(3, 4) == 0
    some[1] = False  # a line of blocks without any
    dense = some.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    shape = dense.shape
    A = spgrad.from_dense(dense).to_sparse(layout=LAYOUTS[name], blocksize=block)
    if kind == "bool":  # some elements inside of the blocks are False
        inside = drawn(*shape) > -0.5
        A = spgrad.from_values(spgrad.sparse_mask(inside, A).values(), A.pattern)
        bias = None
        there, added = dense & inside, torch.zeros(())
    else:
        A = spgrad.sparse_mask(drawn(*shape), A).detach().requires_grad_()
        bias = A.to_dense().detach().requires_grad_()
        there, added = dense, bias
    q, k, v = (drawn(2, n, 3).requires_grad_() for n in (shape[0], shape[1], shape[1]))
    scores = torch.where(there, q @ k.mT / 3**0.5 + added, -torch.inf)
    wanted = torch.where(there.any(1, keepdim=True), scores.softmax(-1), 0) @ v
    y = spgrad.scaled_dot_product_attention(q, k, v, A)
    testing.assert_close(y, wanted)

    of_ours = (q, k, v) if bias is None else (q, k, v, A)
    of_dense = (q, k, v) if bias is None else (q, k, v, bias)
    weight = drawn(*wanted.shape)
    ours = torch.autograd.grad((y * weight).sum(), of_ours, retain_graph=True)
    filled = torch.where(there.any(1, keepdim=True), scores, 0.0)
    safe = torch.where(there, filled.softmax(-1), 0) @ v
    theirs = torch.autograd.grad((safe * weight).sum(), of_dense, create_graph=True)
    for got, want in zip(ours, theirs, strict=True):
        got = got.to_dense() if isinstance(got, spgrad.SparseTensor) else got
        testing.assert_close(got, want)
    again = torch.autograd.grad((y * weight).sum(), (q, k, v), create_graph=True)
    second = torch.autograd.grad(sum(t.square().sum() for t in again), (q, k, v))
    dense_second = torch.autograd.grad(sum(t.square().sum() for t in theirs[:3]), (q, k, v))
    for got, want in zip(second, dense_second, strict=True):
        testing.assert_close(got, want)
