"""The matmul kernels against their references."""

import pytest
import torch
from operands import COMPLEX, FLOATS, INTEGERS, WIDTHS, dense, row_view
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

# Both sides sum in float32 or wider and round once.
ROUNDING = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}

pytestmark = pytest.mark.usefixtures("poisoned")


def arguments(name, view, m, k, n, dtype):
    """What `name` takes besides its view."""
    first = dense(len(view[1]), dtype=dtype) if name == "spmm" else dense(m, n, dtype=dtype)
    return *view, first, dense(k, n, dtype=dtype)


def check(name, *args):
    """Asserts that the op is close to its reference, and the same on one thread and on two."""
    torch.set_num_threads(1)
    actual = getattr(kernels, name)(*args)
    dtype = args[-1].dtype
    if dtype == torch.float32:  # long sums of the reference would have errors of their own
        args_of_reference = [t.double() if t is not None and t.dtype == dtype else t for t in args]
        expected = REFERENCES[name](*args_of_reference).to(dtype)
    else:
        expected = REFERENCES[name](*args)
    rtol = ROUNDING.get(dtype, 1e-5) if dtype.is_floating_point or dtype.is_complex else 0
    atol = min(10 * rtol, 1e-4)
    assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    torch.set_num_threads(2)
    assert_close(getattr(kernels, name)(*args), actual, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["spmm", "sddmm"])
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("n", WIDTHS)
def test_widths(name, dtype, n):
    view = row_view(23, 19, 150, torch.int32, permuted=n % 2 == 1)
    check(name, *arguments(name, view, 23, 19, n, dtype))


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
    "large": (3000, 2000, 20_000, None),
    "large, a dense row": (3000, 2000, 20_000, 2999),
}


@pytest.mark.parametrize("name", ["spmm", "sddmm"])
@pytest.mark.parametrize("shape", ROW_VIEWS.values(), ids=ROW_VIEWS)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_row_views(name, shape, index, permuted):
    m, k, nse, dense_row = shape
    view = row_view(m, k, nse, index, permuted=permuted, dense_row=dense_row)
    for n in (0, 1, 5, 40):
        check(name, *arguments(name, view, m, k, n, torch.float32))


@pytest.mark.parametrize("name", ["spmm", "sddmm"])
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize(
    ("m", "k", "nse", "n", "dtype"),
    [
        (200, 6000, 100_000, 96, torch.float32),  # x beyond the cache, each row used often: tiles
        (200, 6000, 100_000, 70, torch.float32),  # two tiles and a rest
        (200, 6000, 100_000, 170, torch.float32),  # an odd number of tiles, and a rest
        (200, 6000, 100_000, 39, torch.float64),
        (200, 30_000, 60_000, 17, torch.float32),  # x beyond the cache, each row used twice
        (200, 300_000, 5_000, 1, torch.float32),
        (20_000, 50, 30_000, 112, torch.float32),  # a result beyond the cache
        (20_000, 50, 30_000, 65, torch.float64),
        (400, 300, 300_000, 20, torch.float32),  # values beyond the cache: collected if permuted
        (400, 300, 150_000, 1, torch.float64),
    ],
)
def test_far_operands(name, m, k, nse, n, dtype, permuted):
    view = row_view(m, k, nse, torch.int32, permuted=permuted)
    check(name, *arguments(name, view, m, k, n, dtype))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("n", WIDTHS)
def test_products_of_a_part(dtype, n):
    """Into new rows, and added to all rows of a result or to some of them, in another order."""
    ptr, idx, _ = row_view(23, 19, 150, torch.int32 if n % 2 else torch.int64)
    val, x = dense(150, dtype=dtype), dense(19, n, dtype=dtype)
    check("untiled_spmm", ptr, idx, val, x)
    for rows, m in ((None, 23), (torch.randperm(30)[:23], 30)):
        check_in_place(dense(m, n, dtype=dtype), ptr, idx, rows, val, x)


@pytest.mark.parametrize(
    ("m", "k", "nse", "n"), [(200, 6000, 100_000, 96), (20_000, 50, 30_000, 112)]
)
def test_products_of_a_large_part(m, k, nse, n):
    """Where `spmm` copies x into tiles, and where it writes a result beyond the cache."""
    ptr, idx, _ = row_view(m, k, nse, torch.int32)
    val, x = dense(nse, dtype=torch.float32), dense(k, n, dtype=torch.float32)
    check("untiled_spmm", ptr, idx, val, x)
    check_in_place(dense(m, n, dtype=torch.float32), ptr, idx, None, val, x)
    check_in_place(
        dense(m, 2100, dtype=torch.float32),
        ptr,
        idx,
        torch.randperm(m),
        val,
        dense(k, 2100, dtype=torch.float32),
    )


