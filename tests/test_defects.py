"""What torch.sparse gets wrong, and is right here. Each test bears the number of its case.

1 unsorted products, 3 products of CSC, 4 unchecked indices and 11 dense gradients are tested with
the families that they belong to; so are 2 (softmax), 8 (sparse_mask) and 9 (batches).
"""

import io
import pickle

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.pattern import LAYOUTS

F64 = torch.float64


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(shape, generator=generator) < 0.4
    return testing.random_dense(shape, generator=generator) * keep


def sparse(dense, name="csr"):
    blocks = {"blocksize": (2, 2)} if name.startswith("b") else {}
    return spgrad.from_dense(dense).to_sparse(layout=LAYOUTS[name], **blocks).detach()


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dim", [-1, -2, 0, 1])
def test_2_softmax_along_a_negative_dimension(name, dim):
    a = drawn(4, 6)
    for function in (torch.sparse.softmax, torch.sparse.log_softmax):
        A = sparse(a, name).requires_grad_()
        mask = testing.mask_of(A.pattern)
        twin = torch.where(mask, A.to_dense(), -torch.inf).detach().requires_grad_()
        dense = getattr(torch, function.__name__.replace("_sparse_", ""))
        y, expected = function(A, dim), dense(twin, dim)
        g = torch.randn(4, 6, dtype=F64)
        y.to_dense().backward(g)
        expected.backward(torch.where(mask, g, 0.0))
        testing.assert_close(y, torch.where(mask, expected, 0.0))
        testing.assert_close(A.grad, torch.where(mask, twin.grad, 0.0))


def test_5_alpha_scales_the_second_operand():
    a, x = drawn(4, 6), torch.randn(4, 6, dtype=F64)
    for name in support.ALL:
        testing.assert_close(torch.add(sparse(a, name), x, alpha=2), a + 2 * x)
        testing.assert_close(torch.add(x, sparse(a, name), alpha=2), x + 2 * a)
        testing.assert_close(torch.sub(sparse(a, name), x, alpha=2), a - 2 * x)
        testing.assert_close(torch.rsub(sparse(a, name), x, alpha=2), x - 2 * a)


@pytest.mark.parametrize("name", support.ALL)
def test_6_gradients_stay_on_the_pattern(name):
    A, B = (sparse(drawn(4, 4, seed=i), name).requires_grad_() for i in range(2))
    before = A.pattern, B.pattern
    optimizer = torch.optim.SGD([A, B], lr=0.1)
    for combine in (torch.add, torch.sub, torch.mul, torch.matmul):
        optimizer.zero_grad()
        combine(A, B).values().square().sum().backward()
        assert A.grad.pattern is before[0]
        assert B.grad.pattern is before[1]
        optimizer.step()
    assert (A.pattern, B.pattern) == before


@pytest.mark.parametrize("name", support.ALL)
def test_9_batches_of_different_patterns(name):
    a, b = drawn(2, 4, 6), drawn(2, 4, 6, seed=1)
    y = sparse(a, name) + sparse(b, name)
    testing.assert_close(y, a + b)
    testing.assert_close(y @ torch.ones(6, 1, dtype=F64), (a + b).sum(-1, keepdim=True))


def test_10_repeats_are_added_before_they_are_multiplied():
    native = torch.sparse_csr_tensor(
        torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([2.0, 3.0]), (1, 2)
    )
    with pytest.raises(ValueError, match="sorted unique"):
        spgrad.mul(native, native)
    t = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [2.0, 3.0], (1, 2))
    testing.assert_close(t * t, torch.tensor([[0.0, 25.0]]))


@pytest.mark.parametrize("name", support.ALL)
def test_10_beta_0_ignores_the_input(name):
    A = sparse(torch.zeros(4, 6), name)
    x, nan = torch.ones(6, 3), torch.full((4, 3), torch.nan)
    assert torch.equal(torch.addmm(nan, A, x, beta=0), torch.zeros(4, 3))
    assert torch.equal(torch.sparse.addmm(nan, A, x, beta=0), torch.zeros(4, 3))


@pytest.mark.parametrize("name", support.ALL)
def test_10_a_pickled_leaf_still_requires_its_gradient(name):
    A = sparse(drawn(4, 6), name).requires_grad_()
    file = io.BytesIO()
    torch.save(A, file)
    file.seek(0)
    for copy in (pickle.loads(pickle.dumps(A)), torch.load(file, weights_only=False)):
        assert copy.requires_grad
        assert copy.is_leaf
        testing.assert_close(copy.detach(), A.to_dense().detach())


@pytest.mark.parametrize("name", support.ALL)
def test_16_what_torch_lacks(name):
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
def test_17_the_gradient_of_a_dense_factor_is_dense(name):
    x = torch.randn(4, 6, dtype=F64, requires_grad=True)
    A = sparse(drawn(4, 6), name)
    (A * x).values().sum().backward()
    assert x.grad.layout == torch.strided
    testing.assert_close(x.grad, A.to_dense())


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_18_batches_and_narrow_dtypes(name, dtype):
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
