"""How a product reads memory depends on the pattern and on the machine; its result does not."""

from collections import OrderedDict
from itertools import pairwise

import pytest
import torch
from operands import dense, row_view
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.skipif(not kernels.compiled(), reason="only compiled kernels choose"),
]
# A cache that holds nothing, one that holds some rows of x, one that holds tiles, and one for all.
CACHES = [1 << 10, 1 << 16, 1 << 17, 1 << 40]


def test_a_cache_is_assumed_and_given_back(assume):
    own = assume(0)
    assert own >= 1 << 16
    assert assume(12345) == 12345
    assert assume(0) == own
    with pytest.raises(RuntimeError, match="`size` is -1; 0 or more"):
        assume(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32, 40, 64, 96, 128, 136, 256, 264, 300, 400])
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("m", [300, 2500], ids=["long rows", "short rows"])
def test_every_way_gives_the_same_bits(assume, dtype, n, permuted, m):
    view = row_view(m, 700, 20_000, torch.int32, permuted=permuted, dense_row=7)
    val, x, g = (dense(*size, dtype=dtype) for size in ((20_000,), (700, n), (m, n)))
    calls = {"spmm": (val, x), "sddmm": (g, x), "spmm_sddmm": (val, g, x)}
    for name, operands in calls.items():
        found, ways = [], set()
        for size in CACHES:
            assume(size)
            ways.add(tuple(kernels.traffic(view[1], x, not permuted, m)[3:7].tolist()))
            result = getattr(kernels, name)(*view, *operands)
            found.append(result if isinstance(result, tuple) else (result,))
        for other in found[1:]:
            assert_close(other, found[0], rtol=0, atol=0)
        if n * x.element_size() >= 512:
            assert len(ways) >= (2 if permuted else 3), ways  # near, prefetched, tiled
        assert_close(
            found[0],
            tuple(r) if isinstance(r := REFERENCES[name](*view, *operands), tuple) else (r,),
            rtol=1e-4,
            atol=1e-3,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("length", range(18))
def test_a_short_row_has_one_sum_whatever_its_neighbours(dtype, n, length):
    """Rows of one length, rows among longer ones, and the last rows take different loops."""
    m, k = 67, 90
    idx = torch.randint(k, (m, length), dtype=torch.int32)
    val, x = dense(m, length, dtype=dtype), dense(k, n, dtype=dtype)
    alone = torch.arange(m + 1, dtype=torch.int32) * length
    expected = kernels.spmm(alone, idx.reshape(-1), None, val.reshape(-1), x)

    lengths = torch.randint(40, (m,), dtype=torch.int32)  # of the rows in between
    between = [torch.randint(k, (int(size),), dtype=torch.int32) for size in lengths]
    others = [dense(int(size), dtype=dtype) for size in lengths]
    sizes = torch.stack([torch.full((m,), length), lengths], 1).reshape(-1)
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).int()
    mixed = torch.cat([part for pair in zip(idx, between, strict=True) for part in pair])
    weights = torch.cat([part for pair in zip(val, others, strict=True) for part in pair])
    y = kernels.spmm(ptr, mixed, None, weights, x)
    assert_close(y[::2], expected, rtol=0, atol=0)
    reference = REFERENCES["spmm"](ptr, mixed, None, weights, x)
    assert_close(y, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["a long one among them", "half of one length"])
@pytest.mark.parametrize("cache", [1 << 10, 1 << 40])
def test_rows_of_which_many_have_one_length(assume, dtype, n, kind, cache):
    """Each row has the sum that it has alone."""
    assume(cache)
    m, k = 256, 5000
    lengths = torch.full((m,), 3)
    if kind == "half of one length":
        lengths[m // 2 :] = torch.randint(9, (m // 2,))
    else:
        lengths[50] = 40
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    idx = torch.randint(k, (int(ptr[-1]),), dtype=torch.int32)
    val, x = dense(len(idx), dtype=dtype), dense(k, n, dtype=dtype)
    y = kernels.spmm(ptr.int(), idx, None, val, x)
    assert_close(y, REFERENCES["spmm"](ptr.int(), idx, None, val, x), rtol=1e-4, atol=1e-4)
    for row in (0, 20, 49, 50, 51, 100, 200, m - 1):
        part = slice(int(ptr[row]), int(ptr[row + 1]))
        one = torch.tensor([0, int(lengths[row])], dtype=torch.int32)
        alone = kernels.spmm(one, idx[part], None, val[part], x)
        assert_close(y[row : row + 1], alone, rtol=0, atol=0)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("largest", "n"), [(False, 64), (True, 64), (False, 4), (True, 8)])
