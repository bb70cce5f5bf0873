"""Kernels of triangular substitution and incomplete factorisation, against dense torch."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
TOLERANCE = {torch.float32: 1e-4, torch.complex64: 1e-4}
WIDTHS = [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 130]


def system(m, density, dtype, index_dtype=torch.int32, *, permuted=False):
    """A dense matrix with a dominant diagonal, and its row view."""
    at = (torch.rand(m, m) < density) | torch.eye(m, dtype=torch.bool)
    A = torch.randn(m, m, dtype=dtype) * at / max(m * density, 1)
    A = A + 2 * torch.eye(m, dtype=dtype)
    row, column = at.nonzero().T
    val = A[row, column]
    perm = None
    if permuted:
        perm = torch.randperm(len(val))
        val = torch.empty_like(val).index_copy_(0, perm, val)
        perm = perm.to(index_dtype)
    ptr = torch.searchsorted(row, torch.arange(m + 1))
    return A, (ptr.to(index_dtype), column.to(index_dtype), perm, val)


def check(A, view, b, *, upper, unit):
    """With the triangle and with its transpose."""
    T, bound = A.triu() if upper else A.tril(), TOLERANCE.get(b.dtype, 1e-11)
    for transpose, matrix in ((False, T), (True, T.mT)):
        x, failed = on_every_thread("solve_triangular", *view, b, upper, unit, transpose)
        options = {"upper": upper != transpose, "unitriangular": unit}
        wanted = torch.linalg.solve_triangular(matrix, b, **options)
        assert_close(x, wanted, rtol=bound, atol=bound)
        assert failed.tolist() == [-1]


def on_every_thread(name, *args):
    """The results of a kernel, the same to the bit on one thread and on two, three and four."""
    torch.set_num_threads(1)
    one = getattr(kernels, name)(*args)
    for threads in (2, 3, 4):
        torch.set_num_threads(threads)
        assert_close(getattr(kernels, name)(*args), one, rtol=0, atol=0, equal_nan=True)
    torch.set_num_threads(1)
    return one


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", WIDTHS)
def test_every_width(dtype, n):
    for upper in (False, True):
        A, view = system(50, 0.3, dtype, permuted=upper)
        check(A, view, torch.randn(50, n, dtype=dtype), upper=upper, unit=n % 2 == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [1, 2, 9, 16, 25, 32, 40, 65, 129])
def test_many_rows_on_several_threads(upper, n, dtype):
    """Threads share columns: in whole cache lines, the last of which may be a part of one."""
    A, view = system(900, 0.1, dtype, torch.int64)
    check(A, view, torch.randn(900, n, dtype=dtype), upper=upper, unit=False)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_columns_side_by_side(upper, dtype):
    """Vectors of consecutive columns are read and written at once; a gap ends such a run."""
    m = 80
    A = torch.randn(m, m, dtype=dtype) / m + 2 * torch.eye(m, dtype=dtype)
    A[:, ::11] = A[40:50] = 0
    A = A + torch.eye(m, dtype=dtype)
    row, column = A.nonzero().T
    ptr = torch.searchsorted(row, torch.arange(m + 1)).int()
    for n in (1, 3):
        view = ptr, column.int(), None, A[row, column]
        check(A, view, torch.randn(m, n, dtype=dtype), upper=upper, unit=False)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("m", [0, 1, 2])
def test_tiny_systems(upper, m):
    for n in (0, 1, 4):
        A, view = system(m, 1.0, torch.float64)
        check(A, view, torch.randn(m, n, dtype=torch.float64), upper=upper, unit=False)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_the_first_row_without_a_pivot(n, upper, missing):
    """Rows 2 and 4 have a zero, or no element, on the diagonal; the other elements are there."""
    at = torch.ones(6, 6, dtype=torch.bool)
    A = torch.ones(6, 6)
    for i in (2, 4):
        A[i, i], at[i, i] = 0, not missing
    row, column = at.nonzero().T
    ptr = torch.searchsorted(row, torch.arange(7)).int()
    args = ptr, column.int(), None, A[row, column], torch.ones(6, n), upper
    for transpose in (False, True):
        assert kernels.solve_triangular(*args, False, transpose)[1].tolist() == [2]
        assert kernels.solve_triangular(*args, True, transpose)[1].tolist() == [-1]


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e308])
def test_real_pivots_whose_inverse_is_no_normal_number(size):
    """Rows are multiplied by inverses, but for those: infinite, or too small for all digits."""
    A = size * torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    view = torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), None, A[[0, 1, 1], [0, 0, 1]]
    b = size * torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    x, _ = kernels.solve_triangular(*view, b, False, False)
    assert x.tolist() == [[1.0], [0.0]]
    for n in (1, 2):
        x, _ = kernels.solve_triangular(*view, b.expand(2, n).contiguous(), False, False, True)
        assert x.tolist() == [[0.0] * n, [1.0] * n]


def test_complex_pivots_of_any_size():
    """Where the square of a pivot would overflow, or vanish."""
    pivots = torch.tensor([1e200 + 1e200j, 1e-200j, 1e-200, -3e180 + 1j], dtype=torch.complex128)
    ptr, idx = torch.arange(5).int(), torch.arange(4).int()
    for n in (1, 3):
        b = pivots[:, None] * torch.arange(1, n + 1)
        for transpose in (False, True):
            x, _ = kernels.solve_triangular(ptr, idx, None, pivots, b, False, False, transpose)
            assert_close(x, torch.arange(1, n + 1).to(x.dtype).expand(4, n))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_incomplete_factors_agree_with_the_matrix_at_its_elements(dtype, index_dtype):
    A, (ptr, idx, _, val) = system(40, 0.1, dtype, index_dtype)
    row = kernels.expand(ptr, len(idx)).long()
    at = row, idx.long()
    bound = TOLERANCE.get(dtype, 1e-11)
    found, failed = on_every_thread("incomplete_lu", ptr, idx, val, 0.0)
    both = torch.zeros_like(A).index_put_(at, found)
    product = (both.tril(-1) + torch.eye(40)) @ both.triu()
    assert_close(product[at], val, rtol=bound, atol=bound)
    lower = row >= at[1]
    starts = kernels.compress(row[lower].to(index_dtype), 40)
    val = torch.where(at[0] == at[1], val.real.to(dtype), val)[lower]
    found, broken = on_every_thread("incomplete_cholesky", starts, idx[lower], val)
    L = torch.zeros_like(A).index_put_((row[lower], at[1][lower]), found)
    assert_close((L @ L.mH)[row[lower], at[1][lower]], val, rtol=bound, atol=bound)
    assert failed.tolist() == broken.tolist() == [-1]
    by_columns, rest, order = kernels.transpose_plan(starts, idx[lower], 40)
    exact, _ = on_every_thread("relaxed_cholesky", by_columns, rest, val[order.long()], 0.0)
    assert_close(exact, found[order.long()], rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["relaxed_cholesky", "incomplete_lu"])
def test_relaxed_factors_equal_the_references(name, dtype):
    """Of long and short lines, some in lists of many columns."""
    for n, density in ((1, 1.0), (60, 0.1), (200, 0.02), (90, 0.5)):
        _, (ptr, idx, _, val) = system(n, density, dtype, torch.int32)
        if name == "relaxed_cholesky":
            row = kernels.expand(ptr, len(idx))
            lower = row >= idx
            ptr = kernels.compress(row[lower], n)
            ptr, idx, order = kernels.transpose_plan(ptr, idx[lower], n)
            val = val[lower][order.long()]
        for relaxation in (0.3, 1.0):
            args = ptr, idx, val, relaxation
            found, wanted = on_every_thread(name, *args), REFERENCES[name](*args)
            bound = TOLERANCE.get(dtype, 1e-11)
            assert wanted[1].tolist() == [-1]
            assert_close(found, wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", ["incomplete_cholesky", "incomplete_lu"])
def test_the_row_of_a_bad_pivot(name):
    ptr, idx = torch.tensor([0, 1, 3, 4]).int(), torch.tensor([0, 0, 1, 1]).int()
    more = (0.0,) if name == "incomplete_lu" else ()
    for kernel in (getattr(kernels, name), REFERENCES[name]):

        def factor(*args, kernel=kernel):
            return kernel(*args, *more)

        assert factor(ptr, idx, torch.tensor([4.0, 2.0, 3.0, 1.0]))[1].tolist() == [2]  # none there
        assert factor(ptr, idx, torch.tensor([0.0, 2.0, 3.0, 1.0]))[1].tolist() == [0]
        negative = factor(ptr, idx, torch.tensor([4.0, 2.0, 0.5, 1.0]))[1].tolist()
        assert negative == ([1] if name == "incomplete_cholesky" else [2])


@pytest.mark.parametrize("kernel", [kernels.relaxed_cholesky, REFERENCES["relaxed_cholesky"]])
def test_the_column_of_a_bad_pivot(kernel):
    """Missing, zero, and negative by what it takes of the products of column 0."""
    ptr, idx = torch.tensor([0, 3, 4, 5]).int(), torch.tensor([0, 1, 2, 1, 2]).int()
    val = torch.tensor([4.0, 3.0, 3.0, 4.0, 4.0])
    assert kernel(ptr, idx, val, 0.5)[1].tolist() == [-1]
    assert kernel(ptr, idx, val, 1.0)[1].tolist() == [1]
    assert kernel(ptr, idx, val * torch.tensor([0, 1, 1, 1, 1]), 0.0)[1].tolist() == [0]
    assert kernel(torch.tensor([0, 2, 2]).int(), idx[:2], val[:2], 0.0)[1].tolist() == [1]


def test_wrong_arguments_are_refused():
    ptr, idx, val = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2)
    if not kernels.compiled():
        return
    for args in (
        (ptr, idx, None, val, torch.ones(3, 1)),
        (ptr, idx, None, val, torch.ones(2)),
        (ptr, idx, None, val.double(), torch.ones(2, 1)),
        (ptr, idx, None, val[:1], torch.ones(2, 1)),
        (ptr, idx, None, val.half(), torch.ones(2, 1).half()),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            kernels.solve_triangular(*args, False, False)
    with pytest.raises(RuntimeError, match="spgrad"):
        kernels.incomplete_lu(ptr, idx, val[:1], 0.0)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_inverse_at_the_pattern_of_the_factors(dtype, index_dtype):
    for m in (0, 1, 2, 7, 30):
        A, (ptr, idx, _, _) = system(m, 0.1, dtype, index_dtype)
        found = kernels.factor_pattern(ptr, idx)
        wanted = kernels.REFERENCES["factor_pattern"](ptr, idx)
        assert_close(found, wanted, rtol=0, atol=0)
        ptr, idx = found
        row, column = kernels.expand(ptr, len(idx)).long(), idx.long()
        lu = A.clone()  # elimination without exchange of rows
        for k in range(m):
            lu[k + 1 :, k] /= lu[k, k].clone()
            lu[k + 1 :, k + 1 :] -= lu[k + 1 :, k, None] * lu[k, k + 1 :]
        place = torch.argsort(column, stable=True)
        col_ptr = torch.searchsorted(column[place], torch.arange(m + 1)).to(index_dtype)
        arrays = (ptr, idx, lu[row, column], col_ptr, row[place].to(index_dtype))
        arrays = (*arrays, place.to(index_dtype))
        z, failed = on_every_thread("selected_inverse", *arrays)
        bound = TOLERANCE.get(dtype, 1e-11)
        assert_close(z, torch.linalg.inv(A)[column, row], rtol=bound, atol=bound)
        reference = kernels.REFERENCES["selected_inverse"](*arrays)[0]
        assert_close(z, reference, rtol=bound, atol=bound)
        assert failed.tolist() == [-1]


def test_the_inverse_names_a_row_whose_entries_do_not_suffice():
    ptr, idx = torch.tensor([0, 3, 5, 7]), torch.tensor([0, 1, 2, 0, 1, 0, 2])
    place = torch.tensor([0, 3, 5, 1, 4, 2, 6])
    col_ptr, col_idx = torch.tensor([0, 3, 5, 7]), torch.tensor([0, 1, 2, 0, 1, 0, 2])
    val = torch.arange(1.0, 8.0)
    for kernel in (kernels.selected_inverse, kernels.REFERENCES["selected_inverse"]):
        assert kernel(ptr, idx, val, col_ptr, col_idx, place)[1].tolist() == [0]


def test_the_inverse_of_an_infinite_pivot_is_zero():
    ptr, idx = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    args = ptr, idx, torch.tensor([torch.inf, 2.0]), ptr, idx, idx
    for kernel in (kernels.selected_inverse, kernels.REFERENCES["selected_inverse"]):
        assert kernel(*args)[0].tolist() == [0.0, 0.5]
