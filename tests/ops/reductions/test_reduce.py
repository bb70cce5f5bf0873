"""Reductions: cases that the rows of the support table do not cover."""

import itertools
import math
import re

import pytest
import torch
from cases import CASES, SHAPES
from samples import made

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.lowering import views

layouts = pytest.mark.parametrize("layout", support.ALL)


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
        (want,) = torch.autograd.grad(wanted, x, g * on_result, materialize_grads=True)
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


def operands(shape, layout):
    sizes, dense_dim = SHAPES[shape]
    yield made(layout, sizes, dense_dim=dense_dim)
    if layout == "coo":
        yield made(layout, sizes, dense_dim=dense_dim, coalesced=False)


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


def coarse(layout, shape=(4, 6), **options):
    """A tensor of few values, explicit zeros among them, so that many elements are equal."""
    A = made(layout, shape, **options)
    return spgrad.from_values((3 * A._vals).round(), A._pattern)


TIED = {
    "amax": lambda A, **o: A.amax(**o),
    "amin": lambda A, **o: A.amin(**o),
    "max": lambda A, **o: A.max(**o),
    "min": lambda A, **o: A.min(**o),
    "argmax": lambda A, **o: A.argmax(**o),
    "argmin": lambda A, **o: A.argmin(**o),
    "prod": lambda A, **o: A.prod(**o),
    "std": lambda A, **o: A.std(**o),
    "norm": lambda A, **o: A.norm(**o),
    "largest": lambda A, **o: torch.linalg.vector_norm(A, torch.inf, **o),
    "smallest": lambda A, **o: torch.linalg.vector_norm(A, -torch.inf, **o),
    "root": lambda A, **o: torch.linalg.vector_norm(A, 0.5, **o),
    "inverse": lambda A, **o: torch.linalg.vector_norm(A, -1, **o),
    "nonzero": lambda A, **o: torch.linalg.vector_norm(A, 0, **o),
}


@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize(("shape", "layout"), CASES)
@pytest.mark.parametrize("name", TIED)
def test_ties_and_explicit_zeros(name, shape, layout, density):
    sizes, dense_dim = SHAPES[shape]
    for seed in range(3):
        A = coarse(layout, sizes, dense_dim=dense_dim, density=density, seed=seed)
        for dim in range(A.dim()):
            compare(TIED[name], A, dim=dim)


@pytest.mark.parametrize("function", [torch.amax, torch.amin])
def test_zeros_share_the_gradient_over_sparse_and_dense_dimensions(function):
    """Each unspecified element is as many zeros as the reduced dense dimension has elements."""
    A = coarse("csr", (4, 6, 3), dense_dim=1)
    size = A._vals.abs()
    A = spgrad.from_values(-size if function is torch.amax else size, A.pattern)
    compare(function, A, dim=(1, 2))


@layouts
def test_negative_rows(layout):
    """Where one element is unspecified the largest is that zero, which has no gradient."""
    A = made(layout, (6, 8), positive=True)
    A = spgrad.from_values(-A._vals, A._pattern)
    for function in (torch.amax, torch.max, torch.argmax):
        for dim in (0, 1):
            compare(function, A, dim=dim)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("density", [0.5, 1.0])
@layouts
def test_nan_and_infinity(layout, density, special, poisoned):
    A = made(layout, (6, 8), density=density)
    vals = A._vals.clone()
    vals.view(-1)[::5] = special
    A = spgrad.from_values(vals, A._pattern)
    x = A.to_dense()
    functions = (*OVER_MANY, *OVER_ONE, torch.norm, torch.var, torch.logsumexp)
    for function, dim in itertools.product(functions, (0, 1)):
        y, wanted = function(A, dim=dim), function(x, dim=dim)
        pairs = [(y, wanted)] if isinstance(y, torch.Tensor) else zip(y, wanted, strict=True)
        for got, want in pairs:
            testing.assert_close(got, want)


EMPTY = {"no_entries": (4, 6), "no_rows": (0, 4), "no_columns": (4, 0), "nothing": (0, 0)}


