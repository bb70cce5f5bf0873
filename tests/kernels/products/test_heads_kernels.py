"""Products of several heads on one pattern: every width of vectors and rows, every dtype."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels, testing
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
SIZES = [(1, 1), (2, 1), (5, 1), (16, 1), (33, 1), (3, 2), (2, 3), (4, 4), (7, 5), (8, 8), (6, 12)]
SIZES += [(8, 16), (3, 17), (2, 32), (5, 48), (1, 64), (2, 100), (9, 0), (0, 0)]


def view(dtype=torch.int32):
    """Lines of 0 to 40 entries among 30 columns, unordered and repeated."""
    ptr = torch.tensor([0, 0, 1, 3, 43, 43, 52, 60, 61, 77]).to(dtype)
    return ptr, torch.randint(0, 30, (77,)).to(dtype), torch.randperm(77).to(dtype)


def dense(*shape, dtype):
    return testing.random_dense(shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def check(name, *args):
    actual, expected = getattr(kernels, name)(*args), REFERENCES[name](*args)
    assert actual.dtype == expected.dtype
    bound = max(testing.tolerance(actual.dtype), 1e-5 if actual.dtype == torch.complex64 else 0)
    assert_close(actual, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("heads", "n"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_their_references(dtype, heads, n, permuted):
    ptr, idx, perm = view()
    at = ptr, idx, perm if permuted else None
    check("heads_spmm", *at, dense(77, heads, dtype=dtype), dense(30, heads * n, dtype=dtype))
    g, x = dense(9, heads * n, dtype=dtype), dense(30, heads * n, dtype=dtype)
    check("heads_sddmm", *at, g, x, heads)


@pytest.mark.parametrize(("heads", "n"), [(1, 16), (2, 8), (4, 4), (8, 2), (1, 48), (3, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_that_are_larger_than_the_caches(assume, dtype, heads, n):
    """They are written past the caches, which changes no bit."""
    operands = *view(), dense(77, heads, dtype=dtype), dense(30, heads * n, dtype=dtype)
    expected = kernels.heads_spmm(*operands)
    assume(64)
    assert_close(kernels.heads_spmm(*operands), expected, rtol=0, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_a_long_row_is_cut(dtype, threads):
    ptr = torch.tensor([0, 3, 903, 905], dtype=torch.int32)
    idx, perm = torch.randint(0, 30, (905,)).int(), torch.randperm(905).int()
    torch.set_num_threads(threads)
    x = dense(30, 48, dtype=dtype)
    check("heads_spmm", ptr, idx, perm, dense(905, 3, dtype=dtype) / 8, x)
    check("heads_sddmm", ptr, idx, perm, dense(3, 48, dtype=dtype), x, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int16], ids=str)
def test_int64_indices(dtype):
    ptr, idx, perm = view(torch.int64)
    check("heads_spmm", ptr, idx, perm, dense(77, 3, dtype=dtype), dense(30, 30, dtype=dtype))
    g, x = dense(9, 30, dtype=dtype), dense(30, 30, dtype=dtype)
    check("heads_sddmm", ptr, idx, perm, g, x, 3)


@pytest.mark.parametrize(("heads", "n"), [(2, 3), (8, 16), (3, 24)])
def test_one_head_of_many_is_the_product_of_that_head(heads, n):
    """Infinities and NaN of a head stay in it, and those of columns that no entry names out."""
    ptr, idx, _ = view()
    val, x = dense(77, heads, dtype=torch.float64), dense(30, heads, n, dtype=torch.float64)
    x[:, 1], x[29, 0] = torch.nan, torch.inf
    idx = torch.where(idx == 29, 28, idx)
    y = kernels.heads_spmm(ptr, idx, None, val, x.flatten(1)).view(9, heads, n)
    alone = kernels.spmm(ptr, idx, None, val[:, 0].clone(), x[:, 0].clone())
    assert_close(y[:, 0], alone, rtol=1e-12, atol=1e-12)
    g = dense(9, heads, n, dtype=torch.float64)
    dots = kernels.heads_sddmm(ptr, idx, None, g.flatten(1), x.flatten(1), heads)
    alone = kernels.sddmm(ptr, idx, None, g[:, 0].clone(), x[:, 0].clone())
    assert_close(dots[:, 0], alone, rtol=1e-12, atol=1e-12)
    assert dots[:, 1].isnan().all()


@pytest.mark.skipif(not kernels.compiled(), reason="the references check nothing")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": torch.ones(30, 7)}, "`x` has 7 columns, not a multiple of 2 heads"),
        ({"val": torch.ones(76, 2)}, "`val` has size 76 in dimension 0, not 77"),
        ({"val": torch.ones(77, 2).double()}, "`val` has dtype Double; the call needs Float"),
        ({"val": torch.ones(77, 0)}, "`x` has 8 columns, not a multiple of 0 heads"),
    ],
)
def test_wrong_arguments(change, text):
    ptr, idx, perm = view()
    given = {"val": torch.ones(77, 2), "x": torch.ones(30, 8)} | change
    with pytest.raises(RuntimeError, match=text):
        kernels.heads_spmm(ptr, idx, perm, *given.values())


@pytest.mark.skipif(not kernels.compiled(), reason="the references check nothing")
@pytest.mark.parametrize(
    ("g", "x", "heads", "text"),
    [
        (torch.ones(9, 8), torch.ones(30, 8), 3, "`x` has 8 columns, not a multiple of 3 heads"),
        (torch.ones(9, 8), torch.ones(30, 8), -1, "`heads` is -1; 0 or more is accepted"),
        (torch.ones(8, 8), torch.ones(30, 8), 2, "`g` has size 8 in dimension 0, not 9"),
        (torch.ones(9, 6), torch.ones(30, 8), 2, "`g` has size 6 in dimension 1, not 8"),
    ],
)
def test_wrong_factors(g, x, heads, text):
    with pytest.raises(RuntimeError, match=text):
        kernels.heads_sddmm(*view(), g, x, heads)
