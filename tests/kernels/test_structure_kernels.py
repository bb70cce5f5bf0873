"""The structure kernels against their references."""

import itertools

import pytest
import torch

from spgrad import kernels
from spgrad.kernels import REFERENCES

INDEX_DTYPES = [torch.int32, torch.int64]
EXTREMES = {dtype: [torch.iinfo(dtype).min, torch.iinfo(dtype).max] for dtype in INDEX_DTYPES}
BIG = 100_000  # entries: enough for several threads and for the sort by buckets

pytestmark = pytest.mark.usefixtures("poisoned")


def row_view(m, n, nse, dtype, *, dense_row=None):
    """A row view with unsorted and repeated columns; `dense_row` holds half of the entries."""
    row = torch.randint(m, (nse,)) if m else torch.empty(0, dtype=torch.int64)
    if dense_row is not None:
        row[: nse // 2] = dense_row
    row = row.sort().values
    ptr = torch.searchsorted(row, torch.arange(m + 1))
    return ptr.to(dtype), torch.randint(max(n, 1), (nse,)).to(dtype)


ROW_VIEWS = {
    "square": (7, 7, 20, None),
    "no rows": (0, 5, 0, None),
    "no columns": (5, 0, 0, None),
    "no entries": (4, 3, 0, None),
    "one by one": (1, 1, 1, None),
    "one row": (1, 50, 30, None),
    "one column": (50, 1, 30, None),
    "wide": (3, 10_000, 40, None),
    "tall": (10_000, 3, 40, None),
    "a dense row": (100, 80, 200, 17),
    "empty rows": (1000, 1000, 30, None),
    "large": (5000, 3000, BIG, None),
    "large, a dense row": (40_000, 1000, BIG, 39_999),
}


def check(name, *args):
    """Asserts that the op equals its reference, on one thread and on two."""
    torch.set_num_threads(1)
    expected = REFERENCES[name](*args)
    for threads in (2, 1):
        torch.set_num_threads(threads)
        actual = getattr(kernels, name)(*args)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize("shape", ROW_VIEWS.values(), ids=ROW_VIEWS)
def test_row_views(shape, dtype):
    m, n, nse, dense_row = shape
    ptr, idx = row_view(m, n, nse, dtype, dense_row=dense_row)
    check("expand", ptr, nse)
    check("transpose_plan", ptr, idx, n)
    for val in (torch.randn(nse), torch.randn(nse, dtype=torch.complex128), torch.rand(nse) < 0.5):
        check("transpose_plan", ptr, idx, n, val)
    check("compress", kernels.expand(ptr, nse), m)
    check("compress", idx, n)
    check("check_compressed", ptr, idx, n)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize("p", [1, 4095, 4096, 4097, 8192, 9999])
def test_pointers_of_rows_that_descend_once(p, dtype):
    """The kernel looks at 4096 rows at a time, and at the row before them."""
    row = torch.arange(10_000) // 10
    check("compress", torch.cat([row[10_000 - p :], row[: 10_000 - p]]).to(dtype), 1000)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize("columns", ["in any order", "as in the row before"])
def test_transpose_plans_of_more_places_than_caches_hold(columns, dtype):
    m, n, length = 20_000, 30_000, 9
    ptr = (torch.arange(m + 1) * length).to(dtype)
    near = torch.arange(m)[:, None] + torch.arange(length)
    idx = torch.randint(n, (m, length)) if columns == "in any order" else near
    val = torch.randn(m * length)
    kernels.assume_cache(val, 1 << 16)
    try:
        check("transpose_plan", ptr, idx.reshape(-1).to(dtype), n)
        check("transpose_plan", ptr, idx.reshape(-1).to(dtype), n, val)
    finally:
        kernels.assume_cache(val, 0)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_transpose_plan_twice_is_the_sorted_row_view(dtype):
    ptr, idx = row_view(40, 30, 200, dtype)
    cptr, row, perm = kernels.transpose_plan(ptr, idx, 30)
    back, col, again = kernels.transpose_plan(cptr, row, 40)
    assert torch.equal(back, ptr)
    assert torch.equal(col, idx[perm][again])


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("lines", "nb", "along", "across"),
    [(3, 7, 2, 3), (4, 0, 2, 2), (0, 0, 3, 1), (5, 9, 1, 1), (1, 4, 5, 1), (2000, 9000, 4, 5)],
)
def test_expand_blocks(lines, nb, along, across, transposed, dtype):
    ptr, idx = row_view(lines, 11, nb, dtype)
    check("expand_blocks", ptr, idx, along, across, transposed)
    check("expand_blocks", ptr, idx, along, across, transposed, torch.randn(nb * along * across))


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize(("m", "n", "nse"), [(4, 6, 11), (5, 3, 0), (1, 9, 4), (400, 300, 40_000)])
def test_densify(m, n, nse, items, dtype):
    pairs = torch.randperm(items * m * n)[:nse].sort().values
    row, col = pairs // n, pairs % n
    ptr = torch.searchsorted(row, torch.arange(items * m + 1)).to(dtype)
    idx = (col + row // m * n).to(dtype)
    perm = torch.randperm(nse).to(dtype)
    for val in (torch.randn(nse), torch.randn(nse, 3), torch.randint(9, (nse,), dtype=torch.int8)):
        check("densify", ptr, idx, None, val, m, n)
        check("densify", ptr, idx, perm, val, m, n)


def test_expand_blocks_that_overflow_int32():
    if not kernels.compiled():
        pytest.skip("the reference does not count before it computes")
    ptr = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="int64"):
        kernels.expand_blocks(ptr, ptr[:1], 2**16, 2**16, False)