@pytest.mark.parametrize("name", EMPTY)
@layouts
def test_nothing_to_reduce(layout, name, poisoned):
    x = torch.zeros(EMPTY[name], dtype=torch.float64)
    blocks = (2, 2) if layout in ("bsr", "bsc") else None
    A = spgrad.from_dense(x, LAYOUTS[layout], blocksize=blocks)
    for function in (*OVER_MANY, *OVER_ONE, torch.norm, torch.logsumexp):
        for dim in (0, 1):
            try:
                wanted = function(x, dim=dim)
            except (RuntimeError, IndexError):
                with pytest.raises(spgrad.ArgumentValueError, match="has shape"):
                    function(A, dim=dim)
                continue
            y = function(A.detach().requires_grad_(), dim=dim)
            pairs = [(y, wanted)] if isinstance(y, torch.Tensor) else zip(y, wanted, strict=True)
            for got, want in pairs:
                testing.assert_close(got.detach(), want)
                if got.requires_grad:
                    got.sum().backward()


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int8, torch.int32, torch.float16, torch.bfloat16, torch.cfloat],
    ids=str,
)
@pytest.mark.parametrize("layout", ["coo", "csc", "bsr"])
@pytest.mark.parametrize("function", [*OVER_MANY, *OVER_ONE, torch.norm], ids=lambda f: f.__name__)
def test_dtypes_are_those_of_torch(function, layout, dtype):
    A = made(layout, (4, 6), dtype=dtype)
    x = A.to_dense()
    for dim in (0, 1):
        try:
            wanted = function(x, dim=dim)
        except (RuntimeError, TypeError):
            name = function.__name__
            with pytest.raises(spgrad.ArgumentValueError, match=rf"spgrad\.{name}: .* dtype"):
                function(A, dim=dim)
            continue
        y = function(A, dim=dim)
        pairs = [(y, wanted)] if isinstance(y, torch.Tensor) else zip(y, wanted, strict=True)
        for got, want in pairs:
            assert got.dtype == want.dtype
            testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.float16])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_repeated_elements_add_up_before_they_are_converted(dim, dtype):
    A = spgrad.sparse_coo_tensor([[0, 0, 1, 1], [1, 1, 0, 0]], [0.6, 0.6, 1e5, -1e5], (2, 2))
    x = A.to_dense()
    assert torch.equal(A.sum(dim, dtype=dtype), x.sum(dim, dtype=dtype))
    assert torch.equal(spgrad.to_dense(A, dtype), x.to(dtype))
    found = spgrad.sparse_sum(A, dim, dtype)
    assert torch.equal(found.to_dense() if dim is not None else found, x.sum(dim, dtype=dtype))
    if dtype == torch.float16:
        assert torch.equal(A.mean(dim, dtype=dtype), x.mean(dim, dtype=dtype))


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_sums_and_products_of_truth(layout, dim):
    A = made(layout, (4, 6))
    x = A.to_dense()
    dims = {} if dim is None else {"dim": dim}
    for function in (torch.sum, torch.prod):
        found = function(A, **dims, dtype=torch.bool)
        assert torch.equal(found, function(x, **dims, dtype=torch.bool))
    ones = spgrad.ones_like(A).prod(**dims, dtype=torch.bool, specified=True)
    assert bool(ones.all())


@pytest.mark.parametrize("function", [torch.sum, torch.mean, torch.prod])
def test_dtype_argument(function):
    A = made("csr", (4, 6), dtype=torch.int64)
    y = function(A, 1, dtype=torch.float32)
    assert y.dtype == torch.float32
    testing.assert_close(y, function(A.to_dense(), 1, dtype=torch.float32))


def test_variance_by_its_older_name():
    A = made("csr", (4, 6))
    x = A.to_dense()
    testing.assert_close(torch.var(A, 1, False), torch.var(x, 1, False))
    testing.assert_close(torch.std(A, False), torch.std(x, False))
    testing.assert_close(torch.var(A, 1, True, True), torch.var(x, 1, True, True))
    testing.assert_close(torch.var(A, (0, 1), correction=2), torch.var(x, (0, 1), correction=2))
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.var: `unbiased`"):
        spgrad.var(A, 1, False, correction=0)


@pytest.mark.parametrize("ord", ["fro", 1, -1, torch.inf, -torch.inf])
@pytest.mark.parametrize("dim", [(-2, -1), (-1, -2), (0, 1), (2, 0)])
@pytest.mark.parametrize("keepdim", [False, True])
@layouts
def test_matrix_norms_of_a_batch(layout, ord, dim, keepdim):
    A = made(layout, (2, 4, 6))
    compare(torch.linalg.matrix_norm, A, ord=ord, dim=dim, keepdim=keepdim)


def test_large_numbers_do_not_overflow():
    A = spgrad.from_dense(torch.tensor([[300.0, 300.0], [0.0, -90.0]], dtype=torch.float16))
    testing.assert_close(A.norm(dim=1), torch.tensor([424.25, 90.0]))
    testing.assert_close((1000 * A.float()).logsumexp(1), torch.tensor([3e5 + 0.6931, 0.0]))
    full = spgrad.from_dense(torch.full((2, 900), 200.0, dtype=torch.float16))
    testing.assert_close(full.mean(1), torch.full((2,), 200.0))  # their sum is out of range
    testing.assert_close(full.mean(), torch.tensor(200.0))
    testing.assert_close(full.mean(1, specified=True), torch.full((2,), 200.0))


def test_a_variance_out_of_range_is_infinite():
    A = spgrad.from_dense(torch.tensor([[1e20, -3e20, 2.0], [1e20, 0.0, 2.0]]))
    assert A.var(1).tolist() == A.to_dense().var(1).tolist() == [math.inf, math.inf]
    assert A.std().item() == math.inf


