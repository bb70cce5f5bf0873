"""Hybrid tensors as many matrices on one pattern: spmm, sddmm, attention made of them."""

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("layout", support.ALL)


def hybrid(layout, shape=(6, 4, 3), *, dense_dim=1, dtype=torch.float64):
    return made(layout, shape, dense_dim=dense_dim, dtype=dtype)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@layouts
def test_gradients_of_second_order(layout):
    A, x = hybrid(layout), randn(4, 3, 2)
    vals = A._vals.clone().requires_grad_()

    def product(vals, x):
        return spgrad.spmm(spgrad.from_values(vals, A), x)

    def dots(x, y):
        return spgrad.values(spgrad.sddmm(A, x, y))

    assert torch.autograd.gradcheck(product, (vals, x))
    assert torch.autograd.gradgradcheck(product, (vals, x))
    assert torch.autograd.gradcheck(dots, (randn(6, 3, 2), x))
    assert torch.autograd.gradgradcheck(dots, (randn(6, 3, 2), x))


@pytest.mark.parametrize("reduce", ["mean", "amax", "amin", "prod"])
def test_derivatives_of_reductions(reduce):
    A, x = hybrid("csr"), randn(4, 3, 2)
    vals = A._vals.clone().requires_grad_()

    def product(vals, x):
        return spgrad.spmm(spgrad.from_values(vals, A), x, reduce)

    assert torch.autograd.gradcheck(product, (vals, x))
    assert torch.autograd.gradgradcheck(product, (vals, x))


@layouts
def test_batches_and_several_dense_dimensions(layout):
    A = hybrid(layout, (2, 4, 6, 3, 2), dense_dim=2)
    D = A.to_dense()  # (b, m, k, h, d)
    for lead, equation in (
        ((), "bmkhd,khdn->bmhdn"),
        ((2,), "bmkhd,bkhdn->bmhdn"),
        ((1,), "bmkhd,bkhdn->bmhdn"),
        ((5, 2), "bmkhd,cbkhdn->cbmhdn"),
    ):
        x = randn(*lead, 6, 3, 2, 4).detach()
        want = torch.einsum(equation, D, x.expand(2, *x.shape[1:]) if lead == (1,) else x)
        y = spgrad.spmm(A, x)
        assert y.is_contiguous()
        testing.assert_close(y, want)
    shared = randn(6, 4).detach()
    testing.assert_close(spgrad.spmm(A, shared), torch.einsum("bmkhd,kn->bmhdn", D, shared))
    one = randn(6, 3, 1, 4).detach()  # the same columns for every d
    testing.assert_close(spgrad.spmm(A, one), torch.einsum("bmkhd,khn->bmhdn", D, one[:, :, 0]))


def test_a_batch_that_the_operand_lacks():
    A, x = hybrid("csr"), randn(5, 4, 3, 2)
    y = spgrad.spmm(A, x)
    testing.assert_close(y, torch.einsum("mkh,bkhn->bmhn", A.to_dense(), x))
    (grad,) = torch.autograd.grad(y.sum(), x)
    testing.assert_close(grad, A.to_dense().sum(0)[None, :, :, None].expand(5, -1, -1, 2))


@layouts
def test_complex(layout):
    A, x = hybrid(layout, dtype=torch.complex128), torch.randn(4, 3, 2, dtype=torch.complex128)
    vals = A._vals.clone().requires_grad_()

    def product(vals, x):
        return spgrad.spmm(spgrad.from_values(vals, A), x)

    testing.assert_close(spgrad.spmm(A, x), torch.einsum("mkh,khn->mhn", A.to_dense(), x))
    assert torch.autograd.gradcheck(product, (vals, x.requires_grad_()))


