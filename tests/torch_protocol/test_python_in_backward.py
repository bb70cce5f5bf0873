"""Python that runs in a backward of SparseTensors finds spgrad's functions, as it does elsewhere.

torch.autograd.grad and backward are torch functions of the tensors that they are given.
"""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import spgrad
from spgrad import testing


def leaf():
    dense = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.0, 3.0], [0.0, 1.5, -1.0]], dtype=torch.float64)
    return spgrad.from_dense(dense).requires_grad_()


def product(A, x):
    """A product that needs functions which no dispatcher key has for a SparseTensor."""
    return torch.sparse.mm(torch.softmax(A.mT, 1), x)


def turned(g):
    return torch.softmax(g.mT, 1).mT


class Scaled(torch.autograd.Function):
    """2 A, whose derivative in Python calls a function of SparseTensors."""

    @staticmethod
    def forward(ctx, A):
        return A.detach() * 2

    @staticmethod
    def backward(ctx, g):
        return torch.softmax(g.mT, 1).mT


def by_grad(y, A):
    return torch.autograd.grad(y, A)[0]


def by_grad_of_several(y, A):
    return torch.autograd.grad([y], {"A": A}, [torch.ones_like(y)], retain_graph=True)["A"]


def by_backward(y, A):
    y.backward()
    return A.grad


def by_backward_to_inputs(y, A):
    torch.autograd.backward(y, inputs=[A])
    return A.grad


ways = pytest.mark.parametrize(
    "way", [by_grad, by_grad_of_several, by_backward, by_backward_to_inputs]
)


@ways
def test_a_checkpoint_computes_again(way):
    A, x = leaf(), torch.ones(3, 2, dtype=torch.float64)
    weights = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    expected = by_backward((product(A, x) * weights).sum(), A)
    B = leaf()
    y = checkpoint(product, B, x, use_reentrant=False)
    found = way((y * weights).sum(), B)
    assert found.pattern.same_as(A.pattern)
    testing.assert_close(found.values(), expected.values())


@ways
def test_hooks_and_derivatives_call_functions_of_sparse_tensors(way):
    A, B = leaf(), leaf()
    A.register_hook(turned)
    ones = torch.ones(3, 1, dtype=torch.float64)
    found = way((A @ ones).sum(), A)
    testing.assert_close(found.values(), turned(spgrad.ones_like(B.detach())).values())
    found = way((Scaled.apply(B) @ ones).sum(), B)
    testing.assert_close(found.values(), turned(spgrad.ones_like(B.detach())).values())


@pytest.mark.parametrize("name", ["method", "function", "grad"])
def test_the_backward_of_a_sparse_result_runs_its_hooks(name):
    A = leaf()
    B = A * 3
    B.register_hook(turned)
    g = A.detach()
    if name == "method":
        B.backward(g)
    elif name == "function":
        torch.autograd.backward([B], [g])
    else:
        A.grad = torch.autograd.grad(B, A, g)[0]
    testing.assert_close(A.grad.values(), 3 * turned(g).values())


def test_what_torch_refuses_it_refuses_still():
    A = leaf()
    x = torch.ones(3, 1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad((A @ x).sum(), A.detach())
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad((A @ x).sum(), leaf())
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        (A * 2).backward()
    unused = leaf()
    found = torch.autograd.grad((A @ x).sum(), unused, materialize_grads=True)[0]
    assert not bool(found.values().any())


def test_a_computed_input_of_backward_gets_its_gradient():
    A = leaf()
    B = A * 2
    torch.autograd.backward((B @ torch.ones(3, 1, dtype=torch.float64)).sum(), inputs=[B])
    assert A.grad is None
    testing.assert_close(B.grad.values(), torch.ones_like(B.values()))
