"""Triton attention and its gradients, in the interpreter."""

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

pytestmark = pytest.mark.usefixtures(chunks_of_eight.__name__, "poisoned")

M, N = 7, 11


def bias_of(biases, nse, dtype=torch.float32):
    """Of so many heads: none, (nse,) for 0, or (biases, nse)."""
    if biases is None:
        return None
    return torch.randn((biases, nse) if biases else nse, dtype=dtype)


def operands(heads, d, e, dtype=torch.float32, m=M, n=N):
    """q, k, v and the cotangent."""
    sizes = ((m, d), (n, d), (n, e), (m, e))
    return [torch.randn(heads, *size).to(dtype) for size in sizes]


def both(by_rows, by_cols, bias, q, k, v, g, scale=0.3):
    """Results and gradients of the kernels, beside those of the references."""
    wide = torch.promote_types(q.dtype, torch.float32)
    wider = None if bias is None else bias.to(wide)
    found = LAUNCHED["attention"](*by_rows, bias, q, k, v, scale)
    close(
        found, REFERENCES["attention"](*by_rows, wider, q.to(wide), k.to(wide), v.to(wide), scale)
    )
    delta = (g.to(wide) * found[0].to(wide)).sum(-1)
    of = q, k, v, g, found[1], delta
    wanted = REFERENCES["attention_backward"](
        *by_rows, *by_cols, wider, *(t.to(wide) for t in of), scale
    )
    name = "attention_backward"
    gradients = close(LAUNCHED[name](*by_rows, *by_cols, bias, *of, scale), wanted)
    return *found, *gradients


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("heads", "biases"), [(1, 0), (2, 2), (1, None)])
def test_patterns(pattern, heads, biases):
    by_rows = view(pattern, M, N, ordered=biases is None)
    bias = bias_of(biases, len(by_rows[1]))
    both(by_rows, by_columns(*by_rows, N), bias, *operands(heads, 3, 5))


@pytest.mark.parametrize(
    ("heads", "biases", "d", "e"), [(1, 1, 1, 5), (2, None, 5, 1), (2, 0, 8, 8), (4, 2, 2, 3)]
)
def test_shapes(heads, biases, d, e):
    by_rows = view("hubs", M, N, ordered=d == 5)
    bias = bias_of(biases, len(by_rows[1]))
    both(by_rows, by_columns(*by_rows, N), bias, *operands(heads, d, e))


@pytest.mark.parametrize(
    ("dtype", "index"), list(zip(DTYPES, [torch.int32, torch.int64] * 2, strict=True))
)
def test_dtypes(dtype, index):
    """One bias, of which the gradient is a sum over two heads."""
    by_rows = view("short", M, N, index=index)
    by_cols = by_columns(*by_rows, N)
    found = both(by_rows, by_cols, bias_of(0, len(by_rows[1]), dtype), *operands(2, 3, 5, dtype))
    out, lse, *gradients = found
    assert all(t.dtype == dtype for t in (out, *gradients))
    assert lse.dtype == torch.promote_types(dtype, torch.float32)


def test_wide_rows_are_read_in_small_tiles():
    """Several steps for every line, short and long."""
    by_rows = view("hubs", M, N)
    both(by_rows, by_columns(*by_rows, N), None, *operands(1, 256, 130))


@pytest.mark.parametrize(("heads", "biases", "d"), [(1, 0, 256), (4, 2, 2)])
def test_scores_of_minus_infinity(heads, biases, d):
    """Of whole lines, of first entries, which fill tiles, and of some in between."""
    m, nse = 16, 41
    ptr = torch.tensor([0, 11, 22, 30, 38, *[nse] * 12])  # two long lines, and tiles of two entries
    idx = torch.cat([torch.arange(size) for size in (11, 11, 8, 8, 3)])
    perm = torch.randperm(nse)
    out_of_it = torch.zeros(nse, dtype=torch.bool)
    out_of_it[0:21] = out_of_it[22:29] = out_of_it[30:38] = out_of_it[39] = True
    out_of_it[idx == 9] = True  # a column
    bias = bias_of(biases, nse)
    bias[..., perm[out_of_it]] = -torch.inf
    by_rows = ptr, idx, perm
    of = operands(heads, d, 3, m=m)
    out, lse, dq, dk, dv, d_bias = both(by_rows, by_columns(*by_rows, N), bias, *of)
    none = [0, 3, *range(5, m)]
    assert lse[:, none].eq(-torch.inf).all()
    assert lse[:, [1, 2, 4]].isfinite().all()
    for gradient in (out[:, none], dq[:, none], dk[:, 9], dv[:, 9], d_bias[..., perm[out_of_it]]):
        assert gradient.eq(0).all()


@pytest.mark.parametrize(("heads", "biases"), [(2, None), (4, 2)])
def test_lines_of_many_parts(heads, biases):
    by_rows = long_lines(8)
    by_rows[1].remainder_(5)  # so that columns are long too
    bias = bias_of(biases, len(by_rows[1]))
    both(by_rows, by_columns(*by_rows, 5), bias, *operands(heads, 3, 5, m=6, n=5))


def test_a_row_of_20_000_entries(monkeypatch):
    """Cut as it is on a GPU, beside rows of one chunk, one entry less, and one more."""
    monkeypatch.undo()
    by_rows = long_lines(LONG.value, 19)
    args = *by_rows, None, *operands(1, 2, 3, m=6, n=17)[:3], 0.3
    close(LAUNCHED["attention"](*args), REFERENCES["attention"](*args))


def test_large_scores_do_not_overflow():
    by_rows = view("hubs", M, N)
    q, k, v, g = operands(1, 3, 5, torch.float64)
    found = both(by_rows, by_columns(*by_rows, N), None, 100 * q, 100 * k, v, g)
    assert all(t.isfinite().all() for t in found[2:])
    assert found[1].max() > 1000


def test_entries_repeat_and_stand_in_any_order():
    ptr = torch.tensor([0, 3, 3, 15])
    idx = torch.tensor([2, 2, 0, 5, 4, 5, 5, 1, 0, 3, 3, 3, 2, 1, 5])
    by_rows = ptr, idx, None
    both(by_rows, by_columns(*by_rows, 6), torch.randn(15), *operands(1, 3, 2, m=3, n=6))


def test_columns_whose_entries_stand_in_place():
    """Values in the order of columns: the view by rows has the permutation."""
    cols_ptr, cols_idx, _ = view("hubs", N, M, ordered=True)
    by_rows = by_columns(cols_ptr, cols_idx, None, M)
    both(by_rows, (cols_ptr, cols_idx, None), bias_of(2, len(cols_idx)), *operands(2, 3, 5))


def test_the_scale_of_double_precision_is_not_rounded():
    by_rows = view("hubs", M, N)
    args = *by_rows, None, *operands(1, 3, 5, torch.float64)[:3], 1 / 3
    found, wanted = LAUNCHED["attention"](*args), REFERENCES["attention"](*args)
    assert_close(found, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("heads", "d", "e", "m"),
    [(0, 3, 2, M), (2, 0, 2, M), (2, 3, 0, M), (1, 300, 3, M), (2, 3, 2, 0)],
)
def test_operands_that_no_triton_kernel_takes(heads, d, e, m):
    by_rows = view("no_entries" if m == 0 else "short", max(m, 1), N)
    by_rows = by_rows[0][: m + 1], *by_rows[1:]
    both(by_rows, by_columns(*by_rows, N), bias_of(0, len(by_rows[1])), *operands(heads, d, e, m=m))