def check_in_place(y, *args):
    """`add_spmm` as its reference does it, and the same on one thread and on two."""
    wide = torch.float64 if y.dtype == torch.float32 else y.dtype
    expected = y.to(wide, copy=True)
    REFERENCES["add_spmm"](
        expected, *(t.to(wide) if t is not None and t.dtype == y.dtype else t for t in args)
    )
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(y.clone())
        kernels.add_spmm(found[-1], *args)
    assert torch.equal(*found)
    rtol = ROUNDING.get(y.dtype, 1e-5) if y.dtype.is_floating_point or y.dtype.is_complex else 0
    assert_close(found[0], expected.to(y.dtype), rtol=2 * rtol, atol=min(20 * rtol, 4e-2))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("n", WIDTHS)
def test_values_are_written_into_a_part_of_others(dtype, n):
    """The same bits as in a result of its own, and nothing beside them."""
    view = row_view(23, 19, 150, torch.int32 if n % 2 else torch.int64, permuted=bool(n % 3))
    val, g, x = dense(150, dtype=dtype), dense(23, n, dtype=dtype), dense(19, n, dtype=dtype)
    both = kernels.spmm_sddmm(*view, val, g, x)
    for write, wanted in (
        (lambda out: kernels.sddmm_into(out, *view, g, x), kernels.sddmm(*view, g, x)),
        (lambda out: kernels.spmm_sddmm_into(out, *view, val, g, x), both[1]),
    ):
        all_values = torch.full((160,), 7, dtype=dtype)
        y = write(all_values[5:155])
        assert y is None or torch.equal(y, both[0])
        assert torch.equal(all_values[5:155], wanted)
        assert (all_values[:5] == 7).all()
        assert (all_values[155:] == 7).all()
    with pytest.raises(RuntimeError, match="out"):
        kernels.sddmm_into(all_values, *view, g, x)


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_references_that_write_into_given_memory(permuted):
    view, dtype = row_view(23, 19, 150, torch.int64, permuted=permuted), torch.float64
    val, g, x = dense(150, dtype=dtype), dense(23, 4, dtype=dtype), dense(19, 4, dtype=dtype)
    y, of_vals = REFERENCES["spmm_sddmm"](*view, val, g, x)
    for name, operands, result in (
        ("sddmm_into", (g, x), None),
        ("spmm_sddmm_into", (val, g, x), y),
    ):
        out = torch.empty(150, dtype=dtype)
        found = REFERENCES[name](out, *view, *operands)
        assert found is result or torch.equal(found, result)
        assert torch.equal(out, of_vals)


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize("n", [1, 5, 16, 70, 128])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.int64, torch.bfloat16])
def test_rows_that_are_split(dtype, n, permuted):
    m, k, nse = 300, 24_000, 120_000
    ptr, idx, perm = row_view(m, k, nse, torch.int32, permuted=permuted, dense_row=17)
    first, last = ptr[17].item(), ptr[18].item()
    ptr[18:40] = first + (last - first) // 3  # the row behind is long too, and then none has any
    ptr[40:] = ptr[40:].clamp(min=last)
    view = ptr, idx, perm
    val, g = dense(nse, dtype=dtype), dense(m, n, dtype=dtype)
    x = dense(k, n, dtype=dtype)
    if dtype != torch.bfloat16:  # whose long sums depend on their order
        check("spmm", *view, val, x)
    check("sddmm", *view, g, x)
    y, out = kernels.spmm_sddmm(*view, val, g, x)
    if dtype != torch.bfloat16:
        assert_close(y, REFERENCES["spmm"](*view, val, x))
    assert_close(out, REFERENCES["sddmm"](*view, g, x), rtol=ROUNDING.get(dtype, 1e-6), atol=0.1)


