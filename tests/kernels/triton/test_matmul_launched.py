"""Triton spmm, sddmm, both in one pass, and several heads, in the interpreter."""

import pytest
import torch
from interpreting import DTYPES, PATTERNS, beside_reference, chunks_of_eight, long_lines, view

from spgrad.kernels.triton.common.lines import LONG

pytestmark = pytest.mark.usefixtures(chunks_of_eight.__name__, "poisoned")

patterns = pytest.mark.parametrize("pattern", PATTERNS)


@patterns
@pytest.mark.parametrize("n", [1, 3, 8, 40])
def test_products(pattern, n):
    m, k = 13, 17
    ptr, idx, perm = view(pattern, m, k, ordered=n == 3)
    val, x, g = torch.randn(len(idx)), torch.randn(k, n), torch.randn(m, n)
    beside_reference("spmm", ptr, idx, perm, val, x)
    beside_reference("spmm", ptr, idx, perm, val, x[:, 0].contiguous())
    beside_reference("sddmm", ptr, idx, perm, g, x)
    beside_reference("spmm_sddmm", ptr, idx, perm, val, g, x)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, index):
    ptr, idx, perm = view("hubs", index=index)
    val, x, g = (torch.randn(size, dtype=dtype) for size in ((len(idx),), (17, 5), (13, 5)))
    beside_reference("spmm", ptr, idx, perm, val, x)
    beside_reference("sddmm", ptr, idx, perm, g, x)
    beside_reference("spmm_sddmm", ptr, idx, perm, val, g, x)


@patterns
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_heads(pattern, heads):
    m, k, n = 13, 17, 5
    ptr, idx, perm = view(pattern, m, k)
    val, x, g = (torch.randn(s, heads * w) for s, w in ((len(idx), 1), (k, n), (m, n)))
    beside_reference("heads_spmm", ptr, idx, perm, val, x)
    beside_reference("heads_sddmm", ptr, idx, perm, g, x, heads)


WIDTHS = [1, 2, 3, 17, 128, 512]
LOW = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("n", WIDTHS)
def test_widths(n, dtype, index):
    """Of rows, from one number to as many as one pass forms both gradients for."""
    m, k = 8, 11
    ptr, idx, perm = view("hubs", m, k, index)
    sizes = (len(idx),), (k, n), (m, n)
    val, x, g = (torch.randn(size).to(dtype) / n**0.25 for size in sizes)
    beside_reference("spmm", ptr, idx, perm, val, x)
    beside_reference("sddmm", ptr, idx, perm, g, x)
    beside_reference("spmm_sddmm", ptr, idx, perm, val, g, x)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "n"), [(1, 2), (2, 17), (3, 128), (8, 64)])
def test_widths_and_dtypes_of_heads(heads, n, dtype, index):
    m, k = 8, 11
    ptr, idx, perm = view("hubs", m, k, index, ordered=heads == 1)
    sizes = (len(idx), heads), (k, heads * n), (m, heads * n)
    val, x, g = (torch.randn(size).to(dtype) / n**0.25 for size in sizes)
    beside_reference("heads_spmm", ptr, idx, perm, val, x)
    beside_reference("heads_sddmm", ptr, idx, perm, g, x, heads)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_line_of_20_000_entries(heads, monkeypatch):
    """Cut as it is on a GPU, beside lines of one chunk, one entry less, and one more."""
    monkeypatch.undo()
    ptr, idx, perm = long_lines(LONG.value, 19)
    nse, n = len(idx), 3 * heads
    val, x, g = (torch.randn(s, dtype=torch.float64) for s in ((nse, heads), (17, n), (6, n)))
    beside_reference("heads_spmm", ptr, idx, perm, val, x)
    beside_reference("heads_sddmm", ptr, idx, perm, g, x, heads)
    if heads == 1:
        beside_reference("spmm", ptr, idx, perm, val[:, 0], x)
        beside_reference("sddmm", ptr, idx, perm, g, x)
        beside_reference("spmm_sddmm", ptr, idx, perm, val[:, 0], g, x)


def test_a_ragged_batch():
    """As one block-diagonal matrix: of many entries, of none, of few."""
    items = [view(kind, 5, 7) for kind in ("nothing_but_hubs", "no_entries", "short", "one_line")]
    counts = [ptr.diff() for ptr, _, _ in items]
    ptr = torch.cat([torch.zeros(1), torch.cat(counts).cumsum(0)]).int()
    idx = torch.cat([own + 7 * i for i, (_, own, _) in enumerate(items)]).int()
    val, x, g = torch.randn(len(idx)), torch.randn(28, 3), torch.randn(20, 3)
    for perm in (None, torch.randperm(len(idx)).int()):
        beside_reference("spmm", ptr, idx, perm, val, x)
        beside_reference("sddmm", ptr, idx, perm, g, x)
        beside_reference("spmm_sddmm", ptr, idx, perm, val, g, x)


@pytest.mark.parametrize("n", [130, 600])
def test_many_columns(n):
    """More than a tile has, and than both gradients are formed for in one pass."""
    ptr, idx, perm = view("hubs", 8, 12)
    sizes = (len(idx),), (12, n), (8, n)
    val, x, g = (torch.randn(size, dtype=torch.float64) for size in sizes)
    beside_reference("spmm", ptr, idx, perm, val, x)
    beside_reference("sddmm", ptr, idx, perm, g, x)
    beside_reference("spmm_sddmm", ptr, idx, perm, val, g, x)


def test_entries_repeat_and_stand_in_any_order():
    ptr = torch.tensor([0, 3, 3, 15])
    idx = torch.tensor([2, 2, 0, 5, 4, 5, 5, 1, 0, 3, 3, 3, 2, 1, 5])
    val, x, g = torch.randn(15), torch.randn(6, 4), torch.randn(3, 4)
    beside_reference("spmm_sddmm", ptr, idx, None, val, g, x)
    beside_reference("spmm", ptr, idx, None, val, x)


def test_operands_that_no_triton_kernel_takes():
    ptr, idx, perm = view("short")
    for dtype in (torch.complex64, torch.int32):
        val = torch.randint(-4, 4, (len(idx),)).to(dtype)
        x, g = (torch.randint(-4, 4, (size, 3)).to(dtype) for size in (17, 13))
        beside_reference("spmm", ptr, idx, perm, val, x)
        beside_reference("spmm_sddmm", ptr, idx, perm, val, g, x)
    none = torch.randn(17, 0), torch.randn(13, 0)
    beside_reference("spmm_sddmm", ptr, idx, perm, torch.randn(len(idx)), none[1], none[0])


def test_not_finite_numbers_stay_in_their_rows():
    ptr, idx, perm = view("hubs")
    val, x = torch.randn(len(idx)), torch.randn(17, 3)
    x[4, 1], x[0, 0] = torch.inf, torch.nan
    beside_reference("spmm", ptr, idx, perm, val, x)
