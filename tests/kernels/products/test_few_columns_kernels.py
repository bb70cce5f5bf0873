"""Products with one to eight columns have several loops, which all give the same bits."""

from pathlib import Path

import pytest
import torch
from operands import dense
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.skipif(not kernels.compiled(), reason="only compiled kernels choose"),
]
M, K = 300, 400
CACHES = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 0, 1 << 40]


def _band(lengths, *, anywhere=False):
    """Rows with so many consecutive columns near the diagonal, or with columns anywhere."""
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    place = torch.arange(int(ptr[-1])) - ptr[:-1].repeat_interleave(lengths)
    first = (torch.arange(M) % (K - int(lengths.max()))).repeat_interleave(lengths)
    idx = torch.randint(K, (len(place),)) if anywhere else first + place
    return ptr.int(), idx.int()


KINDS = {
    "17 entries": lambda: _band(torch.full((M,), 17)),
    "40 entries": lambda: _band(torch.full((M,), 40)),
    "40 entries anywhere": lambda: _band(torch.full((M,), 40), anywhere=True),
    "5 entries": lambda: _band(torch.full((M,), 5)),
    "runs of unlike lengths": lambda: _band(torch.randint(20, 60, (M,))),
    "unlike lengths anywhere": lambda: _band(torch.randint(20, 60, (M,)), anywhere=True),
    "whole registers": lambda: _band(8 * torch.randint(1, 6, (M,)), anywhere=True),
    "empty and short rows at the end": lambda: _band(
        torch.randint(9, 40, (M,)).index_copy_(0, torch.arange(M - 9, M), torch.arange(9) % 3)
    ),
    "one of 390 among short ones": lambda: _band(
        torch.full((M,), 5).index_fill_(0, torch.tensor([M // 3]), 390)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_cache_gives_the_same_bits(assume, kind, n, dtype):
    """Caches that hold x and not the entries, both, or neither."""
    ptr, idx = KINDS[kind]()
    val, x = dense(len(idx), dtype=dtype), dense(K, n, dtype=dtype)
    found = []
    for size in CACHES:
        assume(size)
        found.append(kernels.spmm(ptr, idx, None, val, x))
    for other in found[1:]:
        assert_close(other, found[0], rtol=0, atol=0)
    dense_A = torch.zeros(M, K, dtype=torch.float64)
    rows = torch.arange(M).repeat_interleave(ptr.diff())
    dense_A.index_put_((rows, idx.long()), val.double(), accumulate=True)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    assert_close(found[0].double(), dense_A @ x.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_long_rows_that_are_cut_do_not_change_their_neighbours(n, dtype):
    """The rows between the pieces of long rows have the bits that they have alone."""
    lengths = torch.full((M,), 7)
    lengths[::25] = 5000
    ptr, idx = _band(lengths, anywhere=True)
    val, x = dense(len(idx), dtype=dtype), dense(K, n, dtype=dtype)
    y = kernels.spmm(ptr, idx, None, val, x)
    short = torch.ones(M, dtype=torch.bool)
    short[::25] = False
    kept = short.repeat_interleave(lengths)
    starts = torch.arange(int(short.sum()) + 1, dtype=torch.int32) * 7
    alone = kernels.spmm(starts, idx[kept], None, val[kept], x)
    assert_close(y[short], alone, rtol=0, atol=0)


def _shared_is_far():
    """Whether kernels read what comes from the shared cache like what comes from memory."""
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and "GenuineIntel" in cpu.read_text()


def _gathers_fast():
    """Whether kernels gather by an instruction, and prefetch with each register of entries."""
    return _shared_is_far() and " avx512bw " in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 8, 9])
def test_columns_and_values_that_come_from_memory(assume, dtype, n):
    """They are prefetched if rows are long, and no cache that is near holds them.

    Where the shared cache is near, columns have to be far apart too; where it is far, those that
    are not are prefetched sooner. Where the processor gathers fast, the columns do not count.
    """
    m, k, length = 250, 20_000, 40
    anywhere = torch.randint(k, (m, length), dtype=torch.int32)
    band = torch.arange(m, dtype=torch.int32)[:, None] + torch.arange(length, dtype=torch.int32)
    ptr, x = length * torch.arange(m + 1, dtype=torch.int32), dense(k, n, dtype=dtype)
    few = n * dtype.itemsize <= 32
    for columns, far in ((anywhere, True), (band, False)):
        idx, val = columns.reshape(-1), dense(m * length, dtype=dtype)
        found = []
        nbytes = idx.nbytes + val.nbytes
        if _gathers_fast():
            most = (nbytes - 1) // 2
        elif _shared_is_far():
            most = (nbytes - 1) // (4 if far else 2)
        else:
            most = 4 * nbytes - 1 if far else -1
        for size in (
            1 << 14,
            nbytes // 4 - 1,
            nbytes // 4,
            nbytes // 2,
            4 * nbytes - 1,
            4 * nbytes,
        ):
            assume(size)
            always = _gathers_fast() and n * dtype.itemsize == 4
            assert kernels.traffic(idx, x, True, m)[6] == (always or (few and size <= most))
            assert kernels.traffic(idx, x, True, 7 * m)[6] == always  # rows are short
            found.append(kernels.spmm(ptr, idx, None, val, x))
        for other in found[1:]:
            assert_close(other, found[0], rtol=0, atol=0)
        assert_close(found[0], REFERENCES["spmm"](ptr, idx, None, val, x), rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(_shared_is_far(), reason="a rule for processors whose shared cache is near")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_column_prefetches_the_entries_of_short_rows_too(assume, dtype):
    """Rows are short in the mean, and some are long; x is outside of the first-level cache."""
    shortest, most = (5, 30_000) if dtype == torch.float32 else (4, 15_000)
    lengths = torch.randint(0, 2 * shortest - 1, (4000,))
    lengths[::200] = 200
    lengths[1] += 4000 * shortest - lengths.sum()
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    nse = int(ptr[-1])
    val = dense(nse, dtype=dtype)
    shared = 4 * most * dtype.itemsize  # below four times the bytes of columns and values
    for k in (most, most + 1):
        idx, x = torch.randint(k, (nse,), dtype=torch.int32), dense(k, 1, dtype=dtype)
        found = []
        for size in (shared, 1 << 40):
            assume(size)
            chosen = [kernels.traffic(idx, x, True, m)[6] for m in (4000, 4001)]
            assert chosen == [k == most and size == shared, 0]
            assert kernels.traffic(idx, x.expand(k, 2), True, 4000)[6] == 0
            found.append(kernels.spmm(ptr, idx, None, val, x))
        assert_close(found[1], found[0], rtol=0, atol=0)
        assert_close(found[0], REFERENCES["spmm"](ptr, idx, None, val, x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("short", [0, 1, 6, 12])
@pytest.mark.parametrize("places", [[0], [5, 6], [18, 19, 20], [511, 512], [700], [999], [0, 999]])
def test_long_rows_are_found_wherever_they_stand(short, places):
    """A row that is not found is not cut: one thread has all of it."""
    lengths = torch.full((1000,), short)
    lengths[places] = 9000
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    for index in (torch.int32, torch.int64):
        entries, rows = kernels.shares(ptr.to(index), 8)
        assert entries.sum() == lengths.sum()
        assert rows.sum() >= 1000  # those that are cut count several times
        assert entries.max() <= 1.25 * lengths.sum() / 8