COO = {
    "2-D": ((9, 7), 40),
    "1-D": ((5,), 12),
    "4-D": ((2, 3, 1, 4), 60),
    "empty": ((3, 4), 0),
    "size 0": ((0, 4), 0),
    "one entry": ((1, 1), 1),
    "large": ((700, 900), BIG),
    "large, skewed": ((2**30, 3), BIG),
    "key and position beyond 64 bits": ((2**31, 2**31), BIG),
    "key beyond 64 bits": ((2**31, 2**31, 2**31), BIG),
}


def coo(size, nse, dtype):
    """Entries with repetitions, spread over the whole of `size`."""
    rows = []
    for length in size:
        few = torch.randint(max(length, 1), (max(nse // 3, 1),))
        rows.append(few[torch.randint(len(few), (nse,))])
    return torch.stack(rows).to(dtype)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize(("size", "nse"), COO.values(), ids=COO)
def test_coalesce(size, nse, dtype):
    indices = coo(size, nse, dtype)
    check("coalesce", indices, size)
    unique, group = kernels.coalesce(indices, size)
    assert torch.equal(unique[:, group], indices)
    check("coalesce", unique, size)
    check("coalesce", unique.repeat_interleave(2, dim=1), size)
    check("check_coo", indices, size)
    assert kernels.check_coo(unique, size).tolist() == [-1, -1, 1]


def test_coalesce_of_every_width():
    for bits in itertools.chain(range(1, 33), [40, 62]):
        size = (2**bits, 2 ** (bits // 2))
        check("coalesce", coo(size, 300, torch.int64), size)


def test_coalesce_with_most_entries_in_one_bucket():
    indices = coo((2**20, 2**20), BIG, torch.int64)
    indices[0, : BIG - 50] = 5
    check("coalesce", indices, (2**20, 2**20))


@pytest.mark.parametrize("size", [(1000, 1000), (3, 2**40), (2**31 - 1, 2**20, 7), (2**40, 2**40)])
@pytest.mark.parametrize("nse", [0, 1, 24, 25, 64, 65, 1000, 32768, 32769, BIG])
def test_sort_coo(size, nse):
    """About the numbers of entries where another way to sort begins, for words of every kind."""
    indices = coo(size, nse, torch.int64)
    check("sort_coo", indices, size)
    few = indices % torch.tensor([2, 3, 2])[: len(size), None]  # nearly all of them are repeated
    check("sort_coo", few, size)
    check("sort_coo", torch.cat([few, indices[:, :99]], 1), size)


@pytest.mark.parametrize(
    ("ptr", "idx", "n", "expected"),
    [
        ([0], [], 0, [0, -1]),
        ([0, 2, 3], [0, 1, 0], 2, [0, -1]),
        ([1, 2, 3], [9, 9, 9], 2, [1, 0]),
        ([0, 2, 1], [9, 9], 2, [2, 1]),
        ([0, 2, 2], [0, 1, 1], 2, [3, 2]),
        ([0, 2, 3], [0, 2, 0], 2, [4, 1]),
        ([0, 2, 3], [0, 1, -1], 2, [4, 2]),
        ([0, 2, 3], [1, 1, 0], 2, [5, 1]),
        ([0, 2, 3], [1, 0, 7], 2, [5, 1]),
        ([0, 2, 3], [1, -7, 7], 2, [4, 1]),
        ([0, 1], [0], 0, [4, 0]),
        ([0, 1], [0], 2**40, [0, -1]),
    ],
)
@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_check_compressed(ptr, idx, n, expected, dtype):
    args = torch.tensor(ptr, dtype=dtype), torch.tensor(idx, dtype=dtype), n
    assert kernels.check_compressed(*args).tolist() == expected
    check("check_compressed", *args)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_check_compressed_finds_the_first_of_many(dtype):
    idx = torch.arange(1000).repeat(500).to(dtype)
    ptr = torch.arange(0, 500_001, 1000).to(dtype)
    check("check_compressed", ptr, idx, 1000)
    for position, index in ((499_000, 2000), (250_003, 2), (250_002, 1), (77, -1)):
        idx[position] = index
        check("check_compressed", ptr, idx, 1000)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_check_compressed_survives_garbage(dtype):
    low, high = EXTREMES[dtype]
    for _ in range(300):
        ptr = torch.randint(low, high, (int(torch.randint(1, 6, ())),), dtype=dtype)
        idx = torch.randint(low, high, (int(torch.randint(0, 6, ())),), dtype=dtype)
        if torch.rand(()) < 0.7:  # reach the later checks too
            ptr = ptr.remainder(len(idx) + 2).sort().values
            ptr[0], ptr[-1] = 0, len(idx)
        if torch.rand(()) < 0.5:
            idx = idx.remainder(4)
        if len(idx) and torch.rand(()) < 0.3:
            idx[torch.randint(len(idx), ())] = low if torch.rand(()) < 0.5 else high
        check("check_compressed", ptr, idx, int(torch.randint(0, 5, ())))


@pytest.mark.parametrize(
    ("indices", "size", "expected"),
    [
        ([[0, 0, 1], [0, 1, 0]], (2, 2), [-1, -1, 1]),
        ([[0, 0, 1], [1, 1, 0]], (2, 2), [-1, -1, 0]),
        ([[0, 1, 0], [0, 0, 0]], (2, 2), [-1, -1, 0]),
        ([[0, 0, 2], [0, 1, 5]], (2, 2), [0, 2, 0]),
        ([[0, 0, 2], [0, 9, 5]], (2, 2), [1, 1, 0]),
        ([[0, -1]], (2,), [0, 1, 0]),
        ([[0]], (0,), [0, 0, 0]),
        ([[0], [3]], (2**40, 2**40), [-1, -1, 1]),
        ([[], []], (0, 0), [-1, -1, 1]),
    ],
)
@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_check_coo(indices, size, expected, dtype):
    args = torch.tensor(indices, dtype=dtype), size
    assert kernels.check_coo(*args).tolist() == expected
    check("check_coo", *args)


@pytest.mark.parametrize("nse", [0, 1, 2])
def test_check_coo_without_sparse_dimensions(nse):
    check("check_coo", torch.empty(0, nse, dtype=torch.int64), ())


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_check_coo_survives_garbage(dtype):
    low, high = EXTREMES[dtype]
    for nse in (1, 2, 5, 3000, 100_000):
        for _ in range(10):
            indices = torch.randint(0, 9, (2, nse), dtype=dtype)
            bad = torch.randint(2 * nse, (2,))
            indices.view(-1)[bad] = torch.tensor([low, high], dtype=dtype)
            check("check_coo", indices, (9, 9))
            check("check_coo", torch.randint(low, high, (2, nse), dtype=dtype), (high, high))


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_opcheck(dtype):
    ptr, idx = row_view(6, 5, 14, dtype)
    indices = torch.stack([kernels.expand(ptr, 14), idx])
    for op, args in (
        (kernels.check_compressed, (ptr, idx, 5)),
        (kernels.check_coo, (indices, (6, 5))),
        (kernels.compress, (indices[0], 6)),
        (kernels.expand, (ptr, 14)),
        (kernels.transpose_plan, (ptr, idx, 5)),
        (kernels.transpose_plan, (ptr, idx, 5, torch.randn(14))),
        (kernels.densify, (ptr, torch.arange(14).to(dtype), None, torch.randn(14, 2), 6, 14)),
        (kernels.expand_blocks, (ptr, idx, 2, 3, True)),
        (kernels.coalesce, (indices, (6, 5))),
    ):
        torch.library.opcheck(op, args)


def test_wrong_arguments_are_refused():
    if not kernels.compiled():
        pytest.skip("references take what torch takes")
    ptr = torch.tensor([0, 1])
    for op, args in (
        (kernels.transpose_plan, (ptr, ptr[:1].int(), 1)),
        (kernels.transpose_plan, (ptr.double(), ptr[:1].double(), 1)),
        (kernels.transpose_plan, (ptr, ptr[:1], 1, torch.randn(2))),
        (kernels.densify, (ptr, ptr[:1], None, torch.randn(2), 1, 1)),
        (kernels.densify, (ptr, ptr[:1], None, torch.randn(1), 0, 1)),
        (kernels.expand, (ptr, 2)),
        (kernels.expand, (ptr[:0], 0)),
        (kernels.coalesce, (ptr[None], (2, 2))),
        (kernels.compress, (torch.arange(4)[::2], 4)),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            op(*args)
