"""Products whose dense operands have rows for columns, beside those of the transposes."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels, testing
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

M, K, NSE = 9, 30, 77
DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int8,
    torch.int64,
]
ROWS = [0, 1, 2, 3, 8, 9, 15, 16, 17, 31, 32, 33, 70, 130]


def view(*, permuted, dtype=torch.int32):
    """Lines of 0 to 40 entries among 30 columns, unordered and repeated."""
    ptr = torch.tensor([0, 0, 1, 3, 43, 43, 52, 60, 61, NSE]).to(dtype)
    perm = torch.randperm(NSE).to(dtype) if permuted else None
    return ptr, torch.randint(0, K, (NSE,)).to(dtype), perm


def dense(*shape, dtype):
    return testing.random_dense(
        shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape) * shape[0])
    )


def near(actual, expected):
    bound = max(testing.tolerance(actual.dtype), 1e-5 if actual.dtype == torch.complex64 else 0)
    assert actual.is_contiguous()
    assert_close(actual, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_the_transposes(dtype, n, permuted, index):
    at = view(permuted=permuted, dtype=index)
    val, g, x = dense(NSE, dtype=dtype), dense(n, M, dtype=dtype), dense(n, K, dtype=dtype)
    y = REFERENCES["spmm"](*at, val, x.mT.contiguous()).mT
    out = REFERENCES["sddmm"](*at, g.mT.contiguous(), x.mT.contiguous())
    near(kernels.row_spmm(*at, val, x), y)
    near(kernels.row_sddmm(*at, g, x), out)
    both = kernels.row_spmm_sddmm(*at, val, g, x)
    near(both[0], y)
    near(both[1], out)


@pytest.mark.parametrize("n", [12, 100])
def test_numbers_that_are_not_finite_stay_in_their_row(n):
    """The vectors that the kernels fill up hold zeros, and no number times infinity shows."""
    at = view(permuted=False)
    val = dense(NSE, dtype=torch.float32)
    g, x = dense(n, M, dtype=torch.float32), dense(n, K, dtype=torch.float32)
    val[40], x[n - 1, 3], g[n - 2, 5] = torch.inf, torch.nan, -torch.inf
    y = REFERENCES["spmm"](*at, val, x.mT.contiguous()).mT
    out = REFERENCES["sddmm"](*at, g.mT.contiguous(), x.mT.contiguous())
    for found in (kernels.row_spmm(*at, val, x), kernels.row_spmm_sddmm(*at, val, g, x)[0]):
        assert_close(found, y, equal_nan=True)
    assert_close(kernels.row_sddmm(*at, g, x), out, equal_nan=True)


@pytest.mark.skipif(not kernels.compiled(), reason="the references check nothing")
def test_operands_that_do_not_fit_are_refused():
    at = view(permuted=False)
    val, g, x = torch.ones(NSE), torch.ones(12, M), torch.ones(12, K)
    wrong = {
        "x": (torch.ones(K), torch.ones(K, 12).T),
        "g": (torch.ones(11, M), g.double(), torch.ones(M), torch.ones(12, M - 1)),
    }
    for operand in wrong["x"]:
        for call in (
            lambda x: kernels.row_spmm(*at, val, x),
            lambda x: kernels.row_sddmm(*at, g, x),
            lambda x: kernels.row_spmm_sddmm(*at, val, g, x),
        ):
            with pytest.raises(RuntimeError, match=r"`x` (has|is)"):
                call(operand)
    for operand in wrong["g"]:
        with pytest.raises(RuntimeError, match="`g` has"):
            kernels.row_sddmm(*at, operand, x)
        with pytest.raises(RuntimeError, match="`g` has"):
            kernels.row_spmm_sddmm(*at, val, operand, x)
    with pytest.raises(RuntimeError, match="`val` has"):
        kernels.row_spmm(*at, val[1:], x)
