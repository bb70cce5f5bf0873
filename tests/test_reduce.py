"""Reductions: what the rows of the support table do not reach."""

import itertools

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.pattern import LAYOUTS

layouts = pytest.mark.parametrize("layout", support.ALL)


def made(layout, shape, **options):
    return testing.random_sparse(shape, LAYOUTS[layout], **options)


def compare(function, A, dense=None, **options):
    """Asserts that a function of a sparse tensor equals the same of the dense one, gradient too.

    Where the result is sparse, unspecified elements are zeros; gives the result.
    """
    A = A.detach().requires_grad_(A.is_floating_point() or A.is_complex())
    x = A.to_dense().detach().requires_grad_(A.requires_grad)
    y, wanted = function(A, **options), (dense or function)(x, **options)
    pairs = [(y, wanted)] if isinstance(y, torch.Tensor) else list(zip(y, wanted, strict=True))
    for got, want in pairs:
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        testing.assert_close(got, want)
    (y, wanted), *_ = pairs
    if A.requires_grad and y.is_floating_point():
        g = torch.randn(wanted.shape, dtype=wanted.dtype)
        on_result = testing.mask_of(y.pattern) if isinstance(y, spgrad.SparseTensor) else 1
        got = torch.autograd.grad(testing.dense_result(y), A, g)[0]
        want = torch.autograd.grad(wanted, x, g * on_result)[0]
        assert got.pattern is A.pattern
        at = spgrad.to_dense(spgrad.from_values(torch.ones_like(A._vals), A.pattern))
        testing.assert_close(got, torch.where(at == 0, at, want * at))
    return y


def some_dims(ndim):
    """None, and every set of dimensions."""
    yield None
    for n in range(1, ndim + 1):
        yield from itertools.combinations(range(ndim), n)


OVER_MANY = (torch.sum, torch.mean, torch.amax, torch.amin, torch.any, torch.all)
OVER_ONE = (torch.prod, torch.max, torch.min, torch.argmax, torch.argmin)
SHAPES = {"matrix": ((4, 6), 0), "batch": ((2, 4, 6), 0), "hybrid": ((4, 6, 3, 2), 2)}
OF_COO = {"vector": ((7,), 0), "wide_vector": ((5, 3), 1), "cube": ((2, 3, 4, 2), 0)}


def operands(shape, layout):
    sizes, dense_dim = (SHAPES | OF_COO)[shape]
    yield made(layout, sizes, dense_dim=dense_dim)
    if layout == "coo":
        yield made(layout, sizes, dense_dim=dense_dim, coalesced=False)


CASES = [(shape, layout) for shape in SHAPES for layout in support.ALL]
CASES += [(shape, "coo") for shape in OF_COO]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "layout"), CASES)
@pytest.mark.parametrize("function", OVER_MANY, ids=lambda f: f.__name__)
def test_any_dimensions(function, shape, layout, keepdim, poisoned):
    for A in operands(shape, layout):
        for dim in some_dims(A.dim()):
            # without `dim`, the signatures of torch differ in what else they take
            options = {} if dim is None else {"dim": dim, "keepdim": keepdim}
            y = compare(function, A, **options)
            check_kind(A, dim, y)


def check_kind(A, dim, y):
    """Sparse in the operand's layout if and only if both matrix dimensions stay."""
    last = A.dim() - A.dense_dim()
    matrix = {last - 2, last - 1} & set(range(A.dim()))
    sparse = dim is not None and matrix.isdisjoint(dim)
    assert isinstance(y, spgrad.SparseTensor) == sparse
    if sparse:
        assert y.pattern.name == A.pattern.name
        assert y.pattern.blocksize == A.pattern.blocksize


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "layout"), CASES)
@pytest.mark.parametrize("function", OVER_ONE, ids=lambda f: f.__name__)
def test_any_dimension(function, shape, layout, keepdim, poisoned):
    for A in operands(shape, layout):
        for dim in range(-A.dim(), A.dim()):
            y = compare(function, A, dim=dim, keepdim=keepdim)
            check_kind(A, (dim % A.dim(),), y if isinstance(y, torch.Tensor) else y[0])
        compare(function, A)
