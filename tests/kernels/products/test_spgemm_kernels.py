"""The sparse-sparse kernels against their references and against dense products."""

from types import SimpleNamespace

import pytest
import torch

from spgrad import kernels
from spgrad.kernels import REFERENCES

INDEX_DTYPES = [torch.int32, torch.int64]
INEXACT = {
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
}
EXACT = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]

pytestmark = pytest.mark.usefixtures("poisoned")

# (m, k, n, entries of A, entries of B)
SHAPES = {
    "square": (6, 6, 6, 15, 15),
    "m = 0": (0, 4, 5, 0, 9),
    "k = 0": (4, 0, 5, 0, 0),
    "n = 0": (4, 5, 0, 9, 0),
    "no entries": (4, 5, 6, 0, 0),
    "no entries in A": (4, 5, 6, 0, 8),
    "one by one": (1, 1, 1, 2, 2),
    "outer": (20, 1, 30, 20, 30),
    "inner": (1, 40, 1, 30, 30),
    "wide": (5, 6, 2_000_000, 12, 40),
    "rows in a wide range": (4, 30, 700_000, 100, 20_000),
    "short rows in a wide range": (4, 30, 700_000, 40, 2000),
    "few columns in a wide range": (4, 30, 2_000_000, 40, 300),
    "empty rows": (300, 300, 300, 40, 40),
    "dense": (20, 20, 20, 800, 800),
    "threads": (800, 400, 600, 9000, 4000),
}


# Every shape in one dtype, every dtype in three shapes.
EVERY_SHAPE = [(shape, torch.float64) for shape in SHAPES]
EVERY_DTYPE = [
    (shape, dtype)
    for shape in ("square", "dense", "threads")
    for dtype in [*INEXACT, *EXACT]
    if dtype != torch.float64
]


