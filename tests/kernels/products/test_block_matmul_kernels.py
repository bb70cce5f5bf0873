"""The products of blocks against their references, and against those of single elements."""

import pytest
import torch
from operands import assert_near, both_threads, dense, row_view

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

BLOCKS = [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (3, 5), (7, 2), (4, 8)]
COLUMNS = [0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 33, 64, 70, 130]
TURNED = pytest.mark.parametrize("transposed", [False, True], ids=["by lines", "transposed"])
PERMUTED = pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])


def operands(name, view, blocks, lines, others, n, dtype):
    """What `name` takes behind its view, but for `transposed`."""
    p, q = blocks
    first = (len(view[1]) * p * q,) if name == "block_spmm" else (lines * p, n)
    return dense(*first, dtype=dtype), dense(others * q, n, dtype=dtype), p, q


def check(name, *args):
    """The result, the same on one thread and on two, is that of the reference in float64."""
    actual = both_threads(name, *args)
    wide = [t.double() if getattr(t, "is_floating_point", bool)() else t for t in args]
    expected = REFERENCES[name](*wide)
    assert_near(actual, expected, scale=float(expected.abs().max()) if expected.numel() else 1.0)


@pytest.mark.parametrize("name", ["block_spmm", "block_sddmm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@TURNED
def test_sizes_and_widths(name, dtype, blocks, transposed):
    for n in COLUMNS:
        view = row_view(9, 7, 30, torch.int32, permuted=n % 2 == 1)
        check(name, *view, *operands(name, view, blocks, 9, 7, n, dtype), transposed)


VIEWS = {
    "no lines": (0, 5, 0, None),
    "no columns": (5, 0, 0, None),
    "no blocks": (4, 3, 0, None),
    "one block": (1, 1, 1, None),
    "one line": (1, 50, 30, None),
    "a dense line": (100, 80, 4000, 17),
    "tall": (3000, 3, 40, None),
}


@pytest.mark.parametrize("name", ["block_spmm", "block_sddmm"])
@pytest.mark.parametrize("case", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@PERMUTED
@TURNED
def test_views(name, case, index, permuted, transposed):
    lines, others, count, dense_line = case
    view = row_view(lines, others, count, index, permuted=permuted, dense_row=dense_line)
    for n in (0, 1, 5, 32):
        args = operands(name, view, (4, 4), lines, others, n, torch.float32)
        check(name, *view, *args, transposed)


@pytest.mark.parametrize("n", [1, 7, 33, 130])
@pytest.mark.parametrize("blocks", [(2, 2), (4, 4), (16, 16), (3, 5)], ids=str)
@TURNED
def test_infinities_stay_in_their_column_and_sum(n, blocks, transposed):
    view = row_view(20, 15, 60, torch.int64)
    for name in ("block_spmm", "block_sddmm"):
        first, x, *sizes = operands(name, view, blocks, 20, 15, n, torch.float32)
        x[3, n // 2] = torch.inf
        x[5, n - 1] = -torch.inf
        args = *view, first.abs(), x, *sizes, transposed
        actual, expected = getattr(kernels, name)(*args), REFERENCES[name](*args)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("blocks", [(2, 2), (4, 4), (3, 5)], ids=str)
@TURNED
def test_the_same_as_with_single_elements(blocks, transposed):
    ptr, idx, _ = row_view(20, 15, 60, torch.int64)
    single = kernels.expand_blocks(ptr, idx, *blocks, transposed)
    val, x, *_ = operands("block_spmm", (ptr, idx), blocks, 20, 15, 12, torch.float64)
    g = dense(20 * blocks[0], 12, dtype=torch.float64)
    y = kernels.block_spmm(ptr, idx, None, val, x, *blocks, transposed)
    torch.testing.assert_close(y, kernels.spmm(*single, val, x))
    out = kernels.block_sddmm(ptr, idx, None, g, x, *blocks, transposed)
    torch.testing.assert_close(out, kernels.sddmm(*single, g, x))


@pytest.mark.parametrize("name", ["block_spmm", "block_sddmm"])
@PERMUTED
def test_blocks_are_registered_as_torch_expects(name, permuted):
    view = row_view(4, 3, 6, torch.int32, permuted=permuted)
    args = *view, *operands(name, view, (2, 3), 4, 3, 9, torch.float32), True
    torch.library.opcheck(getattr(kernels, name), args)


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_blocks_are_refused():
    ptr, idx, _ = row_view(4, 3, 6, torch.int32)
    val, x = dense(24, dtype=torch.float32), dense(6, 2, dtype=torch.float32)
    g = dense(8, 2, dtype=torch.float32)
    for name, args, message in [
        ("spmm", (idx.long(), None, val, x, 2, 2), "`idx` has dtype Long; the call needs Int"),
        ("spmm", (idx, None, val[1:].clone(), x, 2, 2), "`val` has size 23 in dimension 0, not 24"),
        ("spmm", (idx, None, val, x[1:].clone(), 2, 2), "`x` has 5 rows, which blocks of 2"),
        ("spmm", (idx, None, val, x.T, 2, 2), "`x` is not contiguous"),
        ("spmm", (idx, None, val, x, 0, 2), "`block_lines` and `block_width` are 0 and 2"),
        ("spmm", (idx, None, val.half(), x.half(), 2, 2), "float32 and float64, not Half"),
        ("sddmm", (idx, None, g[1:].clone(), x, 2, 2), "`g` has size 7 in dimension 0, not 8"),
        ("sddmm", (idx, None, g, x[:, 1:].clone(), 2, 2), "`g` has size 2 in dimension 1, not 1"),
        ("sddmm", (idx, None, g, x[1:].clone(), 2, 2), "`x` has 5 rows, which blocks of 2"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            getattr(kernels, f"block_{name}")(ptr, *args, False)
