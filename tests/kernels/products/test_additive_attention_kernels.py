"""The kernels of attention with additive scores against their references; threads; long lines."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

# rows, columns, entries, heads, columns of each
SHAPES = {
    "plain": (50, 40, 300, 8, 4),
    "long rows": (3, 20_000, 18_000, 8, 4),
    "long columns": (20_000, 3, 18_000, 4, 5),
    "several batches": (300, 300, 8000, 8, 16),
    "one head": (60, 60, 900, 1, 7),
    "two heads": (60, 60, 900, 2, 33),
    "three heads": (60, 60, 900, 3, 4),
    "sixteen heads": (60, 60, 900, 16, 2),
    "twenty heads": (60, 60, 900, 20, 3),
    "no entries": (10, 10, 0, 4, 4),
    "no columns of heads": (6, 7, 20, 3, 0),
    "no heads": (6, 7, 20, 0, 0),
    "no rows": (0, 7, 0, 3, 2),
}
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-10}


def both(name, *args):
    """The results on one thread and on two, equal to the reference's."""
    tolerance = TOLERANCE[args[6].dtype]
    torch.set_num_threads(1)
    found = getattr(kernels, name)(*args)
    wanted = REFERENCES[name](*args)
    assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    torch.set_num_threads(2)
    assert_close(getattr(kernels, name)(*args), found, rtol=0, atol=0, equal_nan=True)
    return wanted


def drawn_view(m, n, entries, index_dtype):
    """A view by rows whose values are shuffled, and the same pattern by columns."""
    keys = torch.randint(max(m * n, 1), (entries,)).unique()
    row, idx = (keys // max(n, 1)).to(index_dtype), (keys % max(n, 1)).to(index_dtype)
    ptr, perm = kernels.compress(row, m), torch.randperm(len(keys)).to(index_dtype)
    by_cols = kernels.transpose_plan(ptr, idx, n)
    return (ptr, idx, perm), (*by_cols[:2], perm[by_cols[2].long()])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [(torch.float32, torch.int32), (torch.float64, torch.int32), (torch.float64, torch.int64)],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_forwards_and_backwards(shape, dtype, index_dtype, biased):
    m, n, entries, heads, width = shape
    by_rows, by_cols = drawn_view(m, n, entries, index_dtype)
    left, right = torch.randn(m, heads, dtype=dtype), torch.randn(n, heads, dtype=dtype)
    x, g = (torch.randn(lines, heads * width, dtype=dtype) for lines in (n, m))
    bias = torch.randn(len(by_rows[1]), heads, dtype=dtype) if biased else None
    if biased:
        bias[::3] = -torch.inf
    operands = bias, left, right, x, 0.2
    found = both("additive_attention", *by_rows, *operands, True)
    whole = kernels.additive_attention(*by_rows, *operands, False)
    for got, want in zip(whole, found, strict=True):
        assert_close(got, want if got.shape == want.shape else want[:0], rtol=2e-4, atol=2e-4)
    *grads, _ = both("additive_attention_backward", *by_cols, *operands, g, *found)
    without = *found[:3], found[3][:0], found[4][:0]
    none, *others = both("additive_attention_backward", *by_cols, *operands, g, *without)[:-1]
    assert none.shape == (0, heads)
    assert_close(others, grads[1:], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", ["plain", "long rows", "several batches", "sixteen heads"])
def test_results_that_are_larger_than_the_caches(assume, shape, dtype):
    """They are written past the caches, which changes no bit."""
    m, n, entries, heads, width = SHAPES[shape]
    by_rows, by_cols = drawn_view(m, n, entries, torch.int32)
    left, right = torch.randn(m, heads, dtype=dtype), torch.randn(n, heads, dtype=dtype)
    x, g = (torch.randn(lines, heads * width, dtype=dtype) for lines in (n, m))
    operands = None, left, right, x, 0.2
    results = []
    for size in (1 << 40, 16):
        assume(size)
        found = kernels.additive_attention(*by_rows, *operands, True)
        grads = kernels.additive_attention_backward(*by_cols, *operands, g, *found)
        results.append((*found, *grads))
    assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_a_row_of_minus_infinity_gives_nothing(heads, slope):
    by_rows = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 1]), None
    bias = torch.tensor([-torch.inf, -torch.inf, 0.0])[:, None].expand(3, heads).contiguous()
    left, right, x = torch.randn(3, heads), torch.randn(2, heads), torch.randn(2, 4 * heads)
    operands = bias, left, right, x, slope
    found = both("additive_attention", *by_rows, *operands, True)
    for result in found:
        assert result[:2].eq(0).all()
    by_cols = kernels.transpose_plan(*by_rows[:2], 2)
    g = torch.randn(3, 4 * heads)
    g[1] = torch.nan  # of the row without entries
    grads = both("additive_attention_backward", *by_cols, *operands, g, *found)
    for grad, lines in zip(grads, (slice(2), slice(1), slice(1), slice(2)), strict=True):
        assert grad[lines].eq(0).all()


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_score_that_is_no_number_makes_its_row_nan(heads, number):
    by_rows, _ = drawn_view(20, 20, 100, torch.int32)
    left, right, x = torch.randn(20, heads), torch.randn(20, heads), torch.randn(20, 4 * heads)
    left[3] = number
    found = kernels.additive_attention(*by_rows, None, left, right, x, 0.2, True)
    wanted = REFERENCES["additive_attention"](*by_rows, None, left, right, x, 0.2, True)
    assert by_rows[0].diff()[3] > 0
    assert wanted[0].isnan().any(1).nonzero().flatten().tolist() == [3]
    assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-4, equal_nan=True)