def operand(m, n, nse, index_dtype, dtype, *, permuted=False, dense_row=False):
    """A row view (ptr, idx, perm, val) with unsorted and repeated columns."""
    row = torch.randint(max(m, 1), (nse,))
    if dense_row:
        row[nse // 2 :] = m // 2
    row = row.sort().values
    ptr = torch.searchsorted(row, torch.arange(m + 1)).to(index_dtype)
    idx = torch.randint(max(n, 1), (nse,)).to(index_dtype)
    perm = torch.randperm(nse).to(index_dtype) if permuted else None
    val = (
        torch.randn(nse, dtype=dtype)
        if dtype in INEXACT
        else torch.randint(0, 100, (nse,)).to(dtype)
    )
    return ptr, idx, perm, val


def dense(ptr, idx, perm, val, n):
    """The matrix of a row view in the widest type of its kind."""
    if val.dtype in EXACT:
        val = val.long()
    else:
        val = val.to(torch.complex128 if val.is_complex() else torch.float64)
    out = val.new_zeros(len(ptr) - 1, n)
    at = REFERENCES["expand"](ptr, len(idx)).long(), idx.long()
    return out.index_put_(at, val if perm is None else val[perm.long()], accumulate=True)


def assert_close(actual, expected, scale):
    """Close, relative to the sums of the products' magnitudes."""
    assert actual.dtype == expected.dtype
    if actual.dtype in EXACT:
        assert torch.equal(actual, expected)
    else:
        error = (actual.to(torch.complex128) - expected.to(torch.complex128)).abs()
        assert bool((error <= INEXACT[actual.dtype] * (1 + scale)).all())


def both_threads(name, *args):
    """The op's result, the same to the bit on one thread and on two.

    Not so the references: torch rounds a complex product differently where it ends a vector loop,
    and that depends on the threads.
    """
    results = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        results.append(getattr(kernels, name)(*args))
    for two, one in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        assert not kernels.compiled() or torch.equal(one.view(torch.uint8), two.view(torch.uint8))
    return results[0]


def pattern(A, B, n):
    return both_threads("spgemm", *A, *B, n)[:2]


def ascending(view, n):
    """The view with the columns of each row in ascending order, unless they are permuted."""
    ptr, idx, perm, val = view
    if perm is not None:
        return view
    row = REFERENCES["expand"](ptr, len(idx)).long()
    return ptr, idx[torch.argsort(row * max(n, 1) + idx)], None, val


@pytest.mark.parametrize("order", ["permuted", "any", "ascending", "dense row"])
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(("shape", "dtype"), EVERY_SHAPE + EVERY_DTYPE)
def test_product(shape, index_dtype, dtype, order):
    m, k, n, nse_a, nse_b = SHAPES[shape]
    options = {"permuted": order == "permuted", "dense_row": order == "dense row"}
    A = operand(m, k, nse_a, index_dtype, dtype, **options)
    B = operand(k, n, nse_b, index_dtype, dtype, **options)
    if order == "ascending":
        B = ascending(B, n)
    ptr, idx, val = both_threads("spgemm", *A, *B, n)
    expected = REFERENCES["spgemm"](*A, *B, n)
    torch.testing.assert_close((ptr, idx), expected[:2], rtol=0, atol=0)
    scale = 0
    if dtype in INEXACT:
        A_abs, B_abs = ((*view[:3], view[3].abs().double()) for view in (A, B))
        scale = REFERENCES["spgemm"](*A_abs, *B_abs, n)[2]
    assert_close(val, expected[2], scale)
    # the values on a known pattern are formed in the same order
    assert not kernels.compiled() or torch.equal(
        kernels.spgemm_values(ptr, idx, *A, *B, n).view(torch.uint8), val.view(torch.uint8)
    )


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 4095, 4096, 4097, 10_000])
def test_product_has_every_column_at_the_ends_of_the_looks(columns):
    """A times one, of rows with a few, many and all columns, is A."""
    for count in {1, min(70, columns), columns}:
        idx = torch.randperm(columns)[:count].sort().values
        B = torch.tensor([0, count]), idx, None, torch.arange(1.0, count + 1)
        one = torch.tensor([0, 1, 1, 2]), torch.zeros(2, dtype=torch.int64), None, torch.ones(2)
        ptr, found, val = kernels.spgemm(*one, *B, columns)
        assert ptr.tolist() == [0, count, count, 2 * count]
        assert torch.equal(found, idx.repeat(2))
        assert torch.equal(val, B[3].repeat(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("columns", [3, 40, 3000])
@pytest.mark.parametrize("products", [1, 8, 15, 16, 17, 31, 32, 33, 64, 65])
def test_rows_of_few_and_many_products(products, columns, dtype):
    """In rows of B of any length, whose columns repeat, also at the end of its memory."""
    ends = torch.randint(products + 1, (40, 4)).sort(1).values
    ends[:, -1] = products
    length = ends.diff(dim=1, prepend=torch.zeros(40, 1, dtype=torch.int64)).flatten()
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)]).int()
    nse = int(ptr[-1])
    val = torch.randn(nse).mul(9).to(dtype)
    B = ptr, torch.randint(columns, (nse,)).int(), None, val
    A = (
        torch.arange(0, 161, 4).int(),
        torch.arange(160).int(),
        None,
        torch.randn(160).mul(9).to(dtype),
    )
    for view in (B, ascending(B, columns)):
        ptr, idx, val = kernels.spgemm(*A, *view, columns)
        expected = REFERENCES["spgemm"](*A, *view, columns)
        torch.testing.assert_close((ptr, idx), expected[:2], rtol=0, atol=0)
        again = kernels.spgemm_values(ptr, idx, *A, *view, columns)
        assert not kernels.compiled() or torch.equal(again.view(torch.uint8), val.view(torch.uint8))
        product = dense(*A, 160).double() @ dense(*view, columns).double()
        at = kernels.expand(ptr, len(idx)).long(), idx.long()
        if dtype.is_floating_point:
            scale = dense(*A, 160).abs() @ dense(*view, columns).abs()
            assert_close(val, product[at].to(dtype), scale[at])
        else:
            assert torch.equal(val.double(), product[at])