@pytest.mark.parametrize("shape", [(0, 4, 3), (6, 0, 3), (6, 4, 0), (6, 4, 1)])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "prod"])
def test_empty(shape, reduce):
    m, k, h = shape
    A = spgrad.from_dense(torch.ones(shape, dtype=torch.float64), dense_dim=1).requires_grad_()
    x = randn(k, h, 2)
    y = spgrad.spmm(A, x, reduce)
    assert y.shape == (m, h, 2)
    gradients = torch.autograd.grad(y.sum(), (A, x))
    assert [g.shape for g in gradients] == [A.shape, x.shape]
    scores = spgrad.sddmm(A, y, x)
    assert scores.shape == A.shape
    assert scores.pattern is A.pattern


@layouts
def test_sddmm_keeps_the_pattern(layout):
    A = made(layout, (6, 4))
    x, y = randn(6, 3, 2), randn(4, 3, 2)
    first, second = spgrad.sddmm(A, x, y), spgrad.sddmm(A.pattern, y[[0] * 6], x[:4])
    assert first.pattern is second.pattern
    assert first.layout == A.layout
    assert spgrad.sddmm(first, x, y).pattern is first.pattern
    assert spgrad.sddmm(first, x[:, 0], y[:, 0]).pattern.same_as(A.pattern)


def test_an_uncoalesced_pattern_is_coalesced():
    A = made("coo", (6, 4), coalesced=False)
    x, y = randn(6, 3, 2), randn(4, 3, 2)
    found = spgrad.sddmm(A, x, y)
    assert found.is_coalesced()
    mask = testing.mask_of(A.coalesce().pattern)[..., None]
    testing.assert_close(found, torch.einsum("mhn,khn->mkh", x, y) * mask)


@layouts
def test_attention_made_of_them(layout):
    """softmax(sddmm) then spmm, against dense torch; the three have one pattern."""
    A = made(layout, (6, 4))
    q, k, v = randn(6, 3, 2), randn(4, 3, 2), randn(4, 3, 5)
    scores = spgrad.sddmm(A, q, k)
    y = spgrad.spmm(spgrad.softmax(scores, 1), v)
    mask = testing.mask_of(A.pattern)[..., None]
    dense = torch.einsum("mhn,khn->mkh", q, k).masked_fill(~mask, -torch.inf)
    weights = dense.softmax(1).nan_to_num(0)
    want = torch.einsum("mkh,khn->mhn", weights, v)
    testing.assert_close(y, want)
    g = torch.randn_like(y)
    got, wanted = (torch.autograd.grad(t, (q, k, v), g) for t in (y, want))
    for a, b in zip(got, wanted, strict=True):
        testing.assert_close(a, b)


def test_under_torch_func():
    A, x = hybrid("csr"), randn(4, 3, 2).detach()
    vals = A._vals

    def product(vals, x):
        return spgrad.spmm(spgrad.from_values(vals, A), x)

    ones = torch.ones(6, 3, 2, dtype=torch.float64)
    grads = torch.func.vjp(product, vals, x)[1](ones)
    testing.assert_close(grads[0], spgrad.sddmm(A, ones, x)._vals)
    testing.assert_close(grads[1], spgrad.spmm(A.transpose(0, 1), ones))


def test_autocast_takes_bfloat16():
    A, x = hybrid("csr", dtype=torch.float32), torch.randn(4, 3, 2)
    with torch.autocast("cpu"):
        assert spgrad.spmm(A, x).dtype == torch.bfloat16
        assert spgrad.sddmm(A, torch.randn(6, 3, 2), x).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("x", "text"),
    [
        ((4, 2, 5), r"`x` has shape \(4, 2, 5\); \(\*b, 4, 3, n\) or \(4, n\) is accepted"),
        ((5, 3, 2), r"`x` has shape \(5, 3, 2\); \(\*b, 4, 3, n\) or \(4, n\) is accepted"),
        ((4,), r"`x` has shape \(4,\); \(\*b, 4, 3, n\)"),
        ((5, 2), r"\(4, n\) is accepted"),
    ],
)
def test_wrong_shapes(x, text):
    with pytest.raises(ValueError, match=text):
        spgrad.spmm(hybrid("csr"), randn(*x))


