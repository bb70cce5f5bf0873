"""What errors say that are raised in a backward, where the caller has called no function."""

import pytest
import torch

import spgrad
from spgrad import linalg

D = torch.float64
DENSE = torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 2.0]], dtype=D)
B = torch.tensor([1.0, 2.0, 3.0], dtype=D)


def gaussian(A):
    normal = spgrad.distributions.SparseMultivariateNormal
    return normal(torch.zeros(3, dtype=D), precision_matrix=A).rsample()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("linalg.solve", lambda A: linalg.solve(A, B)),
        ("linalg.solve", lambda A: linalg.solve(A, B, linalg.CG())),
        ("linalg.solve", lambda A: linalg.factor(A).solve(B)),
        ("linalg.lstsq", lambda A: linalg.lstsq(A, B)),
        ("linalg.inverse_at", lambda A: linalg.inverse_at(A, A.detach()).values()),
        ("linalg.inverse_at", linalg.inverse_diagonal),
        ("distributions.SparseMultivariateNormal.rsample", gaussian),
    ],
)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite(number, name, function):
    """The right-hand sides of the caller are finite, so that `b` is none of these."""
    A = spgrad.from_dense(DENSE).requires_grad_()
    says = rf"^spgrad\.{name}, in its gradient: the gradient of the result has an element that is"
    for backward in (torch.Tensor.backward, lambda loss: torch.autograd.grad(loss, A)):
        loss = (function(A) * number).sum()
        with pytest.raises(spgrad.ArgumentValueError, match=says):
            backward(loss)


EASY = torch.tensor([0.0, 0.0, 3.0], dtype=D)  # which an iteration solves in a step
NO_STEPS = {"method": "lanczos", "solver": linalg.CG(max_iter=0)}


def gradient_of_singular(A):
    return torch.autograd.grad(linalg.det(A * 0), A, create_graph=True)[0].values()


@pytest.mark.parametrize(
    ("name", "function", "says"),
    [
        ("solve", lambda A: linalg.solve(A, EASY, linalg.CG(max_iter=1)), "CG has"),
        ("lstsq", lambda A: linalg.lstsq(A, EASY, solver=linalg.LSMR(max_iter=1)), "LSMR has"),
        ("logdet", lambda A: linalg.logdet(A, **NO_STEPS), "CG has"),
        ("logdet", lambda A: linalg.logdet(A * 0), "`A` is singular, and the logarithm"),
        ("det", gradient_of_singular, "`A` is singular, where"),
    ],
)
def test_the_function_is_named(name, function, says):
    A = spgrad.from_dense(DENSE).requires_grad_()
    y = function(A)
    with pytest.raises(spgrad.SpgradError, match=f"in its gradient: {says}") as raised:
        (y * torch.arange(1, y.numel() + 1).view(y.shape)).sum().backward()
    assert raised.value.function == f"linalg.{name}"
    assert raised.value.in_gradient


def test_several_cotangents_at_once():
    b = B.clone().requires_grad_()
    x = linalg.solve(spgrad.from_dense(DENSE), b)
    says = r"linalg\.solve, in its gradient: the gradient of the result stands for several tensors"
    with pytest.raises(NotImplementedError, match=says):
        torch.autograd.grad(x, b, torch.eye(3, dtype=D), is_grads_batched=True)
