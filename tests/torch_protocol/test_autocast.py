"""Products under autocast: which operands change their dtype, and which do not."""

import pytest
import torch
import torch.nn.functional as F
from samples import drawn

import spgrad
from spgrad import testing

LOW = torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
def test_dtypes_that_autocast_leaves_alone(dtype):
    A = testing.random_sparse((4, 6), dtype=dtype)
    x = testing.random_dense((6, 3), dtype=dtype, generator=torch.Generator())
    with torch.autocast("cpu", dtype=LOW):
        products = A @ x, A @ x[:, 0], A @ A.t(), spgrad.addmm(x[:4], A, x)
    for y, wanted in zip(products, (A @ x, A @ x[:, 0], A @ A.t(), x[:4] + A @ x), strict=True):
        assert y.dtype == dtype
        torch.testing.assert_close(testing.dense_result(y), testing.dense_result(wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_that_autocast_lowers(dtype):
    A, x = testing.random_sparse((4, 6), dtype=dtype), torch.ones(6, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=LOW):
        y, sparse = A @ x, A @ A.t()
    assert y.dtype == sparse.dtype == LOW
    with torch.autocast("cpu", dtype=LOW, enabled=False):
        assert (A @ x).dtype == dtype
    testing.assert_close(y, (A.to(LOW) @ x.to(LOW)).double())


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
def test_chains_are_lowered_as_those_of_torch_are():
    A, x = testing.random_sparse((4, 6), dtype=torch.float32), torch.ones(6, 6)
    for factors in ([A, x], [A, x, x], [x[:4].mT, A, x], [A, A.mT, A]):
        dense = [testing.dense_result(f) for f in factors]
        with torch.autocast("cpu", dtype=LOW):
            y, wanted = torch.linalg.multi_dot(factors), torch.linalg.multi_dot(dense)
            chained = torch.chain_matmul(*factors)
        assert y.dtype == chained.dtype == wanted.dtype == LOW
        torch.testing.assert_close(testing.dense_result(y), wanted, rtol=3e-2, atol=3e-2)


def test_autocast_of_another_device_changes_nothing():
    A, x = testing.random_sparse((4, 6), dtype=torch.float32), torch.ones(6, 3)
    torch.set_autocast_enabled("xpu", True)
    try:
        assert (A @ x).dtype == torch.float32
        with torch.device("meta"):
            y = spgrad.from_values(A._vals.to("meta"), A.pattern.moved("meta")) @ x.to("meta")
        assert y.dtype == torch.float32
    finally:
        torch.set_autocast_enabled("xpu", False)


def test_products_of_named_arguments_are_lowered():
    A, x = testing.random_sparse((4, 6), dtype=torch.float32), torch.ones(6, 3)
    with torch.autocast("cpu", dtype=LOW):
        assert spgrad.mm(input=A, mat2=x).dtype == LOW


def test_products_with_arrays_are_lowered():
    A, x = testing.random_sparse((4, 6), dtype=torch.float32), torch.ones(6, 3)
    with torch.autocast("cpu", dtype=LOW):
        assert (A @ x.numpy()).dtype == LOW
        torch.testing.assert_close(A @ x.numpy(), A @ x)
        torch.testing.assert_close(x.numpy().T @ A.t(), x.T @ A.t())


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_powers_have_the_dtype_of_those_of_torch(n):
    A = testing.random_sparse((5, 5), dtype=torch.float32)
    with torch.autocast("cpu", dtype=LOW):
        power, wanted = torch.linalg.matrix_power(A, n), torch.linalg.matrix_power(A.to_dense(), n)
    assert power.dtype == wanted.dtype
    torch.testing.assert_close(power.to_dense(), wanted, rtol=3e-2, atol=3e-2)


def test_autocast(sparse):
    """Products take the precision that torch's own take; the gradient is that of the parameter."""
    a = drawn(8, 8).float()
    for name in ("coo", "csr", "bsc"):
        A, x = sparse(a, name).requires_grad_(), torch.randn(8, 4, requires_grad=True)
        twin = a.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, expected = torch.relu(A @ (x @ torch.eye(4))), torch.relu(twin @ (x @ torch.eye(4)))
            assert y.dtype == F.linear(x.t(), A).dtype == torch.bfloat16
        testing.assert_close(y, expected.float())
        y.float().sum().backward()
        assert A.grad.dtype == x.grad.dtype == torch.float32
        assert A.grad.pattern is A.pattern


@pytest.mark.parametrize("truth", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_attention_is_lowered_as_that_of_torch_is(truth, gradient):
    A = testing.random_sparse((6, 6), torch.sparse_csr, dtype=torch.float32, density=0.5)
    mask = A.to(torch.bool) if truth else A.requires_grad_(gradient)
    q, k, v = (torch.randn(2, 6, 4, requires_grad=gradient) for _ in range(3))
    with torch.autocast("cpu", dtype=LOW):
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        assert y.dtype == F.scaled_dot_product_attention(q, k, v).dtype == LOW
    lower = (t.to(LOW) for t in (q, k, v))
    wanted = F.scaled_dot_product_attention(*lower, attn_mask=mask if truth else mask.to(LOW))
    testing.assert_close(y, wanted.double())
    if gradient:
        y.float().square().sum().backward()
        assert {t.grad.dtype for t in (q, k, v)} == {torch.float32}
        assert truth or A.grad.dtype == torch.float32


@pytest.mark.parametrize("second", [False, True], ids=["first order", "second order"])
def test_gradients_of_attention_inside_of_autocast(second):
    A = spgrad.from_dense(drawn(8, 8, dtype=torch.float32)).to_sparse_csr()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for inside in (False, True):
        q, values = x.clone().requires_grad_(), A.values().detach().requires_grad_()
        with torch.autocast("cpu", dtype=LOW):
            y = F.scaled_dot_product_attention(q, q, q, spgrad.from_values(values, A))
        with torch.autocast("cpu", dtype=LOW, enabled=inside):
            grads = torch.autograd.grad(y.float().square().sum(), (q, values), create_graph=second)
            if second:
                grads = torch.autograd.grad(sum(g.square().sum() for g in grads), (q, values))
        found.append(grads)
    for inside, outside in zip(found[1], found[0], strict=True):
        assert torch.equal(inside, outside)