def test_wrong_operands():
    A, x = hybrid("csr"), randn(4, 3, 2)
    with pytest.raises(ValueError, match="float32"):
        spgrad.spmm(A, x.float())
    with pytest.raises(TypeError, match="`x` is"):
        spgrad.spmm(A, A)
    with pytest.raises(ValueError, match="`reduce` is 'median'"):
        spgrad.spmm(A, x, "median")
    with pytest.raises(ValueError, match="batch that broadcasts"):
        spgrad.spmm(hybrid("csr", (2, 6, 4, 3)), randn(3, 4, 3, 2))
    with pytest.raises(NotImplementedError, match=r"spgrad\.spmm multiplies every slice"):
        A @ x
    with pytest.raises(NotImplementedError, match=r"spgrad\.spmm"):
        torch.matmul(A, x)


def test_wrong_factors():
    A, x = made("csr", (6, 4)), randn(6, 3, 2)
    with pytest.raises(TypeError, match="`pattern` is"):
        spgrad.sddmm(torch.ones(6, 4), x, x)
    with pytest.raises(ValueError, match=r"`y` has shape \(6, 3, 2\); \(4, 3, 2\) is accepted"):
        spgrad.sddmm(A, x, x)
    with pytest.raises(ValueError, match=r"`x` has shape \(4, 3, 2\); \(6, \*h, n\) is accepted"):
        spgrad.sddmm(A, x[:4], x)
    with pytest.raises(ValueError, match=r"`pattern` has shape \(3,\)"):
        spgrad.sddmm(spgrad.from_dense(torch.ones(3), torch.sparse_coo), x, x)
    with pytest.raises(ValueError, match="dtype"):
        spgrad.sddmm(A, x, randn(4, 3, 2).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_16_bits_overflow_only_where_the_result_does(dtype):
    A = spgrad.from_dense(torch.tensor([[176.0, 784.0]], dtype=dtype)).requires_grad_()
    x = torch.tensor([[0.5, 0.25], [0.0625, 0.125]], dtype=dtype)
    y = spgrad.spmm(A, x, reduce="prod")
    dense = A.to_dense().detach().requires_grad_()
    expected = (dense[0, :, None].double() * x.double()).prod(0, keepdim=True)
    torch.testing.assert_close(y, expected.to(dtype))
    y.sum().backward()
    (of_dense,) = torch.autograd.grad(expected.sum(), dense)
    torch.testing.assert_close(A.grad.values(), of_dense[0])


def test_gradients_of_products_without_columns_are_zero():
    A = spgrad.from_dense(torch.tensor([[176.0, 784.0]], dtype=torch.float16)).requires_grad_()
    spgrad.spmm(A, torch.zeros(2, 0, dtype=torch.float16), reduce="prod").sum().backward()
    assert A.grad.values().eq(0).all()


def test_results_may_be_changed_in_place():
    A = testing.random_sparse((4, 6, 2), dense_dim=1).requires_grad_()
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    spgrad.spmm(A, x).mul_(2).sum().backward()
    found, A.grad = A.grad, None
    (2 * spgrad.spmm(A, x)).sum().backward()
    testing.assert_close(found.to_dense(), A.grad.to_dense())


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "prod", "min_plus"])
def test_products_of_no_heads_keep_the_graph(reduce):
    A = spgrad.sparse_csr_tensor([0, 1], [1], torch.ones(1, 0), (1, 2, 0)).requires_grad_()
    x = torch.ones(2, 0, 3, requires_grad=True)
    y = spgrad.spmm(A, x, reduce)
    assert y.shape == (1, 0, 3)
    grads = torch.autograd.grad(y.sum(), (A, x))
    assert grads[0].pattern is A.pattern
    assert grads[1].shape == x.shape
