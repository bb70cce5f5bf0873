"""Arithmetic by torch's names, also in drop-in mode: batches, repeats, dtypes, gradients."""

import pytest
import torch
from samples import drawn

import spgrad
from spgrad import support, testing

F64 = torch.float64


def test_alpha_scales_the_second_operand(sparse):
    a, x = drawn(4, 6), torch.randn(4, 6, dtype=F64)
    for name in support.ALL:
        testing.assert_close(torch.add(sparse(a, name), x, alpha=2), a + 2 * x)
        testing.assert_close(torch.add(x, sparse(a, name), alpha=2), x + 2 * a)
        testing.assert_close(torch.sub(sparse(a, name), x, alpha=2), a - 2 * x)
        testing.assert_close(torch.rsub(sparse(a, name), x, alpha=2), x - 2 * a)


@pytest.mark.parametrize("name", support.ALL)
def test_batches_of_different_patterns(sparse, name):
    a, b = drawn(2, 4, 6), drawn(2, 4, 6, seed=1)
    y = sparse(a, name) + sparse(b, name)
    testing.assert_close(y, a + b)
    testing.assert_close(y @ torch.ones(6, 1, dtype=F64), (a + b).sum(-1, keepdim=True))


def test_repeats_are_added_before_they_are_multiplied():
    native = torch.sparse_csr_tensor(
        torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([2.0, 3.0]), (1, 2)
    )
    with pytest.raises(ValueError, match="sorted unique"):
        spgrad.mul(native, native)
    t = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [2.0, 3.0], (1, 2))
    testing.assert_close(t * t, torch.tensor([[0.0, 25.0]]))


@pytest.mark.parametrize("name", support.ALL)
def test_what_torch_lacks(sparse, name):
    a, b = drawn(4, 6), drawn(4, 6, seed=1)
    col = torch.rand(4, 1, dtype=F64)
    A, B = sparse(a, name).requires_grad_(), sparse(b, name)
    for y, expected in (
        (A - B, a - b),
        (A / 2, a / 2),
        (A**2, a**2),
        (A * col, a * col),
        (A.mean(1), a.mean(1)),
        (A.amax(0), a.amax(0)),
    ):
        testing.assert_close(y.detach(), expected)
    for function in (torch.sin, torch.tanh, torch.sqrt, torch.asin, torch.expm1, torch.erf):
        A = sparse(a.abs(), name).detach().requires_grad_()
        twin = A.detach().to_dense().requires_grad_()
        function(A).values().sum().backward()
        function(twin).sum().backward()
        mask = testing.mask_of(A.pattern)
        testing.assert_close(A.grad, torch.where(mask, twin.grad, 0.0))


@pytest.mark.parametrize("name", support.ALL)
def test_the_gradient_of_a_dense_factor_is_dense(sparse, name):
    x = torch.randn(4, 6, dtype=F64, requires_grad=True)
    A = sparse(drawn(4, 6), name)
    (A * x).values().sum().backward()
    assert x.grad.layout == torch.strided
    testing.assert_close(x.grad, A.to_dense())


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_batches_and_narrow_dtypes(sparse, name, dtype):
    a = (drawn(2, 4, 6) * 8).to(dtype)
    A, x = sparse(a, name), (torch.rand(2, 6, 3) * 4).to(dtype)
    for y, expected in (
        (A + A, a + a),
        (A * A, a * a),
        (A.sum(-1), a.sum(-1)),
        (A @ x, (a.double() @ x.double())),
    ):
        testing.assert_close(y, expected)
        assert y.dtype in (dtype, torch.int64)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize(
    "weight",
    [1.0, torch.tensor(1.0, dtype=F64), torch.ones(4, 6).bfloat16(), torch.ones(6).bfloat16()],
    ids=["number", "tensor", "matrix", "vector"],
)
def test_lerp_to_the_end_is_the_end(sparse, name, weight):
    """Of patterns that differ too: the start, however large, is not subtracted from itself."""
    start, end = (drawn(4, 6, seed=s).bfloat16() for s in (0, 1))
    y = spgrad.lerp(sparse(start * 1000, name), sparse(end, "coo"), weight)
    assert y.layout == getattr(torch, f"sparse_{name}")
    assert torch.equal(y.to_dense(), end)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("weight", [0.25, 0.75])
@pytest.mark.parametrize("shape", [(), (6,), (4, 1), (4, 6), (1, 1)], ids=str)
def test_lerp_of_infinities(sparse, name, weight, shape):
    start, end = drawn(4, 6, seed=0), drawn(4, 6, seed=1)
    start[start != 0] = -torch.inf
    w = torch.full(shape, weight, dtype=F64)
    y = spgrad.lerp(sparse(start, name), sparse(end, "coo"), w)
    assert torch.allclose(y.to_dense(), torch.lerp(start, end, w), equal_nan=True)


def test_equality_of_sparse_tensors_makes_neither_dense():
    n = 2**31
    A = spgrad.sparse_coo_tensor([[0, n - 1], [n - 1, 0]], [1.0, 2.0], (n, n))
    turned = A.flip(0, 1)
    assert spgrad.equal(A, A.clone())
    assert spgrad.allclose(A, spgrad.from_values(torch.tensor([1.0, 2.0 + 1e-6]), A))
    assert not spgrad.equal(A, turned)
    assert spgrad.equal(A, spgrad.from_values(turned.values().flip(0), turned))
