"""The native kernels against their references, on the operands that torch refuses or gets wrong."""

import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from operands import COMPLEX, FLOATS, INTEGERS, assert_near, dense, row_view
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spgrad.kernels import NATIVE, REFERENCES
from spgrad.kernels.native.common import torch_csr
from spgrad.kernels.native.products import spgemm, spgemm_values

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = [*FLOATS, *COMPLEX, *INTEGERS]
INDEX_DTYPES = [torch.int32, torch.int64]


def check(name, *args) -> Any:
    """The native kernel's results: near the reference's, and the same to the bit on two threads."""
    torch.set_num_threads(1)
    actual, expected = as_tuple(NATIVE[name](*args)), as_tuple(REFERENCES[name](*args))
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert_near(a, e, scale=30.0)
    torch.set_num_threads(2)
    assert_close(as_tuple(NATIVE[name](*args)), actual, rtol=0, atol=0, equal_nan=True)
    return actual


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 33])
def test_products_of_every_dtype(dtype, index, n):
    """Columns repeat in a row, and stand in any order; some rows are empty."""
    for permuted in (False, True):
        view = row_view(40, 19, 60, index, permuted=permuted, dense_row=7)
        check("spmm", *view, dense(60, dtype=dtype), dense(19, n, dtype=dtype))
        check("sddmm", *view, dense(40, n, dtype=dtype), dense(19, n, dtype=dtype))
        if n == 1:
            check("spmm", *view, dense(60, dtype=dtype), dense(19, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
def test_segments_without_entries(reduce, dtype):
    ptr, val = torch.tensor([0, 0, 2, 2]), torch.tensor([3, 4]).to(dtype)
    found = check("segment_reduce", ptr, None, val, reduce)[0]
    assert found[0] == found[2] == (reduce == "prod")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_products_without_mkl(dtype, monkeypatch):
    """torch then refuses what is left to the references here: that is not called."""
    monkeypatch.setattr(torch_csr, "_MKL", False)
    args = factors("distinct", torch.int32, dtype)

    def refuse(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(torch, "mv", refuse)
    if dtype.is_complex:
        monkeypatch.setattr(torch, "mm", refuse)
    check("spmm", *args[:4], dense(16, dtype=dtype))
    check("spmm", *args[:4], dense(16, 1, dtype=dtype))
    check("spmm", *args[:4], dense(16, 3, dtype=dtype))
    check("sddmm", *args[:3], dense(20, 3, dtype=dtype), dense(16, 3, dtype=dtype))
    monkeypatch.setattr(torch, "mm", refuse)
    check("spgemm", *args, 18)


@pytest.mark.parametrize("name", ["spmm", "sddmm"])
def test_operands_may_require_gradients(name):
    """No kernel records a graph: derivatives are made of operations."""
    view = row_view(20, 15, 60, torch.int64)
    first = dense(*((60,) if name == "spmm" else (20, 3)), dtype=torch.float32).requires_grad_()
    (out,) = check(name, *view, first, dense(15, 3, dtype=torch.float32).requires_grad_())
    assert not out.requires_grad


def test_more_entries_than_elements():
    """torch drops those above m k."""
    for count, permuted in ((60, False), (60, True), (21, False)):
        view = row_view(4, 5, count, torch.int32, permuted=permuted)
        x = dense(5, 3, dtype=torch.float32)
        check("spmm", *view, dense(count, dtype=torch.float32), x)
        check("sddmm", *view, dense(4, 3, dtype=torch.float32), x)


def test_products_of_infinities():
    ptr, idx, perm = row_view(20, 15, 60, torch.int64)
    val, x = dense(60, dtype=torch.float32), dense(15, 5, dtype=torch.float32)
    val[:20], x[3, 2], x[4, 1], x[5] = 0.0, torch.inf, torch.nan, -torch.inf
    for columns in (x, x[:, 2:3].contiguous()):
        check("spmm", ptr, idx, perm, val, columns)
        check("sddmm", ptr, idx, perm, dense(20, columns.shape[1], dtype=torch.float32), columns)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("width", [None, 0, 1, 3])
def test_segments_of_every_dtype(dtype, reduce, width):
    ptr, _, perm = row_view(30, 5, 70, torch.int32, permuted=True)
    val = dense(*((70,) if width is None else (70, width)), dtype=dtype)
    check("segment_reduce", ptr, perm, val, reduce)
    check("segment_reduce", ptr.long(), None, val, reduce)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod"])
def test_segments_of_complex_numbers(dtype, reduce):
    ptr, _, perm = row_view(30, 5, 70, torch.int32, permuted=True)
    check("segment_reduce", ptr, perm, dense(70, dtype=dtype), reduce)
    check("segment_reduce", ptr, None, dense(70, 3, dtype=dtype), reduce)


def test_extrema_of_nan():
    val = torch.tensor([1.0, torch.nan, 3.0, -torch.inf, torch.inf, -1.0])
    ptr = torch.tensor([0, 3, 3, 4, 6])
    for reduce in ("amax", "amin", "sum"):
        check("segment_reduce", ptr, None, val, reduce)


def test_long_sums_keep_their_digits():
    """torch adds one element after the other."""
    val = torch.full((1_000_000,), 0.1)
    total = NATIVE["segment_reduce"](torch.tensor([0, len(val)]), None, val, "sum")
    assert total.item() == pytest.approx(val.double().sum().item(), rel=1e-7)


def distinct_view(m, k, nse, index):
    """A row view whose columns ascend and do not repeat."""
    place = torch.randperm(m * k)[:nse].sort().values
    row = place.div(k, rounding_mode="floor")
    ptr = torch.searchsorted(row, torch.arange(m + 1))
    return ptr.to(index), (place % k).to(index), torch.randperm(nse).to(index)


def factors(kind, index, dtype) -> tuple[Any, ...]:
    if kind == "distinct":
        a, b = distinct_view(20, 16, 90, index), distinct_view(16, 18, 80, index)
    else:  # torch's own product of these ends the process
        a = row_view(20, 16, 90, index, permuted=True)
        b = row_view(16, 18, 80, index, permuted=True)
    return *a, dense(90, dtype=dtype), *b, dense(80, dtype=dtype)


@pytest.mark.parametrize("dtype", [*FLOATS[:3], *COMPLEX, *INTEGERS[:1]], ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["distinct", "repeated"])
@pytest.mark.parametrize("at_a_time", [1, 40, 1 << 20])
def test_sparse_sparse_products(dtype, index, kind, at_a_time, monkeypatch):
    monkeypatch.setattr(spgemm, "_SORTED", at_a_time)
    monkeypatch.setattr(spgemm_values, "_PAIRS", at_a_time)
    args = factors(kind, index, dtype)
    ptr, idx, val = check("spgemm", *args, 18)
    check("spgemm_values", ptr, idx, *args, 18)
    other = row_view(20, 18, 100, index)[:2]  # elements that the product has, and that it lacks
    check("spgemm_values", *other, *args, 18)
    check("masked_spgemm", *args[:3], ptr, idx, None, val, *args[4:], 18)
    scattered = row_view(20, 18, 70, index, permuted=True)
    check("masked_spgemm", *args[:3], *scattered, dense(70, dtype=dtype), *args[4:], 18)


def test_sparse_sparse_product_of_more_elements_than_int32_numbers():
    """Its entries are sorted by their place in the product, which is then no int32."""
    m = 50_000
    step = torch.arange(m + 1, dtype=torch.int32)
    one = step, step[:m], None, torch.ones(m)
    both = torch.stack([torch.zeros(m, dtype=torch.int32), step[1:]], 1).reshape(-1)
    right = 2 * step, both, None, dense(2 * m, dtype=torch.float32)
    _, idx, _ = check("spgemm", *one, *right, m + 1)
    assert torch.equal(idx, both)


@pytest.mark.skipif(not torch_csr.by_library(torch.device("cpu")), reason="torch is without MKL")
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
def test_products_of_rows_that_ascend_do_without_the_references(index, monkeypatch):
    """The references keep an entry for each pair of factors."""
    args = factors("distinct", index, torch.float32)
    c = REFERENCES["spgemm"](*args, 18)

    def called(*args):
        raise AssertionError("a reference is called")

    for name in ("spgemm", "spgemm_values", "masked_spgemm"):
        monkeypatch.setitem(REFERENCES, name, called)
    assert_near(NATIVE["spgemm"](*args, 18)[2], c[2])
    assert_near(NATIVE["spgemm_values"](*c[:2], *args, 18), c[2])
    NATIVE["masked_spgemm"](*args[:3], *c[:2], None, c[2], *args[4:], 18)


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
def test_values_of_a_product_without_elements(index):
    a = (
        torch.zeros(21, dtype=index),
        torch.zeros(0, dtype=index),
        None,
        dense(0, dtype=torch.float32),
    )
    b = *distinct_view(16, 18, 80, index), dense(80, dtype=torch.float32)
    (found,) = check("spgemm_values", *row_view(20, 18, 100, index)[:2], *a, *b, 18)
    assert torch.equal(found, torch.zeros(100, dtype=found.dtype))


def test_masked_product_meets_no_implied_zero():
    args = factors("distinct", torch.int64, torch.float32)
    args[7][5] = torch.inf
    c = *distinct_view(20, 18, 30, torch.int64), dense(30, dtype=torch.float32)
    (out,) = check("masked_spgemm", *args[:3], *c, *args[4:], 18)
    assert not out.isnan().any()


@pytest.mark.parametrize("name", ["sort_coo", "coalesce"])
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("length", [7, 2**31 - 1, 2**40])  # three of them exceed int64
def test_sorts(name, index, length):
    if length > torch.iinfo(index).max:
        index = torch.int64
    indices = torch.randint(min(length, 2**62), (3, 60), dtype=index)
    indices = torch.cat([indices, indices[:, ::2]], 1)
    check(name, indices, (length,) * 3)
    check(name, indices[:, :0], (length,) * 3)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.layout == torch.strided:
                self.elements = max(self.elements, t.numel())
        return out


def test_no_product_forms_a_row_for_every_entry():
    m, nse, n = 50, 2000, 64
    view = row_view(m, m, nse, torch.int32, permuted=True)
    g, x = dense(m, n, dtype=torch.float16), dense(m, n, dtype=torch.float16)
    with Largest() as largest:
        NATIVE["spmm"](*view, dense(nse, dtype=torch.float16), x)
        NATIVE["sddmm"](*view, g, x)
    assert largest.elements <= max(nse, m * n)


@pytest.mark.parametrize(("variable", "backend"), [("SPGRAD_NO_EXT", "native"), ("", "reference")])
def test_without_the_library_torch_answers_and_says_nothing(variable, backend):
    """torch warns that its CSR tensors are in beta; nobody here has asked for one."""
    code = (
        "import spgrad, torch; A = spgrad.sparse_csr_tensor([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2));"
        "print(A @ torch.ones(2), spgrad.kernels.backend())"
    )
    off = {"SPGRAD_NO_EXT": "1", "SPGRAD_NO_NATIVE": "" if variable else "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(
        command, env={**os.environ, **off}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["tensor([2.,", "3.])", backend]
    assert not ran.stderr


@pytest.mark.parametrize(
    ("rows", "ascend"),
    [
        ([[2, 5], [1, 3], [], [0], [0]], True),
        ([[], [4], []], True),
        ([[], []], True),
        ([[0, 1], [3, 3], [4]], False),
        ([[0, 1], [3, 2]], False),
        ([[1, 0], [3]], False),
    ],
)
def test_the_indices_of_each_row_are_compared_and_not_those_of_two_rows(rows, ascend):
    ptr = torch.tensor([0, *itertools.accumulate(map(len, rows))], dtype=torch.int32)
    idx = torch.tensor([i for row in rows for i in row], dtype=torch.int32)
    assert bool(torch_csr.rows_ascend(ptr, idx)) == ascend


@pytest.mark.parametrize("name", ["sort_coo", "coalesce"])
def test_indices_without_sparse_dimensions(name):
    check(name, torch.zeros(0, 3, dtype=torch.int64), ())


def test_products_with_more_columns_than_int64_numbers():
    """4 rows of 2^62 columns: a place in the product is no int64."""
    ptr, idx = torch.arange(5), torch.tensor([0, 1, 0, 1])
    right = torch.tensor([0, 1, 2]), torch.tensor([3, 2**62 - 1])
    places = torch.arange(5), torch.tensor([3, 2**62 - 1, 3, 2**62 - 1])
    operands = (*places, ptr, idx, None, torch.ones(4), *right, None, torch.tensor([2.0, 5.0]))
    (found,) = check("spgemm_values", *operands, 2**62)
    assert found.tolist() == [2, 5, 2, 5]


def triangle(m, index, dtype, *, permuted):
    """A square matrix whose rows are sorted, with a diagonal that divides well."""
    matrix = torch.randn(m, m, dtype=dtype) * (torch.rand(m, m) < 0.3)
    matrix += torch.diag(torch.rand(m).to(dtype) + 2 - matrix.diagonal())
    at = matrix.to_sparse_csr()
    ptr, idx, val = at.crow_indices().to(index), at.col_indices().to(index), at.values()
    if not permuted:
        return ptr, idx, None, val
    perm = torch.randperm(len(val))
    return ptr, idx, perm.to(index), torch.empty_like(val).index_copy_(0, perm, val)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *COMPLEX], ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("permuted", [False, True])
def test_substitution(dtype, index, permuted):
    for m, n in [(0, 2), (1, 1), (23, 0), (23, 1), (23, 3)]:
        view = triangle(m, index, dtype, permuted=permuted)
        b = torch.randn(n, m, dtype=dtype).T
        for how in itertools.product((True, False), repeat=3):
            x, failed = check("solve_triangular", *view, b, *how)
            assert x.is_contiguous()
            assert failed.tolist() == [-1]


@pytest.mark.parametrize("transpose", [False, True])
def test_substitution_with_a_zero_pivot(transpose):
    ptr, idx, _, val = triangle(9, torch.int32, torch.float64, permuted=False)
    row = torch.repeat_interleave(torch.arange(9), ptr.diff())
    val[(row == idx) & (row >= 4)] = 0
    b = torch.ones(9, 2, dtype=torch.float64)
    kernel = NATIVE["solve_triangular"]
    x, failed = kernel(ptr, idx, None, val, b, False, False, transpose)
    assert (
        failed.tolist()
        == REFERENCES["solve_triangular"](ptr, idx, None, val, b, False, False, transpose)[
            1
        ].tolist()
    )
    assert failed.tolist() == [4]
    assert x.isnan().all()
    assert kernel(ptr, idx, None, val, b, False, True, transpose)[0].isfinite().all()


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("without", [0, 1, 2])
def test_substitution_where_a_row_has_no_pivot(without, index):
    """MKL ends the process where the first row of a lower triangle is empty."""
    at = torch.ones(3, 3, dtype=torch.bool).tril()
    at[without, without] = False
    row, idx = at.nonzero().T
    ptr = torch.searchsorted(row, torch.arange(4)).to(index)
    view = ptr, idx.to(index), None, torch.full((5,), 2.0)
    for upper, transpose in itertools.product((False, True), repeat=2):
        _, failed = check("solve_triangular", *view, torch.ones(3, 2), upper, False, transpose)
        assert failed.tolist() == [without]


def test_substitution_where_torch_has_none(monkeypatch):
    """It is left to the reference without MKL, and where int32 cannot count."""
    view = triangle(9, torch.int64, torch.float64, permuted=False)
    b = torch.randn(9, 2, dtype=torch.float64)

    def refuse(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(torch, "triangular_solve", refuse)
    for name, value in [("_MKL", False), ("_INT32", 9)]:
        with monkeypatch.context() as within:
            within.setattr(torch_csr, name, value)
            check("solve_triangular", *view, b, True, False, False)
