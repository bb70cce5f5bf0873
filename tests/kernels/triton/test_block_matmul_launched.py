"""Triton products with matrices of dense blocks, in the interpreter."""

import pytest
import torch
from interpreting import DTYPES, beside_reference, chunks_of_eight, long_lines, view

pytestmark = pytest.mark.usefixtures("poisoned")

BLOCKS = [(2, 2), (3, 5), (4, 4), (16, 16), (16, 8), (32, 32)]
TURNED = pytest.mark.parametrize("transposed", [False, True], ids=["by lines", "transposed"])


def check(of_blocks, lines, others, blocks, n, transposed, dtype=torch.float32):
    """Both products are those of the references, for a view with so many lines of blocks."""
    height, width = blocks
    sizes = (len(of_blocks[1]) * height * width,), (others * width, n), (lines * height, n)
    val, x, g = (torch.randn(size, dtype=dtype) / 4 for size in sizes)  # sums of about 1
    beside_reference("block_spmm", *of_blocks, val, x, *blocks, transposed)
    beside_reference("block_sddmm", *of_blocks, g, x, *blocks, transposed)


@TURNED
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_sizes_and_columns(blocks, transposed):
    for n, pattern in ((1, "short"), (5, "one_line"), (40, "short")):
        check(view(pattern, 4, 6, ordered=n == 5), 4, 6, blocks, n, transposed)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, index):
    check(view("one_line", 3, 5, index), 3, 5, (4, 7), 5, False, dtype)
    check(view("short", 2, 8, index), 2, 8, (16, 32), 5, True, dtype)


@TURNED
@pytest.mark.parametrize("pattern", ["no_entries", "one_line", "nothing_but_hubs"])
def test_lines_without_blocks_and_with_all(pattern, transposed):
    check(view(pattern, 3, 9), 3, 9, (2, 3), 5, transposed)


@TURNED
@pytest.mark.parametrize("blocks", [(1, 100), (100, 1), (70, 70)], ids=str)
def test_blocks_of_several_tiles(blocks, transposed):
    check(view("one_line", 3, 3), 3, 3, blocks, 3, transposed)


@TURNED
@pytest.mark.usefixtures(chunks_of_eight.__name__)
@pytest.mark.parametrize(("blocks", "n"), [((2, 3), 5), ((20, 16), 1)], ids=str)
def test_long_lines_are_cut_into_parts(blocks, n, transposed):
    check(long_lines(8), 6, 17, blocks, n, transposed)


@pytest.mark.usefixtures(chunks_of_eight.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_parts_are_not_rounded(dtype):
    check(long_lines(8, index=torch.int64), 6, 17, (2, 2), 3, False, dtype)


def test_more_columns_than_a_tile_has():
    check(view("short", 3, 8), 3, 8, (2, 4), 130, False)


@TURNED
def test_blocks_repeat_and_stand_in_any_order(transposed):
    ptr = torch.tensor([0, 3, 3, 15])
    idx = torch.tensor([2, 2, 0, 5, 4, 5, 5, 1, 0, 3, 3, 3, 2, 1, 5])
    perm = torch.randperm(15) if transposed else None
    check((ptr, idx, perm), 3, 6, (4, 2), 4, transposed)


def test_operands_that_no_triton_kernel_takes():
    of_blocks = view("short", 5, 6)
    check(of_blocks, 5, 6, (2, 3), 4, True, torch.complex64)
    check(of_blocks, 5, 6, (2, 3), 0, False)
    check((torch.zeros(1, dtype=torch.int32), *view("no_entries")[1:]), 0, 6, (2, 3), 4, False)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's
def test_not_finite_numbers_stay_in_their_rows():
    """Though what a block does not fill of a tile is multiplied too."""
    of_blocks = view("short", 7, 8)
    val, x, g = (torch.randn(s) for s in ((6 * len(of_blocks[1]),), (24, 3), (14, 3)))
    x[4, 1], x[0, 0], val[7], g[5, 2] = torch.inf, torch.nan, -torch.inf, torch.inf
    beside_reference("block_spmm", *of_blocks, val, x, 2, 3, False)
    beside_reference("block_sddmm", *of_blocks, g, x, 2, 3, False)