def test_product_of_which_much_is_listed_before_the_rest_is_known():
    """A hub first, then empty rows, then equal ones: no guess at the size fits."""
    k = 300
    rows = torch.cat([torch.full((k,), 0), torch.arange(k, 2 * k)])
    idx = torch.arange(k).repeat(2)
    ptr = torch.searchsorted(rows, torch.arange(2 * k + 1))
    B = torch.arange(k + 1) * 40, torch.randint(9000, (k * 40,)), None, torch.randn(k * 40).double()
    A = ptr, idx, None, torch.randn(2 * k).double()
    found, expected = kernels.spgemm(*A, *B, 9000), REFERENCES["spgemm"](*A, *B, 9000)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(("shape", "dtype"), EVERY_SHAPE + EVERY_DTYPE)
def test_values(shape, index_dtype, dtype, permuted):
    m, k, n, nse_a, nse_b = SHAPES[shape]
    A = operand(m, k, nse_a, index_dtype, dtype, permuted=permuted)
    B = operand(k, n, nse_b, index_dtype, dtype, permuted=permuted)
    C = pattern(A, B, n)
    actual = both_threads("spgemm_values", *C, *A, *B, n)
    expected = REFERENCES["spgemm_values"](*C, *A, *B, n)
    scale = 0
    if dtype in INEXACT:
        A_abs, B_abs = ((*view[:3], view[3].abs().double()) for view in (A, B))
        scale = REFERENCES["spgemm_values"](*C, *A_abs, *B_abs, n)
    assert_close(actual, expected, scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.int64])
def test_values_equal_the_dense_product(dtype):
    A = operand(30, 20, 90, torch.int64, dtype, permuted=True)
    B = operand(20, 25, 80, torch.int64, dtype, permuted=True)
    C = pattern(A, B, 25)
    val = kernels.spgemm_values(*C, *A, *B, 25)
    torch.testing.assert_close(dense(*C, None, val, 25), dense(*A, 20) @ dense(*B, 25))


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_values_on_a_part_of_the_pattern(index_dtype):
    A = operand(50, 40, 300, index_dtype, torch.float64)
    B = operand(40, 60, 300, index_dtype, torch.float64)
    # One column in each row, the columns unsorted in the second pattern; some hold no product.
    ptr = torch.arange(51, dtype=index_dtype)
    product = dense(*A, 40) @ dense(*B, 60)
    for idx in (torch.randint(60, (50,)), torch.arange(50).flip(0)):
        C = ptr, idx.to(index_dtype)
        val = both_threads("spgemm_values", *C, *A, *B, 60)
        torch.testing.assert_close(val, product[torch.arange(50), idx])
    two = ptr * 2, torch.tensor([59, 3]).repeat(50).to(index_dtype)
    val = kernels.spgemm_values(*two, *A, *B, 60)
    torch.testing.assert_close(val.view(50, 2), product[:, [59, 3]])


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(("shape", "dtype"), EVERY_SHAPE + EVERY_DTYPE)
def test_masked(shape, index_dtype, dtype, permuted):
    m, k, n, nse, nse_b = SHAPES[shape]
    mask = operand(m, k, nse, index_dtype, dtype, permuted=permuted)[:3]
    C = operand(m, n, 3 * nse if n else 0, index_dtype, dtype, permuted=permuted)
    B = operand(k, n, nse_b, index_dtype, dtype, permuted=permuted)
    actual = both_threads("masked_spgemm", *mask, *C, *B, n)
    expected = REFERENCES["masked_spgemm"](*mask, *C, *B, n)
    scale = 0
    if dtype in INEXACT:
        C_abs, B_abs = ((*view[:3], view[3].abs().double()) for view in (C, B))
        scale = REFERENCES["masked_spgemm"](*mask, *C_abs, *B_abs, n)
    assert_close(actual, expected, scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.int64])
