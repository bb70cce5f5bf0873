"""The softmax of segments and its backward against their references and the dense softmax."""

import pytest
import torch
from operands import (
    FLOATS,
    LINES,
    SEGMENT_WIDTHS,
    assert_near,
    both_threads,
    by_line,
    values,
    view,
    wide,
)

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")


def dense_softmax(line, *, log):
    return (torch.log_softmax if log else torch.softmax)(line.double(), 0)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", SEGMENT_WIDTHS)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_softmax(dtype, width, permuted, log):
    scale = 1 if log else 1e-3
    for counts in LINES.values():
        ptr, perm = view(counts, torch.int32, permuted=permuted)
        val = values(int(ptr[-1]), width, dtype) * 5
        out = both_threads("segment_softmax", ptr, perm, val, log)
        assert out.dtype == dtype
        assert_near(out, wide(REFERENCES["segment_softmax"](ptr, perm, val, log)), scale)
        for line, result in zip(by_line(ptr, perm, val), by_line(ptr, perm, out), strict=True):
            if len(line):
                assert_near(result, dense_softmax(line, log=log), scale)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", SEGMENT_WIDTHS)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_softmax_backward(dtype, width, permuted, log):
    for counts in LINES.values():
        ptr, perm = view(counts, torch.int32, permuted=permuted)
        val = values(int(ptr[-1]), width, dtype) * 5
        g = values(int(ptr[-1]), width, dtype)
        out = kernels.segment_softmax(ptr, perm, val, log)
        grad = both_threads("segment_softmax_backward", ptr, perm, out, g, log)
        reference = REFERENCES["segment_softmax_backward"](ptr, perm, out, g, log)
        lines = (by_line(ptr, perm, x) for x in (out, g, grad, reference))
        for y, cotangent, result, other in zip(*lines, strict=True):
            if len(y):
                y, cotangent = y.double(), cotangent.double()
                scale = (cotangent if log else cotangent * y).abs().sum(0)
                total = (cotangent if log else cotangent * y).sum(0)
                expected = cotangent - y.exp() * total if log else y * (cotangent - total)
                assert_near(result, expected, scale)
                assert_near(result, wide(other), scale)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("width", [None, 1, 3, 20])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_extreme_values(dtype, width, log):
    ptr, perm = view([1, 1, 3, 3, 3, 20, 20, 20, 40, 300], torch.int32, permuted=False)
    val = values(int(ptr[-1]), width, dtype)
    val[0], val[1] = torch.inf, -torch.inf
    val[2:5] = -torch.inf
    val[5], val[6] = -torch.inf, torch.inf
    val[8] = torch.nan
    val[11:31] = val[11:31] * 1e4
    val[31:40] = -torch.inf
    val[51:71] = -torch.inf
    val[80:] = val[80:] - 100
    out = both_threads("segment_softmax", ptr, perm, val, log)
    for line, result in zip(by_line(ptr, perm, val), by_line(ptr, perm, out), strict=True):
        assert_near(result, dense_softmax(line, log=log), 1 if log else 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponential_over_its_whole_range(dtype):
    # The exponential of an element, beside a zero that is the maximum: e^x / (1 + e^x)
    limit = 110.0 if dtype == torch.float32 else 760.0
    x = -torch.linspace(0, limit, 20_001, dtype=torch.float64).to(dtype)
    val = torch.stack([x, torch.zeros_like(x)], 1).reshape(-1)
    ptr = torch.arange(0, val.numel() + 1, 2)
    exact = x.double().exp() / (1 + x.double().exp())
    out = kernels.segment_softmax(ptr, None, val, False)[::2]
    info = torch.finfo(dtype)
    error = (out.double() - exact).abs()
    normal = exact > 4 * info.tiny
    relative = error[normal] / exact[normal]
    # In double what is exact is itself rounded, and exp, sum and quotient round once each.
    assert float(relative.max()) <= 4 * info.eps
    assert bool((error[~normal] <= 4 * info.tiny).all())
