"""Sparse times dense over maxima, minima and products, against references and dense torch."""

from itertools import pairwise

import pytest
import torch
from operands import COMPLEX, FLOATS, INTEGERS, WIDTHS, dense, row_view
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

# Of the products, which all sides form in float32 or wider and round once.
ROUNDING = {
    torch.float32: 1e-5,
    torch.float64: 1e-13,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
    torch.complex64: 1e-5,
    torch.complex128: 1e-13,
}

pytestmark = pytest.mark.usefixtures("poisoned")


def wide(dtype):
    return torch.float32 if dtype in {torch.bfloat16, torch.float16} else dtype


def check_reduce(ptr, idx, perm, val, x, largest):
    """Checks the extrema of products and, of floats, those of sums."""
    args = ptr, idx, perm, val, x, largest
    check_extrema("spmm_reduce", torch.mul, 0, *args)
    if x.is_floating_point():
        check_extrema("spmm_plus", torch.add, -torch.inf if largest else torch.inf, *args)


def check_extrema(name, join, nothing, *args):
    """Asserts that every row is what dense torch makes of it, on one thread and two."""
    ptr, idx, perm, val, x, largest = args
    kernel = getattr(kernels, name)
    torch.set_num_threads(1)
    y, arg = kernel(*args)
    assert (y.dtype, arg.dtype) == (x.dtype, ptr.dtype)
    weight = (val if perm is None else val[perm.long()]).to(wide(x.dtype))[:, None]
    bounds = ptr.tolist()
    expected = torch.full((len(ptr) - 1, x.shape[1]), nothing, dtype=x.dtype)
    first = torch.full_like(expected, -1, dtype=ptr.dtype)
    for i, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end and x.shape[1]:
            joined = join(weight[begin:end], x[idx[begin:end].long()].to(weight.dtype))
            extremum = joined.amax(0) if largest else joined.amin(0)
            hit = (joined == extremum) | ((joined != joined) & (extremum != extremum))
            expected[i] = extremum.to(x.dtype)
            first[i] = begin + hit.to(torch.uint8).argmax(0)
    # A product or sum is rounded once on either side: nothing to be tolerant about.
    assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert_close(arg, first, rtol=0, atol=0)
    reference = REFERENCES[name](*args)
    assert_close((y, arg), reference, rtol=0, atol=0, equal_nan=True)
    if kernels.compiled():
        torch.set_num_threads(2)
        assert_close(kernel(*args), (y, arg), rtol=0, atol=0, equal_nan=True)


def check_prod(ptr, idx, x):
    """Asserts that every row is the product of its rows of x, on one thread and on two."""
    torch.set_num_threads(1)
    y = kernels.spmm_prod(ptr, idx, x)
    bounds = ptr.tolist()
    expected = torch.ones(len(ptr) - 1, x.shape[1], dtype=x.dtype)
    for i, (begin, end) in enumerate(pairwise(bounds)):
        factors = x[idx[begin:end].long()].to(wide(x.dtype))
        expected[i] = factors.prod(0, dtype=factors.dtype).to(x.dtype)
    rtol = ROUNDING.get(x.dtype, 0)
    atol = rtol if x.is_complex() else 0  # the parts of a complex product cancel
    for other in (expected, REFERENCES["spmm_prod"](ptr, idx, x)):
        assert_close(y, other, rtol=rtol, atol=atol, equal_nan=True)
    if kernels.compiled():
        torch.set_num_threads(2)
        assert_close(kernels.spmm_prod(ptr, idx, x), y, rtol=0, atol=0, equal_nan=True)


