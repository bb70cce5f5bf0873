"""The scaling kernel against its reference and against entries scaled one by one."""

import pytest
import torch
from operands import COMPLEX, FLOATS, INTEGERS, dense, row_view
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

# Both sides multiply in float32 or wider and round once.
ROUNDING = {
    torch.float32: 1e-6,
    torch.float64: 1e-14,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
    torch.complex64: 1e-6,
    torch.complex128: 1e-14,
}

pytestmark = pytest.mark.usefixtures("poisoned")


def check(ptr, idx, perm, val, by_line, by_index):
    """Asserts that the op is right, and the same on one thread and on two."""
    args = ptr, idx, perm, val, by_line, by_index
    torch.set_num_threads(1)
    actual = kernels.scale(*args)
    row = REFERENCES["expand"](ptr, len(idx))
    place = torch.arange(len(idx)) if perm is None else perm.long()
    wide = {torch.bfloat16: torch.float32, torch.float16: torch.float32}.get(val.dtype, val.dtype)
    product = val[place].to(wide)
    product = product if by_line is None else product * by_line[row].to(wide)
    product = product if by_index is None else product * by_index[idx].to(wide)
    expected = torch.full_like(val, 77).index_copy_(0, place, product.to(val.dtype))
    rtol = ROUNDING.get(val.dtype, 0)
    atol = rtol if val.is_complex() else 0  # the parts of a complex product cancel
    for other in (expected, REFERENCES["scale"](*args)):
        assert_close(actual, other, rtol=rtol, atol=atol, equal_nan=True)
    torch.set_num_threads(2)
    assert_close(kernels.scale(*args), actual, rtol=0, atol=0, equal_nan=True)


FACTORS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize(("has_line", "has_index"), FACTORS)
def test_dtypes(dtype, index, permuted, has_line, has_index):
    view = row_view(23, 19, 150, index, permuted=permuted)
    by_line = dense(23, dtype=dtype) if has_line else None
    by_index = dense(19, dtype=dtype) if has_index else None
    check(*view, dense(150, dtype=dtype), by_line, by_index)


ROW_VIEWS = {
    "no rows": (0, 5, 0, None),
    "no columns": (5, 0, 0, None),
    "no entries": (4, 3, 0, None),
    "one by one": (1, 1, 1, None),
    "one row": (1, 50, 30, None),
    "one column": (50, 1, 30, None),
    "wide": (3, 10_000, 40, None),
    "tall": (10_000, 3, 40, None),
    "a dense row": (100, 80, 200, 17),
    "large": (9000, 2000, 90_000, None),
    "large, a dense row": (3000, 2000, 90_000, 2999),
    "large, one row": (1, 2000, 90_000, None),
}


@pytest.mark.parametrize("shape", ROW_VIEWS.values(), ids=ROW_VIEWS)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize(("has_line", "has_index"), FACTORS)
def test_row_views(shape, permuted, has_line, has_index):
    m, k, nse, dense_row = shape
    view = row_view(m, k, nse, torch.int32, permuted=permuted, dense_row=dense_row)
    by_line = dense(m, dtype=torch.float32) if has_line else None
    by_index = dense(k, dtype=torch.float32) if has_index else None
    check(*view, dense(nse, dtype=torch.float32), by_line, by_index)


def test_nan_and_infinity_reach_their_entries_only():
    view = row_view(20, 15, 60, torch.int64, permuted=True)
    by_line, by_index = dense(20, dtype=torch.float32), dense(15, dtype=torch.float32)
    by_line[3], by_line[4], by_index[2], by_index[5] = torch.nan, torch.inf, -torch.inf, 0
    check(*view, dense(60, dtype=torch.float32), by_line, by_index)


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize(("has_line", "has_index"), FACTORS)
def test_opcheck(permuted, has_line, has_index):
    view = row_view(4, 3, 6, torch.int32, permuted=permuted)
    by_line, by_index = torch.randn(4) if has_line else None, torch.randn(3) if has_index else None
    torch.library.opcheck(kernels.scale, (*view, torch.randn(6), by_line, by_index))


def test_the_result_is_not_the_argument():
    ptr, idx, _ = row_view(4, 3, 6, torch.int32)
    val = torch.randn(6)
    out = kernels.scale(ptr, idx, None, val, None, None)
    assert out.data_ptr() != val.data_ptr()


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused():
    ptr, idx, _ = row_view(4, 3, 6, torch.int32)
    val, by_line, by_index = torch.randn(6), torch.randn(4), torch.randn(3)
    for args, message in [
        ((ptr, idx.long(), None, val, by_line, by_index), "`idx` has dtype Long"),
        ((ptr, idx, None, val[1:].clone(), by_line, by_index), "`val` has size 5"),
        ((ptr, idx, None, val, by_line[1:].clone(), by_index), "`by_line` has size 3"),
        ((ptr, idx, None, val, by_line.double(), by_index), "`by_line` has dtype Double"),
        ((ptr, idx, None, val, by_line, by_index.double()), "`by_index` has dtype Double"),
        ((ptr, idx, None, val, by_line, by_index[None]), "`by_index` has 2 dimensions"),
        ((ptr, idx, None, val.bool(), None, None), "dtype Bool are not supported"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            kernels.scale(*args)
