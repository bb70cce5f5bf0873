"""Attention over blocks against its reference, which attends to single elements; threads."""

import pytest
import torch
from operands import row_view
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

# rows and columns of blocks, blocks, a dense row of blocks, features of queries and values, heads
VIEWS = {
    "plain": (9, 7, 30, None, 8, 5, 2),
    "a dense line": (40, 700, 900, 17, 3, 4, 1),
    "one line": (1, 500, 300, None, 4, 2, 2),
    "tall": (900, 3, 400, None, 4, 4, 1),
    "wide features": (5, 6, 14, None, 70, 130, 3),
    "no blocks": (4, 3, 0, None, 4, 4, 1),
    "no lines": (0, 5, 0, None, 3, 2, 1),
    "no columns": (4, 0, 0, None, 3, 2, 1),
    "no features": (4, 5, 9, None, 0, 2, 2),
    "no values": (4, 5, 9, None, 3, 0, 2),
    "no heads": (4, 5, 9, None, 3, 2, 0),
}
BLOCKS = [(1, 1), (2, 8), (4, 4), (16, 16), (3, 5), (7, 64), (64, 9)]
TOLERANCE = {torch.float32: 3e-4, torch.float64: 1e-10}
DTYPES = pytest.mark.parametrize(
    ("dtype", "index_dtype"), [(torch.float32, torch.int64), (torch.float64, torch.int32)], ids=str
)


def both(name, *args, dtype):
    """The results on one thread and on two, equal to the reference's."""
    tolerance = TOLERANCE[dtype]
    torch.set_num_threads(1)
    found = getattr(kernels, name)(*args)
    assert_close(found, REFERENCES[name](*args), rtol=tolerance, atol=tolerance)
    torch.set_num_threads(2)
    assert_close(getattr(kernels, name)(*args), found, rtol=0, atol=0)
    return found


def check(case, blocks, dtype, index_dtype, *, permuted, biases, bools=False):
    m, n, count, dense_line, d, e, heads = case
    height, width = blocks
    ptr, idx, perm = row_view(m, n, count, index_dtype, permuted=permuted, dense_row=dense_line)
    q, k, v, g = (
        torch.randn(heads, lines, features, dtype=dtype)
        for lines, features in (
            (m * height, d),
            (n * width, d),
            (n * width, e),
            (m * height, e),
        )
    )
    bias, nse = None, len(idx) * height * width
    if biases:
        bias = torch.randn(biases, nse, dtype=dtype)
        bias[:, : nse // 4] = -torch.inf
        bias = bias[0].clone() if biases == 1 else bias
        bias = bias > 0 if bools else bias
    out, lse = both("block_attention", ptr, idx, perm, bias, q, k, v, 0.7, *blocks, dtype=dtype)
    by_cols = kernels.transpose_plan(ptr, idx, n)
    columns = *by_cols[:2], by_cols[2] if perm is None else perm[by_cols[2].long()]
    arrays = ptr, idx, perm, *columns, bias, q, k, v, g, lse, (g * out).sum(-1)
    both("block_attention_backward", *arrays, 0.7, *blocks, dtype=dtype)


@pytest.mark.parametrize("bools", [False, True])
@pytest.mark.parametrize("biases", [0, 1, 2])
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("case", VIEWS.values(), ids=VIEWS)
@DTYPES
def test_views(case, dtype, index_dtype, permuted, biases, bools):
    if biases == 2 and case[-1] % 2:
        pytest.skip("an odd number of heads")
    check(case, (4, 8), dtype, index_dtype, permuted=permuted, biases=biases, bools=bools)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@DTYPES
def test_blocks(blocks, dtype, index_dtype):
    check(VIEWS["plain"], blocks, dtype, index_dtype, permuted=False, biases=1)


def test_malformed_calls_are_refused():
    ptr, idx = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    q, k, v = torch.randn(2, 4, 4), torch.randn(2, 6, 4), torch.randn(2, 6, 5)
    for wrong in (
        (ptr[:2], idx, None, None, q, k, v, 1.0, 2, 3),
        (ptr, idx, None, torch.randn(17), q, k, v, 1.0, 2, 3),
        (ptr, idx, None, torch.ones(17) > 0, q, k, v, 1.0, 2, 3),
        (ptr, idx, None, torch.ones(18).int(), q, k, v, 1.0, 2, 3),
        (ptr, idx, None, None, q, k, v, 1.0, 2, 4),
        (ptr, idx, None, None, q, k, v, 1.0, 1, 3),
        (ptr, idx, None, None, q, k, v, 1.0, 0, 3),
        (ptr, idx, None, None, q, k[..., :3], v, 1.0, 2, 3),
        (ptr, idx, None, None, q.half(), k.half(), v.half(), 1.0, 2, 3),
    ):
        if kernels.compiled():
            with pytest.raises(RuntimeError, match="spgrad: "):
                kernels.block_attention(*wrong)


def test_opcheck():
    ptr, idx = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    q, k, v = torch.randn(2, 4, 4), torch.randn(2, 6, 4), torch.randn(2, 6, 5)
    bias, lse, g = torch.randn(18), torch.randn(2, 4), torch.randn(2, 4, 5)
    ops = torch.ops.spgrad
    by_cols = kernels.transpose_plan(ptr, idx, 2)
    for added in (bias, bias > 0, None):
        arrays = ptr, idx, None, added, q, k, v
        torch.library.opcheck(ops.block_attention.default, (*arrays, 0.5, 2, 3))
        arrays = ptr, idx, None, *by_cols, added, q, k, v, g, lse, lse
        torch.library.opcheck(ops.block_attention_backward.default, (*arrays, 0.5, 2, 3))
