"""beta C + alpha A B for each kind of factor: one, zero and others."""

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("name", support.ALL)
FACTORS = (0, 1, 2, -1, 0.5)


@layouts
@pytest.mark.parametrize("alpha", FACTORS)
@pytest.mark.parametrize("beta", FACTORS)
def test_factors(name, beta, alpha):
    C = testing.random_sparse((4, 4), LAYOUTS[name], seed=1).requires_grad_()
    A = testing.random_sparse((4, 6), LAYOUTS[name], seed=2)
    B = testing.random_sparse((6, 4), LAYOUTS[name], seed=3).requires_grad_()
    x = torch.randn(6, 4, dtype=torch.float64)
    product = A.to_dense() @ B.detach().to_dense()
    y = torch.addmm(C, A, B, beta=beta, alpha=alpha)
    assert y.layout == C.layout
    testing.assert_close(y.detach(), beta * C.detach().to_dense() + alpha * product)
    dense = C.detach().to_dense()
    z = torch.addmm(dense, A, x, beta=beta, alpha=alpha)
    testing.assert_close(z, beta * dense + alpha * (A.to_dense() @ x))
    testing.dense_result(y).sum().backward()
    if beta:
        assert (C.grad._vals == beta).all()
    wanted = (alpha * A.to_dense().sum(0))[:, None].expand(6, 4)
    testing.assert_close(B.grad, torch.where(testing.mask_of(B.pattern), wanted, 0))


@layouts
@pytest.mark.parametrize("alpha", FACTORS)
def test_sampled_sums(name, alpha):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    x, y = torch.randn(2, 4, 3, dtype=torch.float64)[0], torch.randn(3, 6, dtype=torch.float64)
    for beta in FACTORS:
        found = torch.sparse.sampled_addmm(A, x, y, beta=beta, alpha=alpha)
        wanted = torch.where(testing.mask_of(A.pattern), alpha * (x @ y), 0)
        testing.assert_close(found, beta * A.to_dense() + wanted)


def test_nan_times_zero_is_left_out():
    C = spgrad.from_dense(torch.tensor([[torch.nan, 1.0]]))
    A, x = spgrad.from_dense(torch.ones(1, 3)), torch.ones(3, 2)
    assert torch.equal(torch.addmm(C.to_dense(), A, x, beta=0), torch.full((1, 2), 3.0))
    found = torch.addmm(C, A, spgrad.from_dense(x), beta=0)
    assert torch.equal(found.to_dense(), torch.full((1, 2), 3.0))


@pytest.mark.parametrize("name", support.ALL)
def test_beta_0_ignores_the_input(sparse, name):
    A = sparse(torch.zeros(4, 6), name)
    x, nan = torch.ones(6, 3), torch.full((4, 3), torch.nan)
    assert torch.equal(torch.addmm(nan, A, x, beta=0), torch.zeros(4, 3))
    assert torch.equal(torch.sparse.addmm(nan, A, x, beta=0), torch.zeros(4, 3))
