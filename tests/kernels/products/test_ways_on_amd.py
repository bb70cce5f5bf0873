"""How products on AMD's processors read rows of x that are far away; the results do not show it."""

from pathlib import Path

import pytest
import torch
from operands import dense, row_view
from torch.testing import assert_close

from spgrad import kernels

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.skipif(not kernels.compiled(), reason="only compiled kernels choose"),
]
CPU, THIRD = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


@pytest.mark.skipif(not (CPU.exists() and THIRD.exists()), reason="the system does not describe it")
def test_rows_are_prefetched_twice_on_amd_if_they_are_long_or_come_from_memory(assume):
    amd, third = "AuthenticAMD" in CPU.read_text(), int(THIRD.read_text().strip("K\n")) << 10

    def ways(n, nbytes, uses=3):
        x = torch.empty(nbytes // (4 * n), n)
        idx = torch.randint(len(x), (uses * len(x),), dtype=torch.int32)
        *_, ahead, _, _, _, twice, _, _, _ = kernels.traffic(idx, x, False, len(x)).tolist()
        return ahead > 0, bool(twice)

    second = assume(0)
    assert ways(16, second // 2) == (False, False)
    if third >= 8 * second:
        assert ways(32, 4 * second) == (True, False)
        assert [ways(16, third // 8, uses)[0] for uses in (3, 12)] == [True, False]
        assert ways(16, third // 2, 12)[0]
    assert ways(48, 4 * second) == (True, amd)
    assume(1 << 16)  # a shared cache, too: what is larger comes from memory
    assert ways(16, 1 << 20) == (True, amd)
    assert ways(32, 1 << 20) == (True, amd)


@pytest.mark.skipif(not CPU.exists(), reason="the system does not describe its processor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [56, 100, 160, 256, 300, 520])
def test_far_rows_are_read_by_blocks_of_columns_on_amd(assume, dtype, n):
    """The same bits as if rows of x are read to their end; two blocks are read together."""
    system = CPU.read_text()
    block = 512 if "avx512bw" in system else 256  # bytes
    two = block < n * dtype.itemsize <= 2 * block
    view = row_view(900, 5000, 6000, torch.int32)
    val, x, g = (dense(*size, dtype=dtype) for size in ((6000,), (5000, n), (900, n)))
    found, by_blocks = [], []
    for size in (1 << 16, 1 << 40):
        assume(size)
        by_blocks.append(int(kernels.traffic(view[1], x, True, 900)[10]))
        y, arg = kernels.spmm_reduce(*view, val, x, True)
        found.append((kernels.spmm(*view, val, x), *kernels.spmm_sddmm(*view, val, g, x), y, arg))
    assert by_blocks == [(1 + two) * ("AuthenticAMD" in system), 0]
    assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.skipif(not CPU.exists(), reason="the system does not describe its processor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [160, 172, 300, 520, 1030])
def test_rows_of_x_for_a_dense_row_are_read_one_after_the_other_on_amd(assume, dtype, n):
    """The same bits as without. Where most entries are no run, blocks of columns are read.

    The last columns are no whole vector, or none is left; there are more than 64 vectors.
    """
    amd = "AuthenticAMD" in CPU.read_text()
    ptr = torch.tensor([0, 3, 3, 5003, 5005, 5006], dtype=torch.int32)
    short = [torch.tensor([7, 70, 700]), torch.tensor([1, 2, 4999])]
    val, x = dense(5006, dtype=dtype), dense(5000, n, dtype=dtype)
    for between, order in ((torch.arange(5000), 3), (torch.randperm(5000), 1)):
        idx = torch.cat([short[0], between, short[1]]).int()
        found = []
        for size in (1 << 16, 1 << 40):
            assume(size)
            found.append(kernels.spmm(ptr, idx, None, val, x))
            if size == 1 << 16 and (order == 3 or n * dtype.itemsize > 1024):
                assert kernels.traffic(idx, x, True, 5)[10] == order * amd
        assert_close(found[0], found[1], rtol=0, atol=0)
