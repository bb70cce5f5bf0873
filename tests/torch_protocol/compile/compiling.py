"""Compiled functions beside eager ones: results and gradients are the same."""

import torch
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad
from spgrad import testing


def compiled(function, backend="inductor"):
    return torch.compile(function, fullgraph=True, backend=backend)


def compare_in_two_graphs(function, operands):
    """As `compare` for each of the operands, of which at most two are new to the compiler."""
    counter = CompileCounterWithBackend("aot_eager")
    whole = torch.compile(function, fullgraph=True, backend=counter)
    for A in operands:
        compare(whole, function, A)
    assert counter.frame_count <= 2


def grads(function, *operands):
    """The result of a function of fresh leaves, and their gradients."""
    leaves = [a.detach().clone().requires_grad_() for a in operands]
    y = function(*leaves)
    testing.dense_result(y).sin().sum().backward()
    return y, *(leaf.grad for leaf in leaves)


def assert_same(one, other):
    """Asserts one kind, one layout, one pattern and close numbers; zeros may be missing."""
    if one is None or other is None:  # of an operand in use before a graph break alone
        assert all(x is None or not testing.dense_result(x).any() for x in (one, other))
        return
    assert type(one) is type(other)
    assert one.layout == other.layout
    if isinstance(one, spgrad.SparseTensor):
        assert one.pattern.same_as(other.pattern)
    testing.assert_close(one.detach(), testing.dense_result(other.detach()))


def compare(first, second, *operands):
    """Asserts that two functions, called in this order, have the same result and gradients.

    What the first call derives is there for the second.
    """
    results = [grads(function, *operands) for function in (first, second)]
    for one, other in zip(*results, strict=True):
        assert_same(one, other)
    return results[1][0]