@layouts
def test_second_derivatives_of_sparse_results(layout):
    A = made(layout, (2, 4, 6))
    vals = A._vals.clone().requires_grad_()
    for name in ("sum", "mean", "prod", "amax", "min", "norm", "std"):

        def run(vals, name=name):
            y = getattr(spgrad, name)(
                spgrad.from_values(vals, A.pattern), 0 if name != "norm" else 2
            )
            return testing.dense_result(y if isinstance(y, torch.Tensor) else y[0])

        assert torch.autograd.gradcheck(run, vals, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, vals, fast_mode=True)


@layouts
def test_one_and_two_threads(layout):
    A = made(layout, (400, 300), dtype=torch.float32)
    functions = (torch.sum, torch.prod, torch.amax, torch.max, torch.var, torch.norm)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        B = spgrad.from_values(A._vals, A._pattern)
        results.append([function(B, dim=dim) for function in functions for dim in (0, 1)])
        results[-1].append(torch.sum(B))
    for one, two in zip(*results, strict=True):
        pairs = [(one, two)] if isinstance(one, torch.Tensor) else zip(one, two, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


REFUSED = {
    "dim": (lambda A: A.sum(2), "spgrad.sum: `dim` is 2 for a tensor of 2"),
    "kind": (lambda A: A.sum("a"), "spgrad.sum: `dim` is 'a'"),
    "twice": (lambda A: A.sum((1, -1)), "spgrad.sum: `dim` is (1, -1)"),
    "keepdim": (lambda A: A.sum(1, 2), "spgrad.sum: `keepdim` is 2"),
    "many": (lambda A: A.max((0, 1)), "spgrad.max: `dim` is (0, 1); an int"),
    "nuclear": (lambda A: torch.linalg.matrix_norm(A, "nuc"), "spgrad.matrix_norm: `ord` is 'nuc'"),
    "spectral": (
        lambda A: spgrad.matrix_norm(A, 2, dtype=torch.int64),
        "spgrad.matrix_norm: `dtype` has dtype int64",
    ),
    "other": (lambda A: torch.linalg.matrix_norm(A, 3), "spgrad.matrix_norm: `ord` is 3"),
    "norm": (lambda A: A.norm("nuc"), "spgrad.norm: `p` is 'nuc'.*'fro' and numbers are"),
    "order": (lambda A: spgrad.vector_norm(A, "a"), "spgrad.vector_norm: `ord` is 'a'"),
    "pair": (lambda A: spgrad.matrix_norm(A, 1, 0), "spgrad.matrix_norm: `dim` is 0; a pair"),
    "none": (lambda A: torch.any(A, ()), "spgrad.any: `dim` is ()"),
    "reduce": (lambda A: spgrad.mm(A, torch.ones(6, 2), "most"), "spgrad.mm: `reduce` is 'most'"),
    "softmax": (lambda A: spgrad.softmax(A, None), "spgrad.softmax: `dim` is None"),
    "dense": (lambda A: spgrad.sum(A.to_dense()), "spgrad.sum: `input` is a dense tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(spgrad.SpgradError, match=pattern):
        call(made("csr", (4, 6), dtype=torch.float32))


def test_results_that_would_not_be_sparse_are_refused():
    A = made("csr", (2, 4, 6, 3), dense_dim=1)
    for dim in (0, -1, (0, 3)):
        with pytest.raises(spgrad.UnsupportedError, match=r"spgrad\.logsumexp: `dim` is"):
            A.logsumexp(dim)
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.var: `correction` is 3"):
        A.var(3, correction=3)
    assert A.logsumexp(3, specified=True).layout == torch.sparse_csr


def test_max_of_two_tensors_is_maximum():
    A, B = made("csr", (4, 6)), made("coo", (4, 6), seed=1)
    testing.assert_close(torch.max(A, B), torch.maximum(A.to_dense(), B.to_dense()))
    testing.assert_close(A.min(B), torch.minimum(A.to_dense(), B.to_dense()))


def test_a_column_of_many_entries_keeps_its_digits():
    val = torch.full((100_000,), 0.1, requires_grad=True)
    ptr, col = torch.arange(100_001), torch.zeros(100_000, dtype=torch.int64)
    A = spgrad.sparse_csr_tensor(ptr, col, val, (100_000, 2))
    y = A.sum(0)
    assert y[0] == val.detach().double().sum().float()
    assert y[1] == 0
    y[0].backward()
    assert torch.equal(val.grad, torch.ones(100_000))


def test_a_sum_over_dense_dimensions_has_the_views_of_its_operand():
    A = made("coo", (4, 6, 3), dense_dim=1)
    rows, columns = views.rows(A.pattern), views.cols(A.pattern)
    left = spgrad.sum(A, 2, specified=True).pattern
    assert views.rows(left) is rows
    assert views.cols(left) is columns


@pytest.mark.parametrize("name", ["sum", "mean", "prod"])
@layouts
def test_dense_dimensions_of_size_0(layout, name):
    A = made(layout, (4, 6, 0), dense_dim=1)
    for dim in (0, 1):
        compare(getattr(spgrad, name), A, getattr(torch, name), dim=dim)