def unit(*shape, dtype):
    """Elements whose products stay in range."""
    x = dense(*shape, dtype=dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        return x
    size = x.abs().clamp(1e-2).to(wide(dtype) if dtype.is_floating_point else x.abs().dtype)
    return (x.to(wide(dtype)) / size).to(dtype)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("n", WIDTHS)
def test_widths(dtype, n, largest):
    view = row_view(23, 19, 150, torch.int32, permuted=n % 2 == 1)
    check_reduce(*view, dense(150, dtype=dtype), dense(19, n, dtype=dtype), largest)


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("n", WIDTHS)
def test_widths_of_products(dtype, n):
    ptr, idx, _ = row_view(23, 19, 150, torch.int32)
    check_prod(ptr, idx, unit(19, n, dtype=dtype))


ROW_VIEWS = {
    "no rows": (0, 5, 0, None),
    "no columns": (5, 0, 0, None),
    "no entries": (4, 3, 0, None),
    "one by one": (1, 1, 1, None),
    "one row": (1, 50, 30, None),
    "one column": (50, 1, 30, None),
    "wide": (3, 10_000, 40, None),
    "tall": (2000, 3, 40, None),
    "a dense row": (100, 80, 200, 17),
    "large": (1500, 2000, 20_000, None),
    "large, a dense row": (1500, 2000, 20_000, 1499),
}


@pytest.mark.parametrize("shape", ROW_VIEWS.values(), ids=ROW_VIEWS)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_row_views(shape, index, permuted):
    m, k, nse, dense_row = shape
    view = row_view(m, k, nse, index, permuted=permuted, dense_row=dense_row)
    val = dense(nse, dtype=torch.float32)
    for n in (0, 1, 5, 40):
        check_reduce(*view, val, dense(k, n, dtype=torch.float32), n != 5)
        check_prod(*view[:2], unit(k, n, dtype=torch.float32).sign())


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("n", [1, 2, 7, 33, 130])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_infinity_and_ties(dtype, n, largest):
    view = row_view(40, 15, 160, torch.int64, permuted=True)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -1.0], dtype=dtype)
    for kinds in (slice(0, 7), slice(1, 7), slice(1, 2), slice(2, 3), slice(3, 7), slice(0, 2)):
        few = special[kinds]
        val, x = few[torch.randint(len(few), (160,))], few[torch.randint(len(few), (15, n))]
        check_reduce(*view, val, x, largest)
        check_reduce(*view, dense(160, dtype=dtype), x, largest)
        check_prod(*view[:2], x)


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_opcheck(permuted):
    view = row_view(4, 3, 6, torch.int32, permuted=permuted)
    val, x = torch.randn(6), torch.randn(3, 9)
    for kernel in (kernels.spmm_reduce, kernels.spmm_plus):
        torch.library.opcheck(kernel, (*view, val, x, True))
    torch.library.opcheck(kernels.spmm_prod, (*view[:2], x))


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused():
    ptr, idx, _ = row_view(4, 3, 6, torch.int32)
    val, x = dense(6, dtype=torch.float32), dense(3, 2, dtype=torch.float32)
    for args, message in [
        ((ptr, idx.long(), None, val, x), "`idx` has dtype Long; the call needs Int"),
        ((ptr, idx, None, val.double(), x), "`val` has dtype Double; the call needs Float"),
        ((ptr, idx, None, val[1:].clone(), x), "`val` has size 5 in dimension 0, not 6"),
        ((ptr, idx, None, val, dense(2, 3, dtype=torch.float32).T), "`x` is not contiguous"),
        ((ptr, idx, None, val.to(torch.complex64), x.to(torch.complex64)), "not supported"),
    ]:
        for kernel in (kernels.spmm_reduce, kernels.spmm_plus):
            with pytest.raises(RuntimeError, match=message):
                kernel(*args, True)
    with pytest.raises(RuntimeError, match="Long are not supported: a row without"):
        kernels.spmm_plus(ptr, idx, None, val.long(), x.long(), True)
    with pytest.raises(RuntimeError, match="`idx` has dtype Long; the call needs Int"):
        kernels.spmm_prod(ptr, idx.long(), x)
    with pytest.raises(RuntimeError, match="`x` has 1 dimensions, not 2"):
        kernels.spmm_prod(ptr, idx, x[0])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_backward(dtype, index, permuted, n):
    """Against dense sums over arg, the reference, and on one thread and two."""
    m, k, nse = 300, 50, 900
    ptr, idx, perm = row_view(m, k, nse, index, permuted=permuted, dense_row=7)
    val, x, g = (dense(*shape, dtype=dtype) for shape in ((nse,), (k, n), (m, n)))
    arg = kernels.spmm_reduce(ptr, idx, perm, val, x, True)[1]
    args = ptr, idx, perm, val, x, g, arg
    torch.set_num_threads(1)
    got = kernels.spmm_reduce_backward(*args)
    exact = torch.float64 if dtype.is_floating_point else dtype
    entry = arg.clamp(min=0).long()
    place = entry if perm is None else perm.long()[entry]
    share = torch.where(arg >= 0, g.to(exact), 0)
    column = idx.long()[entry]
    of_values = (share * x.to(exact).gather(0, column)).view(-1)
    grad_val = torch.zeros(nse, dtype=exact).index_add_(0, place.view(-1), of_values)
    of_x = share * val.to(exact)[place]
    grad_x = torch.zeros(k, n, dtype=exact).scatter_add_(0, column, of_x)
    bound = 40 * ROUNDING.get(dtype, 0)  # sums of many terms
    for result, wanted in zip(got, (grad_val, grad_x), strict=True):
        assert result.dtype == dtype
        assert_close(result.to(exact), wanted, rtol=bound, atol=bound)
    reference = REFERENCES["spmm_reduce_backward"](*args)
    assert_close(got, reference, rtol=bound, atol=bound)
    torch.set_num_threads(2)
    assert_close(kernels.spmm_reduce_backward(*args), got, rtol=0, atol=0)


@pytest.mark.parametrize("permuted", [False, True])
def test_opcheck_of_the_backward(permuted):
    ptr, idx, perm = row_view(20, 9, 50, torch.int64, permuted=permuted)
    val, x, g = torch.randn(50), torch.randn(9, 4), torch.randn(20, 4)
    arg = kernels.spmm_reduce(ptr, idx, perm, val, x, False)[1]
    torch.library.opcheck(kernels.spmm_reduce_backward, (ptr, idx, perm, val, x, g, arg))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_backward_of_columns_that_threads_divide(dtype):
    """One thread has vectors of columns where the parts of several end within one."""
    m, k, nse, n = 4000, 300, 12_000, 70
    ptr, idx, perm = row_view(m, k, nse, torch.int32, permuted=False)
    val, x, g = (dense(*shape, dtype=dtype) for shape in ((nse,), (k, n), (m, n)))
    arg = kernels.spmm_reduce(ptr, idx, perm, val, x, True)[1]
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(kernels.spmm_reduce_backward(ptr, idx, perm, val, x, g, arg))
    assert_close(found[1:], found[:1] * 2, rtol=0, atol=0)
