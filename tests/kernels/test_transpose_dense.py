"""The dense transpose: every size around its squares and blocks, every dtype, any threads."""

import pytest
import torch

import spgrad
from spgrad import kernels
from spgrad.lowering.products.row_spmm import transposed_copy

DTYPES = (
    torch.bool,
    torch.int8,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.complex128,
)
SIZES = (0, 1, 3, 8, 17, 63, 64, 65, 130)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_is_moved(dtype, poisoned):
    for n in SIZES:
        for m in SIZES:
            x = torch.randint(2, (n, m)) if dtype == torch.bool else 99 * torch.randn(n, m)
            x = x.to(dtype)
            y = kernels.transpose_dense(x)
            assert y.is_contiguous()
            assert y.shape == (m, n)
            assert torch.equal(y, x.mT)


@pytest.mark.parametrize("shape", [(1000, 300), (70, 5000), (2, 40_000), (40_000, 2)])
def test_bands_are_shared_out(shape):
    x = torch.randn(shape)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(kernels.transpose_dense(x), x.mT)
    finally:
        torch.set_num_threads(before)


def test_a_matrix_with_gaps_is_refused():
    if not kernels.compiled():
        pytest.skip("the reference takes any strides")
    for x in (torch.ones(4, 6)[:, ::2], torch.ones(4, 6).T, torch.ones(4), torch.ones(2, 3, 4)):
        with pytest.raises(RuntimeError, match="spgrad: `x`"):
            kernels.transpose_dense(x)


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.T.contiguous().T, lambda x: x[:, ::2]])
def test_the_copy_and_its_gradient_have_no_gaps(make):
    given = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    x = make(given)
    y = transposed_copy(x)
    assert y.is_contiguous()
    assert torch.equal(y, x.mT)
    torch.autograd.gradcheck(lambda g: transposed_copy(make(g)), given)
    torch.autograd.gradgradcheck(lambda g: transposed_copy(make(g)), given)


@pytest.mark.parametrize("recorded", [False, True])
def test_torch_makes_the_copy_elsewhere(monkeypatch, recorded):
    """And in a compiler, which fuses it."""
    monkeypatch.setattr(kernels, "transpose_dense", None)
    x = torch.empty(6, 8, device="meta", requires_grad=recorded)
    assert transposed_copy(x).is_contiguous()
    compiled = torch.compile(transposed_copy, backend="eager", fullgraph=True)
    here = torch.randn(6, 8, requires_grad=recorded)
    assert torch.equal(compiled(here), here.mT)


def test_gradients_of_a_product_from_the_right_have_no_gaps():
    A = spgrad.from_dense(torch.eye(40).roll(3, 1) + torch.eye(40)).requires_grad_()
    x = torch.randn(9, 40, requires_grad=True)
    y = x @ A
    seen = []
    x.register_hook(lambda g: seen.append(g.is_contiguous()))
    y.backward(torch.randn(40, 9).T)
    assert y.is_contiguous()
    assert seen == [True]


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (4, 5), (0, 3, 5), (2, 0, 5), (2, 3, 5), (5,)])
def test_products_from_the_right_of_every_shape(shape):
    dense = torch.randn(5, 7, dtype=torch.complex128)
    A = spgrad.from_dense(dense).requires_grad_()
    wanted = dense.clone().requires_grad_()
    x = torch.randn(shape, dtype=torch.complex128, requires_grad=True)
    y, z = x @ A, x @ wanted
    torch.testing.assert_close(y, z)
    g = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, A), g)
    other = torch.autograd.grad(z, (x, wanted), g)
    torch.testing.assert_close(found[0], other[0])
    torch.testing.assert_close(found[1].to_dense(), other[1])