def test_scores_that_would_overflow():
    by_rows, by_cols = drawn_view(30, 30, 200, torch.int32)
    left, right, x = 200 * torch.randn(30, 8), 200 * torch.randn(30, 8), torch.randn(30, 32)
    operands = None, left, right, x, 0.2
    found = both("additive_attention", *by_rows, *operands, True)
    assert found[0].isfinite().all()
    both("additive_attention_backward", *by_cols, *operands, torch.randn(30, 32), *found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8, 17])
def test_the_backward_has_the_scores_of_the_forward(heads, dtype):
    """To the bit: of a large score, the last bits move its exponential."""
    lines = torch.arange(21), torch.arange(20), None
    left, right = (1e5 * torch.rand(20, heads, dtype=dtype) - 2e5 for _ in range(2))
    x, g, bias = (torch.randn(20, heads, dtype=dtype) for _ in range(3))
    operands = bias, left, right, x, 0.2
    found = kernels.additive_attention(*lines, *operands, True)
    assert torch.equal(found[0], x)
    assert torch.equal(kernels.additive_attention_backward(*lines, *operands, g, *found)[2], g)


def test_malformed_calls_are_refused():
    ptr, idx = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    left, right, x = torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 8)
    found = kernels.additive_attention(ptr, idx, None, None, left, right, x, 0.2, True)
    by_cols = kernels.transpose_plan(ptr, idx, 3)
    g = torch.randn(2, 8)
    forward, backward = kernels.additive_attention, kernels.additive_attention_backward
    wrong = [
        (forward, ptr[:2], idx, None, None, left, right, x, 0.2, True),
        (forward, ptr, idx, None, torch.randn(3, 3), left, right, x, 0.2, True),
        (forward, ptr, idx, None, None, left, right[:2], x, 0.2, True),
        (forward, ptr, idx, None, None, left, right, x[:, :7].contiguous(), 0.2, True),
        (forward, ptr, idx, None, None, left.half(), right.half(), x.half(), 0.2, True),
        (backward, ptr, idx, None, None, left, right, x, 0.2, g, *found),
        (backward, *by_cols, None, left, right, x, 0.2, g[:1], *found),
        (backward, *by_cols, None, left, right, x, 0.2, g, *found[:3], found[3][:1], found[4][:1]),
        (backward, *by_cols, None, left, right, x, 0.2, g, *found[:4], found[4][:0]),
    ]
    for kernel, *arguments in wrong:
        if kernels.compiled():
            with pytest.raises(RuntimeError, match="spgrad: "):
                kernel(*arguments)
