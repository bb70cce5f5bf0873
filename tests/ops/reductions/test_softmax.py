"""Softmax: cases that the rows of the support table do not cover."""

import itertools

import pytest
import torch
from cases import CASES, SHAPES
from samples import drawn, made

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("layout", support.ALL)
functions = pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])


def dense(function, x, mask, dim):
    return torch.where(mask, function(torch.where(mask, x, -torch.inf), dim), 0)


def compare(function, A, dim, twin=None):
    """Value and gradient against the dense function, or its twin, of minus infinities."""
    A = A.detach().requires_grad_()
    x = A.to_dense().detach().requires_grad_()
    mask = testing.mask_of(A.pattern)
    y, wanted = function(A, dim), dense(twin or function, x, mask, dim)
    assert y.pattern is A.pattern or not A.pattern.ordered
    testing.assert_close(y, wanted)
    g = torch.randn_like(x)
    got = torch.autograd.grad(testing.dense_result(y), A, g)[0]
    want = torch.autograd.grad(wanted, x, g * mask)[0]
    at = spgrad.to_dense(spgrad.from_values(torch.ones_like(A._vals), A.pattern))
    testing.assert_close(got, torch.where(at == 0, at, want * at))


@pytest.mark.parametrize(("shape", "layout"), CASES)
@functions
def test_any_dimension(function, shape, layout, poisoned):
    sizes, dense_dim = SHAPES[shape]
    for coalesced in {True, layout != "coo"}:
        A = made(layout, sizes, dense_dim=dense_dim, coalesced=coalesced)
        for dim in range(-A.dim(), A.dim()):
            compare(function, A, dim)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_negative_dimensions_of_torch_sparse(dim):
    """torch's own sparse softmax has a wrong gradient for these."""
    A = made("coo", (4, 6))
    compare(torch.sparse.softmax, A, dim, torch.softmax)
    compare(torch.sparse.log_softmax, A, dim, torch.log_softmax)


@pytest.mark.parametrize("name", list(testing.ZOO))
@layouts
@functions
def test_on_the_zoo(function, layout, name, poisoned):
    x = testing.ZOO[name]().double()
    blocks = (2, 2) if layout in ("bsr", "bsc") else None
    A = spgrad.from_dense(x, LAYOUTS[layout], blocksize=blocks)
    for dim in (0, 1):
        compare(function, A, dim)


@functions
def test_second_derivatives(function):
    A = made("csc", (4, 6))
    vals = A.values().clone().requires_grad_()
    for dim in (0, 1):

        def run(vals, dim=dim):
            return function(spgrad.from_values(vals, A.pattern), dim).values()

        assert torch.autograd.gradcheck(run, vals)
        assert torch.autograd.gradgradcheck(run, vals)


@pytest.mark.parametrize("layout", ["csr", "csc"])
@functions
def test_large_and_special_values(function, layout):
    x = torch.tensor(
        [
            [1e4, 1e4 - 1, 0.0, -1e4],
            [torch.inf, 1.0, 2.0, 3.0],
            [torch.nan, 1.0, 2.0, 3.0],
            [-torch.inf, 1.0, 2.0, 3.0],
            [-torch.inf, -torch.inf, -torch.inf, -torch.inf],
        ],
        dtype=torch.float64,
    )
    A = spgrad.from_dense(x, LAYOUTS[layout])
    mask = testing.mask_of(A.pattern)
    for dim in (0, 1):
        testing.assert_close(function(A, dim), dense(function, x, mask, dim))


@functions
def test_dtypes(function):
    A = made("csr", (4, 6), dtype=torch.bfloat16)
    assert function(A, 1).dtype == torch.bfloat16
    wide = function(A, 1, dtype=torch.float32)
    assert wide.dtype == torch.float32
    testing.assert_close(
        wide, function(spgrad.from_values(A._vals.float(), A.pattern), 1).to_dense()
    )
    leaf = A.detach().requires_grad_()
    function(leaf, 1, dtype=torch.float64).values().sin().sum().backward()
    assert leaf.grad.dtype == torch.bfloat16
    whole = made("csr", (4, 6), dtype=torch.int64)
    assert function(whole, 1, dtype=torch.float32).dtype == torch.float32
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(spgrad.ArgumentValueError, match=rf"{function.__name__}: `input` has"):
            function(made("csr", (4, 6), dtype=dtype), 1)


@layouts
def test_one_and_two_threads(layout):
    A = made(layout, (400, 300), dtype=torch.float32)
    for function, dim in itertools.product((torch.softmax, torch.log_softmax), (0, 1)):
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            leaf = A.detach().requires_grad_()
            y = function(leaf, dim)
            y.values().sin().sum().backward()
            results.append((y.values().detach(), leaf.grad.values()))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dim", [-1, -2, 0, 1])
def test_softmax_along_a_negative_dimension(sparse, name, dim):
    a = drawn(4, 6)
    for function in (torch.sparse.softmax, torch.sparse.log_softmax):
        A = sparse(a, name).requires_grad_()
        mask = testing.mask_of(A.pattern)
        twin = torch.where(mask, A.to_dense(), -torch.inf).detach().requires_grad_()
        dense = getattr(torch, function.__name__.replace("_sparse_", ""))
        y, expected = function(A, dim), dense(twin, dim)
        g = torch.randn(4, 6, dtype=torch.float64)
        y.to_dense().backward(g)
        expected.backward(torch.where(mask, g, 0.0))
        testing.assert_close(y, torch.where(mask, expected, 0.0))
        testing.assert_close(A.grad, torch.where(mask, twin.grad, 0.0))