@pytest.mark.parametrize("name", ["spmm", "sddmm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [4, 8, 16, 24, 40])
def test_rows_of_x_that_begin_within_a_cache_line(name, dtype, n):
    """As those of an array of NumPy; each row is read often, or seldom."""
    for nse in (1000, 40):
        view = row_view(30, 50, nse, torch.int32)
        *others, x = arguments(name, view, 30, 50, n, dtype)
        memory = torch.empty(50 * n + 64 // x.element_size(), dtype=dtype)
        offset = (16 - memory.data_ptr()) % 64 // x.element_size()
        shifted = memory[offset : offset + 50 * n].view(50, n).copy_(x)
        assert shifted.data_ptr() % 64 == 16
        expected = getattr(kernels, name)(*others, x)
        assert_close(getattr(kernels, name)(*others, shifted), expected, rtol=0, atol=0)
        assert_close(shifted, x, rtol=0, atol=0)
        check(name, *others, shifted)


@pytest.mark.skipif(not kernels.compiled(), reason="the references add in torch's order")
@pytest.mark.parametrize("length", range(11))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m", [23, 24])
def test_a_row_has_one_sum_whatever_rows_are_beside_it(m, dtype, length):
    """Rows of one length in turn, and the same rows with others of random lengths between them."""
    k = 40
    ptr = torch.arange(m + 1, dtype=torch.int32) * length
    idx = torch.randint(k, (m * length,), dtype=torch.int32)
    val, x = dense(m * length, dtype=dtype), dense(k, 1, dtype=dtype)
    check("spmm", ptr, idx, None, val, x)
    others = torch.randint(12, (m,), dtype=torch.int32)
    between = torch.stack([torch.full_like(others, length), others], 1).reshape(-1)
    mixed = torch.cat([between.new_zeros(1), between.cumsum(0, dtype=torch.int32)])
    kept = torch.tensor([True, False]).repeat(m).repeat_interleave(between)
    more = torch.zeros(len(kept), dtype=torch.int32)
    numbers = torch.ones(len(kept), dtype=dtype)
    more[kept], numbers[kept] = idx, val
    y = kernels.spmm(mixed, more, None, numbers, x)[::2]
    assert_close(y, kernels.spmm(ptr, idx, None, val, x), rtol=0, atol=0)


def test_a_sum_of_negative_zeros_is_zero():
    ptr, idx = torch.arange(0, 25, 3, dtype=torch.int32), torch.zeros(24, dtype=torch.int32)
    val = torch.zeros(24, dtype=torch.float64)
    y = kernels.spmm(ptr, idx, None, val, -torch.ones(1, 1, dtype=torch.float64))
    assert not torch.signbit(y).any()


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
def test_shares_of_threads_are_even(workers, index):
    m, nse = 20_000, 140_000
    for dense_row in (None, 0, 7, m - 1):
        ptr, _, _ = row_view(m, m, nse, index, dense_row=dense_row)
        shares = kernels.shares(ptr, workers)
        assert shares.tolist() == REFERENCES["shares"](ptr, workers).tolist()
        assert shares[0].sum() == nse
        work = shares.sum(0)  # rows take time too
        assert work.max() <= 1.1 * work.double().mean()


@pytest.mark.parametrize("name", ["spmm", "sddmm"])
@pytest.mark.parametrize("n", [7, 33, 130])
def test_infinities_stay_in_their_column_and_sum(name, n):
    view = row_view(20, 15, 60, torch.int64)
    *view, first, x = arguments(name, view, 20, 15, n, torch.float32)
    x[3, n - 2] = torch.inf
    x[5, n // 2] = -torch.inf
    check(name, *view, first.abs(), x)


@pytest.mark.parametrize("n", [16, 48, 128])
def test_infinities_stay_in_their_column_of_both(n):
    view = row_view(20, 15, 60, torch.int64)
    *view, val, x = arguments("spmm", view, 20, 15, n, torch.float32)
    x[3, n - 2] = torch.inf
    y, _ = kernels.spmm_sddmm(*view, val.abs(), dense(20, n, dtype=torch.float32), x)
    assert_close(y, REFERENCES["spmm"](*view, val.abs(), x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factor", [1.0, 1.0078125, 0.0009765625])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 64])
def test_every_16_bit_float_is_converted_and_rounded(dtype, factor, n):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).reshape(-1, n)
    m = len(x)
    ptr, idx = torch.arange(m + 1), torch.arange(m)
    expected = (x.float() * factor).to(dtype)
    actual = kernels.spmm(ptr, idx, None, torch.full((m,), factor, dtype=dtype), x)
    assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    if n == 1:
        actual = kernels.sddmm(ptr, idx, None, torch.full((m, 1), factor, dtype=dtype), x)
        assert_close(actual, expected[:, 0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["spmm", "sddmm"])
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_op_is_registered_as_torch_expects(name, permuted):
    view = row_view(4, 3, 6, torch.int32, permuted=permuted)
    torch.library.opcheck(getattr(kernels, name), arguments(name, view, 4, 3, 9, torch.float32))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_a_vector_is_a_matrix_of_one_column(dtype, permuted):
    for sizes, index in (
        ((23, 19, 150), torch.int32),
        ((23, 19, 150), torch.int64),
        ((0, 3, 0), torch.int32),
    ):
        view = row_view(*sizes, index, permuted=permuted)
        val, x = dense(sizes[2], dtype=dtype), dense(sizes[1], dtype=dtype)
        y = kernels.spmm(*view, val, x)
        assert y.shape == (sizes[0],)
        assert torch.equal(y, kernels.spmm(*view, val, x[:, None])[:, 0])
    torch.library.opcheck(kernels.spmm, (*view, val, x))


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused():
    ptr, idx, _ = row_view(4, 3, 6, torch.int32)
    val, x = dense(6, dtype=torch.float32), dense(3, 2, dtype=torch.float32)
    for args, message in [
        ((ptr, idx.long(), None, val, x), "`idx` has dtype Long; the call needs Int"),
        ((ptr, idx, None, val.double(), x), "`val` has dtype Double; the call needs Float"),
        ((ptr, idx, None, val[1:].clone(), x), "`val` has size 5 in dimension 0, not 6"),
        ((ptr, idx, None, val, x.T), "`x` is not contiguous"),
        ((ptr, idx, None, val.bool(), x.bool()), "dtype Bool are not supported"),
        ((ptr, idx.long(), None, val, x[:, 0]), "`idx` has dtype Long; the call needs Int"),
        ((ptr, idx, None, val, x[:, 0]), "`x` is not contiguous"),
        ((ptr, idx, None, val.double(), x[:, 0].clone()), "`val` has dtype Double"),
        ((ptr, idx, None, val[1:].clone(), x[:, 0].clone()), "`val` has size 5 in dimension 0"),
        ((ptr, idx, None, val, x[0, 0]), "`x` has 0 dimensions, not 2"),
        ((ptr, idx, None, val, x[None]), "`x` has 3 dimensions, not 2"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            kernels.spmm(*args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("n", [0, 1, 4, 16, 17, 48, 112, 128, 272])
@pytest.mark.parametrize("permuted", [False, True])
def test_both_in_one_pass(dtype, n, permuted):
    view = row_view(37, 29, 400, torch.int32, permuted=permuted, dense_row=5)
    val, g, x = dense(400, dtype=dtype), dense(37, n, dtype=dtype), dense(29, n, dtype=dtype)
    torch.set_num_threads(1)
    y, out = kernels.spmm_sddmm(*view, val, g, x)
    rtol = ROUNDING.get(dtype, 1e-5)
    atol = min(10 * rtol, 1e-3)
    assert_close(y, REFERENCES["spmm"](*view, val, x), rtol=rtol, atol=atol)
    assert_close(out, REFERENCES["sddmm"](*view, g, x), rtol=rtol, atol=atol)
    torch.set_num_threads(2)
    again = kernels.spmm_sddmm(*view, val, g, x)
    assert torch.equal(again[0], y)
    assert torch.equal(again[1], out)


@pytest.mark.parametrize(
    ("n", "dtype"), [(16, torch.float32), (144, torch.float32), (8, torch.double)]
)
def test_both_in_one_pass_of_values_beyond_the_cache(n, dtype):
    m, k, nse = 500, 300, 300_000
    view = row_view(m, k, nse, torch.int32, permuted=True, dense_row=7)
    val, g, x = dense(nse, dtype=dtype), dense(m, n, dtype=dtype), dense(k, n, dtype=dtype)
    torch.set_num_threads(1)
    y, out = kernels.spmm_sddmm(*view, val, g, x)
    exact = REFERENCES["spmm"](*view, val.double(), x.double())
    assert_close(y.double(), exact, rtol=1e-4, atol=1e-2)
    assert_close(out, REFERENCES["sddmm"](*view, g, x), rtol=1e-4, atol=1e-3)
    torch.set_num_threads(2)
    again = kernels.spmm_sddmm(*view, val, g, x)
    assert torch.equal(again[0], y)
    assert torch.equal(again[1], out)


def test_both_in_one_pass_without_entries():
    ptr, idx = torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    x = torch.randn(5, 16)
    y, out = kernels.spmm_sddmm(ptr, idx, None, x.new_zeros(0), torch.randn(3, 16), x)
    assert torch.equal(y, torch.zeros(3, 16))
    assert out.shape == (0,)