def test_extrema_of_rows_that_come_from_memory(assume, largest, n, dtype, index):
    view = row_view(300, 90, 4000, index)
    operands = *view, dense(4000, dtype=dtype), dense(90, n, dtype=dtype), largest
    expected = kernels.spmm_reduce(*operands)
    assume(1 << 10)
    assert_close(kernels.spmm_reduce(*operands), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("most", [4, 8, 11])
@pytest.mark.parametrize("longest", [3, 30, 300, 2000])
def test_rows_of_any_length_have_one_sum_however_x_is_read(assume, dtype, n, most, longest):
    """Short rows, and now and then long ones: buffers of rows of x begin and end at any row."""
    m, k = 501, 5000
    sizes = torch.randint(most + 1, (m,))
    sizes[::37] = torch.randint(longest + 1, (len(sizes[::37]),))
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).int()
    idx = torch.randint(k, (int(ptr[-1]),), dtype=torch.int32)
    val, x = dense(len(idx), dtype=dtype), dense(k, n, dtype=dtype)
    found = []
    for size in CACHES:
        assume(size)
        found.append(kernels.spmm(ptr, idx, None, val, x))
        for first in (1, 2, 3):  # rows that a group of four does not begin with
            rest = kernels.spmm(
                ptr[first:] - ptr[first], idx[ptr[first] :], None, val[ptr[first] :], x
            )
            assert_close(rest, found[0][first:], rtol=0, atol=0)
    for other in found[1:]:
        assert_close(other, found[0], rtol=0, atol=0)
    assert_close(found[0], REFERENCES["spmm"](ptr, idx, None, val, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("length", [16, 17, 20, 33, 64])
@pytest.mark.parametrize("columns", ["consecutive", "repeated", "in any order"])
def test_consecutive_columns_have_the_sum_of_columns_apart(dtype, n, length, columns):
    """The rows of a band are read by whole registers, if all their columns are consecutive."""
    m, k = 67, 200
    row = torch.arange(length)
    if columns == "repeated":  # a register begins and ends as if its columns were consecutive
        row[1:-1] = row[1:-1] // 8 * 8
    elif columns == "in any order":
        row[1:7], row[9:15] = row[1:7].flip(0), row[9:15].flip(0)
    idx = (torch.randint(k - length, (m, 1)) + row).reshape(-1).int()
    ptr = torch.arange(m + 1, dtype=torch.int32) * length
    val, x = dense(m * length, dtype=dtype), dense(k, n, dtype=dtype)
    y = kernels.spmm(ptr, idx, None, val, x)
    assert_close(y, REFERENCES["spmm"](ptr, idx, None, val, x), rtol=1e-4, atol=1e-4)
    order = torch.randperm(k)
    apart = order.argsort()[idx].int()
    assert_close(kernels.spmm(ptr, apart, None, val, x[order]), y, rtol=0, atol=0)
    lengths = torch.tensor([length, 3] * m)  # rows of many lengths take another loop
    mixed = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    ends = torch.cat([idx.view(m, length), idx.view(m, length)[:, :3]], 1).reshape(-1)
    weights = torch.cat([val.view(m, length), val.view(m, length)[:, :3]], 1).reshape(-1)
    assert_close(kernels.spmm(mixed, ends, None, weights, x)[::2], y, rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_what_lies_behind_a_row_does_not_count(n):
    """Vectors reach beyond the end of a row: infinities there must not show."""
    ptr = torch.arange(0, 41 * 3 + 1, 3, dtype=torch.int32)
    idx = torch.arange(41 * 3, dtype=torch.int32) % 5
    x = torch.ones(5, n)
    x[3] = torch.inf
    x[4] = torch.nan
    val = torch.ones(41 * 3)
    assert_close(
        kernels.spmm(ptr, idx, None, val, x),
        REFERENCES["spmm"](ptr, idx, None, val, x),
        rtol=0,
        atol=0,
        equal_nan=True,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinities_behind_longer_rows_do_not_count(dtype):
    """Every second row, of any rest of a vector, has infinities alone."""
    counts = torch.arange(72) % 9 + 17
    idx = torch.repeat_interleave(torch.arange(72) % 2, counts).int()
    ptr = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
    x, val = torch.tensor([[1.0], [torch.inf]], dtype=dtype), torch.ones(len(idx), dtype=dtype)
    assert torch.equal(kernels.spmm(ptr, idx, None, val, x)[::2, 0], counts[::2].to(dtype))


def test_a_sum_of_negative_zeros_is_the_same_in_every_loop():
    val, x = torch.full((400,), -0.0), torch.ones(5, 1)
    idx = torch.arange(400, dtype=torch.int32) % 5
    for step in (1, 2, 8, 20):  # rows of 8 entries leave no lane to zeros
        ptr = torch.arange(0, 401, step, dtype=torch.int32)
        assert not kernels.spmm(ptr, idx, None, val, x).signbit().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_short_rows_that_are_staged_give_the_same_bits(assume, dtype, n):
    """Processors that gather fast stage none."""
    m, k, nse = 3000, 700, 20_000
    view = row_view(m, k, nse, torch.int32, dense_row=7)
    val, x = dense(nse, dtype=dtype), dense(k, n, dtype=dtype)
    found, ways = [], set()
    for size in CACHES:
        assume(size)
        ways.add(bool(kernels.traffic(view[1], x, True, m)[5]))
        found.append(kernels.spmm(*view, val, x))
        assert not kernels.traffic(view[1], x, True, nse // 161)[5]  # rows are too long
    for other in found[1:]:
        assert_close(other, found[0], rtol=0, atol=0)
    assert_close(found[0], REFERENCES["spmm"](*view, val, x), rtol=1e-4, atol=1e-3)
    if n * dtype.itemsize > 16:  # rows of x are too long
        assert ways == {False}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("longest", [1, 3, 8, 16, 40, 150, 600])
def test_a_row_gives_the_same_bits_alone_and_beside_others(dtype, n, longest):
    """Rows of a few columns are added together with others of similar lengths; the last have no
    entries behind them that a whole register could read."""
    torch.manual_seed(longest)
    lengths = torch.randint(longest + 1, (300,))
    lengths[100:170] %= 3  # many short rows, one behind the other
    ptr = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    nse = int(ptr[-1])
    idx = torch.randint(500, (nse,), dtype=torch.int32)
    val, x = dense(nse, dtype=dtype), dense(500, n, dtype=dtype)
    val[idx == 0] = torch.nan  # reaches no other row
    together = kernels.spmm(ptr, idx, None, val, x)
    for row, (start, end) in enumerate(pairwise(ptr.tolist())):
        one = torch.tensor([0, end - start], dtype=torch.int32)
        alone = kernels.spmm(one, idx[start:end], None, val[start:end], x)
        assert_close(together[row : row + 1], alone, rtol=0, atol=0, equal_nan=True)


def test_local_patterns_are_told_from_others():
    """A band asks again for rows that it has just read; columns anywhere do not."""
    m, reach = 40_000, 8
    band = (torch.arange(m)[:, None] + torch.arange(-reach, reach)).clamp(0, m - 1)
    anywhere = torch.randint(m, (m, 2 * reach))
    x = torch.empty(m, 64)
    found = kernels.traffic(band.reshape(-1).int(), x, True, m).tolist()
    size, misses, tiles, *ways = found[:7]
    assert misses < 0.1
    assert ways == [0, 0, 0, 0]
    if x.nbytes > 2 * size:
        idx = anywhere.reshape(-1).int()
        _, far, in_tiles, ahead, *_ = kernels.traffic(idx, x, True, m).tolist()
        assert far > 0.5
        assert far >= in_tiles
        assert ahead > 0
    assert tiles < 0.1


def misses_of_a_cache(columns, rows):
    """The share of columns that a cache of so many rows lacks, which drops the one used longest
    ago."""
    held, missing = OrderedDict(), 0
    for column in columns.tolist():
        missing += column not in held
        held[column] = True
        held.move_to_end(column)
        if len(held) > rows:
            held.popitem(last=False)
    return missing / len(columns)


@pytest.mark.parametrize("reach", [40, 400, 4000])
def test_the_estimate_of_misses_is_near_those_of_a_cache(assume, reach):
    m, row = 30_000, 1024
    columns = torch.arange(m).repeat_interleave(3) + torch.randint(reach, (3 * m,))
    x = torch.empty(m + reach, row // 4)
    estimates = []
    for size in (1 << 16, 1 << 18, 1 << 20, 1 << 22):
        assume(size)
        found = kernels.traffic(columns.int(), x, True, m).tolist()
        rows = 0.75 * size / row  # the rest is left to A and y
        assert found[1] == pytest.approx(misses_of_a_cache(columns, rows), abs=0.08)
        assert found[1] >= found[2]
        assert found[8] >= found[1]
        estimates.append(found[1])
    assert estimates == sorted(estimates, reverse=True)


@pytest.mark.parametrize("n", [64, 128, 256])
def test_tiles_are_used_where_they_keep_rows_in_the_nearest_cache(assume, n):
    """Blocks of 16 x 16: sixteen rows of A read the same rows of x, whose tiles fit."""
    assume(1 << 15)
    block = torch.arange(16)
    columns = (torch.randint(4000, (400, 1, 10, 1)) * 16 + block).expand(-1, 16, -1, -1)
    idx = columns.reshape(-1).int()
    x = torch.empty(64_000, n)
    *_, nearest, nearest_in_tiles, _ = kernels.traffic(idx, x, True, 6400).tolist()
    # 160 rows of 256 bytes or more do not fit into a cache of 32 KB; in tiles they do
    assert nearest > 0.5
    assert nearest_in_tiles < 0.2


@pytest.mark.parametrize(("dtype", "n"), [(torch.float32, 16), (torch.float64, 8)], ids=str)
@pytest.mark.parametrize("length", [1, 4, 12])
def test_rows_of_one_cache_line_are_prefetched_if_x_is_large(assume, dtype, n, length):
    m = 2000
    ptr = torch.arange(m + 1, dtype=torch.int32) * length
    idx = torch.randint(m, (m * length,), dtype=torch.int32)
    val, x = dense(m * length, dtype=dtype), dense(m, n, dtype=dtype)
    assume(1 << 40)
    assert kernels.traffic(idx, x, True, m)[3] == 0
    near = kernels.spmm(ptr, idx, None, val, x)
    assume(1 << 10)
    assert kernels.traffic(idx, x, True, m)[3] > 0
    assert_close(kernels.spmm(ptr, idx, None, val, x), near, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("most", [2, 8, 22, 50])
def test_rows_of_half_a_cache_line_are_prefetched_for_short_rows(assume, dtype, most):
    """With 16-bit elements, for long ones too."""
    m, k, prefetched = 2000, 3000, most <= 22 or dtype.itemsize == 2
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(most + 1, (m,)).cumsum(0)])
    idx = torch.randint(k, (int(ptr[-1]),), dtype=torch.int32)
    val, x = dense(len(idx), dtype=dtype), dense(k, 32 // dtype.itemsize, dtype=dtype)
    found = {}
    for size in (1 << 40, 1 << 10):
        assume(size)
        y = kernels.spmm(ptr.int(), idx, None, val, x)
        found[bool(kernels.traffic(idx, x, True, m)[3])] = y
        local = torch.arange(len(idx), dtype=torch.int32) // 100
        assert kernels.traffic(local, x, True, m)[3] == 0
    assert set(found) == {False, prefetched}
    assert_close(y, found[False], rtol=0, atol=0)
    rtol = 1e-2 if dtype.itemsize == 2 else 1e-4
    assert_close(y, REFERENCES["spmm"](ptr.int(), idx, None, val, x), rtol=rtol, atol=1e-4)


@pytest.mark.parametrize("nse", [0, 1, 5, 1000])
def test_few_entries(assume, nse):
    assume(1)
    idx = torch.randint(1000, (nse,), dtype=torch.int32)
    _, misses, tiles, *_ = kernels.traffic(idx, torch.empty(1000, 256), True, 10).tolist()
    assert 0 <= tiles <= 1
    assert 0 <= misses <= 1
