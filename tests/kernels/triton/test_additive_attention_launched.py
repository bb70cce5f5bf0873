"""Triton attention with additive scores and its gradients, in the interpreter."""

import pytest
import torch
from interpreting import (
    DTYPES,
    LAUNCHED,
    PATTERNS,
    REFERENCES,
    by_columns,
    chunks_of_eight,
    close,
    long_lines,
    view,
)
from torch.testing import assert_close

from spgrad.kernels.triton.common.lines import LONG
from spgrad.kernels.triton.products.graphs import additive_attention

pytestmark = pytest.mark.usefixtures(chunks_of_eight.__name__, "poisoned")

M, K = 7, 11


def bias_of(biases, nse, dtype=torch.float32):
    """None, or (nse, biases), of which a fifth takes no part."""
    if biases is None:
        return None
    bias = torch.randn(nse, biases, dtype=dtype)
    return bias.masked_fill(torch.rand(nse, biases) < 0.2, -torch.inf)


def operands(heads, n, dtype=torch.float32, m=M, k=K):
    """left, right, x and the cotangent."""
    sizes = ((m, heads), (k, heads), (k, heads * n), (m, heads * n))
    return [torch.randn(*size).to(dtype) for size in sizes]


def both(by_rows, by_cols, bias, left, right, x, g, slope=0.2, split=True):
    """Results and gradients of the kernels, beside those of the references in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    wider = None if bias is None else bias.to(wide)
    of = left, right, x
    found = LAUNCHED["additive_attention"](*by_rows, bias, *of, slope, split)
    widened = [t.to(wide) for t in of]
    close(found, REFERENCES["additive_attention"](*by_rows, wider, *widened, slope, split))
    name = "additive_attention_backward"
    gradients = LAUNCHED[name](*by_cols, bias, *of, slope, g, *found)
    more = (t.to(wide) for t in (g, *found))
    close(gradients, REFERENCES[name](*by_cols, wider, *widened, slope, *more))
    return *found, *gradients


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("heads", "biases"), [(1, 1), (4, 4), (3, None), (3, 1)])
def test_patterns(pattern, heads, biases):
    by_rows = view(pattern, M, K, ordered=biases is None)
    bias = bias_of(biases, len(by_rows[1]))
    both(by_rows, by_columns(*by_rows, K), bias, *operands(heads, 3))


@pytest.mark.parametrize(
    ("heads", "biases", "n", "slope"),
    [
        *[(1, None, 1, 0.2), (8, None, 4, 0.0), (8, None, 4, 1.5), (5, 5, 8, 0.0)],
        *[(5, 5, 8, 0.2), (24, 24, 1, 1.5), (20, 1, 13, 0.2)],
    ],
)
def test_shapes(heads, biases, n, slope):
    """The last has three programs for the heads of a row, and one for those of a column."""
    by_rows = view("hubs", M, K, ordered=n == 8)
    bias = bias_of(biases, len(by_rows[1]))
    both(by_rows, by_columns(*by_rows, K), bias, *operands(heads, n), slope)


@pytest.mark.parametrize("biases", [None, 1, 2])
@pytest.mark.parametrize(
    ("dtype", "index"), list(zip(DTYPES, [torch.int32, torch.int64] * 2, strict=True))
)
def test_dtypes(dtype, index, biases):
    by_rows = view("hubs", M, K, index=index)
    bias = bias_of(biases, len(by_rows[1]), dtype)
    found = both(by_rows, by_columns(*by_rows, K), bias, *operands(2, 5, dtype))
    wide = torch.promote_types(dtype, torch.float32)
    assert [t.dtype for t in found[:5]] == [dtype, wide, wide, dtype, wide]
    assert {t.dtype for t in found[5:]} == {dtype}


def test_without_what_the_gradient_of_the_rows_needs():
    by_rows = view("hubs", M, K)
    by_cols = by_columns(*by_rows, K)
    whole = both(by_rows, by_cols, None, *(given := operands(3, 5)))
    less = both(by_rows, by_cols, None, *given, split=False)
    for one, other in zip(less, whole, strict=True):
        assert_close(one, other if one.shape == other.shape else other[:0], rtol=0, atol=0)
    assert [len(t) for t in less[3:6]] == [0, 0, 0]


def test_wide_heads_are_read_in_small_tiles():
    """Several steps for every line, short and long, and a program for each head."""
    by_rows = view("hubs", M, K)
    both(by_rows, by_columns(*by_rows, K), bias_of(1, len(by_rows[1])), *operands(2, 256))


@pytest.mark.parametrize(("heads", "biases", "n"), [(1, 1, 256), (4, 4, 2), (4, 1, 2)])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_scores_of_minus_infinity(heads, biases, n, slope):
    """Of whole lines, of first entries, which fill tiles, and of some in between."""
    m, nse = 16, 41
    ptr = torch.tensor([0, 11, 22, 30, 38, *[nse] * 12])
    idx = torch.cat([torch.arange(size) for size in (11, 11, 8, 8, 3)])
    perm = torch.randperm(nse)
    out_of_it = torch.zeros(nse, dtype=torch.bool)
    out_of_it[0:21] = out_of_it[22:29] = out_of_it[30:38] = out_of_it[39] = True
    out_of_it[idx == 9] = True  # a column
    bias = torch.randn(nse, biases)
    bias[perm[out_of_it]] = -torch.inf
    by_rows = ptr, idx, perm
    *given, g = operands(heads, n, m=m)
    g[5:] = torch.nan  # of the rows without entries
    found = both(by_rows, by_columns(*by_rows, K), bias, *given, g, slope)
    none = [0, 3, *range(5, m)]
    for result in found[:5]:
        assert result[none].eq(0).all()
    assert found[2][[1, 2, 4]].ge(1).all()
    d_left, d_right, dx, d_bias = found[5:]
    for gradient in (d_left[none], d_right[9], dx[9], d_bias[perm[out_of_it]]):
        assert gradient.eq(0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which interprets
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_score_that_is_no_number_makes_its_row_nan(number):
    by_rows = view("nothing_but_hubs", M, K)
    left, right, x, _ = operands(3, 2)
    left[3] = number
    args = *by_rows, None, left, right, x, 0.2, True
    found, wanted = LAUNCHED["additive_attention"](*args), REFERENCES["additive_attention"](*args)
    assert wanted[0].isnan().any(1).nonzero().flatten().tolist() == [3]
    assert_close(found[0], wanted[0], equal_nan=True)


@pytest.mark.parametrize(("heads", "biases"), [(2, None), (4, 4), (40, 1)])
def test_lines_of_many_parts(heads, biases):
    by_rows = long_lines(8)
    by_rows[1].remainder_(5)  # so that columns are long too
    bias = bias_of(biases, len(by_rows[1]))
    both(by_rows, by_columns(*by_rows, 5), bias, *operands(heads, 3, m=6, k=5))


def test_a_row_of_20_000_entries(monkeypatch):
    """Cut as it is on a GPU, beside rows of one chunk, one entry less, and one more."""
    monkeypatch.undo()
    by_rows = long_lines(LONG.value, 19)
    both(by_rows, by_columns(*by_rows, 17), None, *operands(2, 2, torch.float64, m=6, k=17))


def test_large_scores_do_not_overflow():
    by_rows = view("hubs", M, K)
    left, right, x, g = operands(3, 5, torch.float64)
    found = both(by_rows, by_columns(*by_rows, K), None, 500 * left, 500 * right, x, g)
    assert all(t.isfinite().all() for t in found)
    assert found[1].max() > 1000


def test_entries_repeat_and_stand_in_any_order():
    ptr = torch.tensor([0, 3, 3, 15])
    idx = torch.tensor([2, 2, 0, 5, 4, 5, 5, 1, 0, 3, 3, 3, 2, 1, 5])
    by_rows = ptr, idx, None
    both(by_rows, by_columns(*by_rows, 6), torch.randn(15, 2), *operands(2, 3, m=3, k=6))


def test_the_slope_of_double_precision_is_not_rounded():
    by_rows = view("hubs", M, K)
    args = *by_rows, None, *operands(2, 3, torch.float64)[:3], 1 / 3, True
    found, wanted = LAUNCHED["additive_attention"](*args), REFERENCES["additive_attention"](*args)
    assert_close(found, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("heads", "n", "m"), [(0, 0, M), (2, 0, M), (1, 300, M), (2, 257, M), (2, 3, 0)]
)
def test_operands_that_no_triton_kernel_takes(heads, n, m, monkeypatch):
    called = []

    def elsewhere(name, *args):
        called.append(name)
        return REFERENCES[name](*args)

    monkeypatch.setattr(additive_attention, "elsewhere", elsewhere)
    by_rows = view("no_entries" if m == 0 else "short", max(m, 1), K)
    by_rows = by_rows[0][: m + 1], *by_rows[1:]
    bias = bias_of(heads, len(by_rows[1]))
    both(by_rows, by_columns(*by_rows, K), bias, *operands(heads, n, m=m))
    assert called == ["additive_attention", "additive_attention_backward"]
