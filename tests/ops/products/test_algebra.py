"""What holds for the products of any matrices: linearity, items of a batch, adjoints."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from matrices import checked, matrices, properties

import spgrad
from spgrad import testing

NUMBERS = (torch.float64, torch.complex128, torch.int64)


@properties
@given(A=matrices(dtypes=NUMBERS), n=st.sampled_from([0, 1, 2, 8, 17]), seed=st.integers(0, 99))
def test_matmul_is_linear_and_equals_dense(A, n, seed):
    generator = torch.Generator().manual_seed(seed)
    m, k = A.shape

    def whole(*shape):
        return torch.randint(-4, 5, shape, generator=generator).to(A.dtype)

    x, y, left = whole(k, n), whole(k, n), whole(n, m)
    assert torch.equal(A @ x, A.to_dense() @ x)
    assert torch.equal(left @ A, left @ A.to_dense())
    assert torch.equal(A @ (3 * x - y), 3 * (A @ x) - A @ y)
    B = spgrad.from_values(whole(*A._vals.shape), A)
    assert torch.equal((A + 2 * B) @ x, A @ x + 2 * (B @ x))
    assert torch.equal(spgrad.addmm(x[:1, :1].new_ones(1, n), A, x, alpha=2), 2 * (A @ x) + 1)


@properties
@given(
    A=matrices(dtypes=NUMBERS[:1], rows=6),
    B=matrices(dtypes=NUMBERS[:1], rows=6),
    C=matrices(dtypes=NUMBERS[:1], rows=6),
)
def test_products_of_sparse_matrices(A, B, C):
    AB = A @ B
    assert AB.layout == A.layout
    checked(AB)
    assert torch.equal(AB.to_dense(), A.to_dense() @ B.to_dense())
    assert torch.equal((AB @ C).to_dense(), (A @ (B @ C)).to_dense())
    x = torch.arange(12.0, dtype=torch.float64).view(6, 2)
    assert torch.equal(AB @ x, A @ (B @ x))
    sampled = spgrad.sampled_addmm(A, B.to_dense(), C.to_dense(), beta=0)
    assert sampled.pattern is A.pattern
    wanted = B.to_dense() @ C.to_dense() * testing.mask_of(A.pattern)
    assert torch.equal(sampled.to_dense(), wanted)


@properties
@given(A=matrices(batch=True, dtypes=NUMBERS[:1]), n=st.integers(0, 3))
def test_batches_are_their_items(A, n):
    x = torch.arange(float(A.shape[-1] * n), dtype=torch.float64).view(A.shape[-1], n)
    assert torch.equal(A @ x, A.to_dense() @ x)
    assert torch.equal(x.t() @ A.to_dense().mT, (A @ x).mT)


@properties
@given(A=matrices(dtypes=NUMBERS[:1]), seed=st.integers(0, 99))
def test_transposition_of_a_product_is_its_adjoint(A, seed):
    """<A x, g> = <x, A^T g>, and the gradient of A is g x^T where A has an element."""
    generator = torch.Generator().manual_seed(seed)
    m, k = A.shape
    x, g = (
        torch.randint(-4, 5, (s, 3), generator=generator, dtype=torch.int64).double()
        for s in (k, m)
    )
    x.requires_grad_()
    leaf = A.detach().requires_grad_()
    y = leaf @ x
    y.backward(g)
    assert torch.equal((y.detach() * g).sum(), (x.detach() * x.grad).sum())
    assert leaf.grad.pattern is A.pattern
    assert torch.equal(leaf.grad.to_dense(), g @ x.detach().t() * testing.mask_of(A.pattern))