def test_masked_equals_the_dense_product(dtype):
    ptr, idx, perm, _ = operand(30, 20, 90, torch.int64, dtype, permuted=True)
    C = operand(30, 25, 200, torch.int64, dtype, permuted=True)
    B = operand(20, 25, 80, torch.int64, dtype, permuted=True)
    out = kernels.masked_spgemm(ptr, idx, perm, *C, *B, 25)
    product = dense(*C, 25) @ dense(*B, 25).T
    torch.testing.assert_close(out[perm], product[kernels.expand(ptr, 90), idx])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("op", ["op", "reference"])
def test_masked_multiplies_no_entry_that_is_not_there(op, dtype):
    """An infinity of B beside an entry that C lacks is not 0 * inf; one that C has as 0 is."""
    ptr, idx = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1])
    C = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]), None, torch.tensor([2, 0, 1], dtype=dtype)
    inf, nan = float("inf"), float("nan")
    B = (
        torch.tensor([0, 2, 4]),
        torch.tensor([0, 2, 1, 2]),
        None,
        torch.tensor([3, inf, inf, nan], dtype=dtype),
    )
    masked = kernels.masked_spgemm if op == "op" else REFERENCES["masked_spgemm"]
    out = masked(ptr, idx, None, *C, *B, 3)
    assert out[[0, 2, 3]].real.tolist() == [6, 3, 0]
    assert bool(out[1].isnan())


def test_the_reference_refuses_more_entries_than_its_pointers_count(monkeypatch):
    """A product of 2^31 entries takes too much memory for a test, so int32 has another limit."""
    A = operand(6, 5, 14, torch.int32, torch.float32)
    B = operand(5, 7, 12, torch.int32, torch.float32)
    nse = REFERENCES["spgemm"](*A, *B, 7)[1].numel()
    monkeypatch.setattr(torch, "iinfo", lambda dtype: SimpleNamespace(max=nse))
    assert REFERENCES["spgemm"](*A, *B, 7)[1].numel() == nse
    monkeypatch.setattr(torch, "iinfo", lambda dtype: SimpleNamespace(max=nse - 1))
    with pytest.raises(RuntimeError, match=rf"{nse} entries, more than torch\.int32 pointers"):
        REFERENCES["spgemm"](*A, *B, 7)


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("permuted", [False, True])
def test_opcheck(permuted, index_dtype):
    A = operand(6, 5, 14, index_dtype, torch.float32, permuted=permuted)
    B = operand(5, 7, 12, index_dtype, torch.float32, permuted=permuted)
    *C, val = kernels.spgemm(*A, *B, 7)
    torch.library.opcheck(kernels.spgemm, (*A, *B, 7))
    torch.library.opcheck(kernels.spgemm_values, (*C, *A, *B, 7))
    torch.library.opcheck(kernels.masked_spgemm, (*A[:3], *C, None, val, *B, 7))


def test_wrong_arguments_are_refused():
    if not kernels.compiled():
        pytest.skip("references take what torch takes")
    A = operand(6, 5, 14, torch.int64, torch.float32)
    B = operand(5, 7, 12, torch.int64, torch.float32)
    C = pattern(A, B, 7)
    ptr, idx, perm, val = B
    for bad in (
        (ptr.int(), idx.int(), perm, val),
        (ptr, idx, perm, val.double()),
        (ptr, idx, perm, val[1:]),
        (ptr, idx, idx[1:], val),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            kernels.spgemm_values(*C, *A, *bad, 7)
        with pytest.raises(RuntimeError, match="spgrad"):
            kernels.spgemm(*A, *bad, 7)
        with pytest.raises(RuntimeError, match="spgrad"):
            kernels.masked_spgemm(*A[:3], *C, None, torch.zeros(len(C[1])), *bad, 7)
    with pytest.raises(RuntimeError, match="Bool"):
        kernels.spgemm_values(*C, *A[:3], A[3].bool(), *B[:3], B[3].bool(), 7)
