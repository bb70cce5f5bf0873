"""prod: zeros, and numbers whose reciprocals or products are out of range."""

import pytest
import torch

import spgrad
from spgrad import testing


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_product_with_zeros(zeros, dtype):
    """Its second derivative does not vanish with two zeros, where the first does."""
    x = testing.random_dense((2, 4), dtype=dtype, generator=torch.Generator())
    vals = x.clone()
    vals[0, :zeros] = 0
    pattern = spgrad.from_dense(x).pattern
    vals = vals.view(-1).requires_grad_()

    def run(vals):
        return spgrad.from_values(vals, pattern).prod(1)

    assert torch.autograd.gradcheck(run, vals)
    assert torch.autograd.gradgradcheck(run, vals)


@pytest.mark.parametrize("numbers", [[2e-5], [-7e-6, 3e2], [0.7, -7e-3, -3e-3], [0, 2e-5, 1]])
def test_a_gradient_needs_no_reciprocal(numbers):
    """In float16 the reciprocal of a number below 1.6e-5 is infinite."""
    x = torch.tensor([numbers], dtype=torch.float16)
    A = spgrad.from_values(x[0], spgrad.from_dense(torch.ones_like(x)).pattern)
    A = A.detach().requires_grad_()
    dense = x.clone().requires_grad_()
    A.prod(1).backward(torch.tensor([1.5], dtype=torch.float16))
    dense.prod(1).backward(torch.tensor([1.5], dtype=torch.float16))
    torch.testing.assert_close(A.grad.to_dense(), dense.grad, rtol=4e-3, atol=1e-7)
