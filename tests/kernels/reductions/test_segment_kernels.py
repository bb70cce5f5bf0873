"""The segment kernels against their references and against dense torch, line by line."""

import itertools

import pytest
import torch
from operands import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    LINES,
    ROUNDING,
    SEGMENT_WIDTHS,
    assert_near,
    both_threads,
    by_line,
    values,
    view,
    wide,
)
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

INDEX_DTYPES = [torch.int32, torch.int64]
REDUCTIONS = ["sum", "prod", "amax", "amin"]

pytestmark = pytest.mark.usefixtures("poisoned")


def large(dtype, *, permuted):
    """Many lines, one of which has half of 150 000 entries."""
    counts = torch.randint(0, 12, (14_000,))
    counts[5000] = 75_000
    return view(counts.tolist(), dtype, permuted=permuted)


def dense_reduce(x, reduce):
    """Over the entries of one line, in wide numbers; integers wrap afterwards."""
    if reduce == "prod" and not x.is_floating_point() and not x.is_complex():
        return x.prod(0, dtype=torch.int64).to(x.dtype)
    return getattr(wide(x), reduce)(0).to(wide(x).dtype)


@pytest.mark.parametrize(("shorter", "longer"), [(3, 30), (7, 10), (15, 18)])
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_no_sum_depends_on_the_lines_beside_it(permuted, shorter, longer):
    """The second thread has longer lines than the first, and one thread has both."""
    ptr, perm = view([shorter] * 8000 + [longer] * 8000, torch.int32, permuted=permuted)
    val = torch.randn(int(ptr[-1]))
    for reduce in ("sum", "prod"):
        both_threads("segment_reduce", ptr, perm, val, reduce)
    out = both_threads("segment_softmax", ptr, perm, val, False)
    both_threads("segment_softmax_backward", ptr, perm, out, val, False)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("width", SEGMENT_WIDTHS)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_reduce(dtype, width, permuted, reduce):
    if dtype.is_complex and reduce in {"amax", "amin"}:
        pytest.skip("complex numbers have no order")
    for counts in LINES.values():
        ptr, perm = view(counts, torch.int32, permuted=permuted)
        val = values(int(ptr[-1]), width, dtype)
        if reduce == "prod":  # stay within the range of the dtype
            val = val / val.abs().clamp(1e-3) if dtype in FLOATS + COMPLEX else val
            val = val.to(dtype)
        actual = both_threads("segment_reduce", ptr, perm, val, reduce)
        assert actual.dtype == dtype
        expected = torch.full(actual.shape, int(reduce == "prod"), dtype=wide(val).dtype)
        scale = torch.ones(actual.shape, dtype=torch.float64)
        for i, line in enumerate(by_line(ptr, perm, val)):
            if len(line):
                expected[i] = dense_reduce(line, reduce)
                sizes = wide(line).abs().sum(0)
                scale[i] = sizes if reduce == "sum" else len(line)
        assert_near(actual, expected, scale)
        assert_near(actual, wide(REFERENCES["segment_reduce"](ptr, perm, val, reduce)), scale)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("width", SEGMENT_WIDTHS)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_arg(dtype, width, permuted, largest):
    for counts in LINES.values():
        ptr, perm = view(counts, torch.int64, permuted=permuted)
        val = values(int(ptr[-1]), width, dtype)
        if len(val) % 2:  # many ties
            val = val.clamp(0, 2).to(torch.int8).to(dtype)
        actual = both_threads("segment_arg", ptr, perm, val, largest)
        assert actual.dtype == torch.int64
        for i, line in enumerate(by_line(ptr, perm, val)):
            if not len(line):
                assert bool((actual[i] == -1).all())
                continue
            extremum = line.amax(0) if largest else line.amin(0)
            first = (line == extremum).to(torch.uint8).argmax(0)  # of equals, the first
            assert torch.equal(actual[i], ptr[i] + first)
        assert torch.equal(actual, REFERENCES["segment_arg"](ptr, perm, val, largest))


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize("width", [None, 1, 4, 20])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extrema_of_nan_and_infinity(dtype, width, permuted):
    ptr, perm = view([1, 2, 3, 40, 0, 100, 9], torch.int32, permuted=permuted)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1.0], dtype=dtype)
    for kinds in (slice(0, 5), slice(1, 5), slice(1, 2), slice(2, 3), slice(1, 3), slice(0, 2)):
        val = values(int(ptr[-1]), width, dtype)
        chosen = special[kinds][torch.randint(len(special[kinds]), val.shape)]
        val = torch.where(torch.rand(val.shape) < 0.3, chosen, val)
        for largest, reduce in ((True, "amax"), (False, "amin")):
            actual = both_threads("segment_reduce", ptr, perm, val, reduce)
            arg = both_threads("segment_arg", ptr, perm, val, largest)
            for i, line in enumerate(by_line(ptr, perm, val)):
                if len(line):
                    expected = getattr(line, reduce)(0)
                    assert_close(actual[i], expected, rtol=0, atol=0, equal_nan=True)
                    hit = (line == expected) | (line.isnan() & expected.isnan())
                    assert torch.equal(arg[i], ptr[i] + hit.to(torch.uint8).argmax(0))


@pytest.mark.parametrize("reduce", ["sum", "prod"])
@pytest.mark.parametrize("width", [None, 5])
def test_nan_and_infinity_stay_in_their_line_and_column(width, reduce):
    ptr, perm = view([4, 9, 0, 33, 2], torch.int32, permuted=True)
    val = values(48, width, torch.float32)
    val.view(-1)[7], val.view(-1)[30] = torch.nan, torch.inf
    expected = REFERENCES["segment_reduce"](ptr, perm, val, reduce)
    actual = kernels.segment_reduce(ptr, perm, val, reduce)
    assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
def test_sums_of_up_to_three_are_formed_in_their_order(permuted):
    """So that coalescing gives what adding one element after the other does."""
    ptr, perm = view([3, 1, 0, 2, 3, 3] * 20, torch.int64, permuted=permuted)
    val = torch.randn(int(ptr[-1]))
    terms = val if perm is None else val[perm]
    expected = [sum(terms[p:q], torch.tensor(0.0)) for p, q in itertools.pairwise(ptr)]
    actual = both_threads("segment_reduce", ptr, perm, val, "sum")
    assert torch.equal(actual, torch.stack(expected))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
def test_scatter_sum(index, dtype):
    for n, nse in ((0, 0), (3, 0), (1, 50), (7, 40), (5000, 60), (300, 40_000)):
        idx, val = torch.randint(max(n, 1), (nse,), dtype=index), values(nse, None, dtype)
        actual = both_threads("scatter_sum", idx, val, n, False)
        assert_near(actual, REFERENCES["scatter_sum"](idx, val, n, False))
        assert_near(
            both_threads("scatter_sum", idx, val, n, True),
            REFERENCES["scatter_sum"](idx, val, n, True),
        )
        exact = val.to(torch.complex128 if dtype.is_complex else torch.float64)
        if not dtype.is_floating_point and not dtype.is_complex:
            exact = val.long()
        expected = exact.new_zeros(n).index_add_(0, idx, exact)
        assert_close(actual, expected.to(dtype), rtol=ROUNDING.get(dtype, 0), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64], ids=str)
def test_long_sums_are_rounded_once(dtype):
    val = torch.full((200_000,), 0.1, dtype=dtype)
    idx = torch.zeros(200_000, dtype=torch.int32)
    exact = val.to(torch.complex128 if dtype.is_complex else torch.float64).sum()
    assert torch.equal(kernels.scatter_sum(idx, val, 1, True)[0], exact.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
@pytest.mark.parametrize("width", SEGMENT_WIDTHS)
@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
def test_expand(index, dtype, width, permuted):
    for counts in LINES.values():
        ptr, perm = view(counts, index, permuted=permuted)
        nse = int(ptr[-1])
        x = values(len(counts), width, dtype)
        actual = both_threads("segment_expand", ptr, perm, nse, x)
        assert_close(actual, REFERENCES["segment_expand"](ptr, perm, nse, x), rtol=0, atol=0)
        for i, line in enumerate(by_line(ptr, perm, actual)):
            assert torch.equal(line, x[i].expand_as(line))


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("lines", ["one dense", "one", "equal"])
def test_threads(lines, width, permuted):
    if lines == "one dense":
        ptr, perm = large(torch.int32, permuted=permuted)
    else:
        counts = [150_001] if lines == "one" else [15] * 10_000
        ptr, perm = view(counts, torch.int32, permuted=permuted)
    nse = int(ptr[-1])
    val, g = values(nse, width, torch.float32), values(nse, width, torch.float32)
    scale = REFERENCES["segment_reduce"](ptr, perm, val.abs(), "sum").double()
    for reduce in REDUCTIONS:
        actual = both_threads("segment_reduce", ptr, perm, val, reduce)
        expected = REFERENCES["segment_reduce"](ptr, perm, val, reduce)
        assert_near(actual, expected.double(), scale)
    for largest in (True, False):
        actual = both_threads("segment_arg", ptr, perm, val, largest)
        assert torch.equal(actual, REFERENCES["segment_arg"](ptr, perm, val, largest))
    x = values(len(ptr) - 1, width, torch.float32)
    actual = both_threads("segment_expand", ptr, perm, nse, x)
    assert torch.equal(actual, REFERENCES["segment_expand"](ptr, perm, nse, x))
    for log in (False, True):
        out = both_threads("segment_softmax", ptr, perm, val, log)
        expected = REFERENCES["segment_softmax"](ptr, perm, val.double(), log)
        assert_near(out, expected, 1 if log else 0)
        grad = both_threads("segment_softmax_backward", ptr, perm, out, g, log)
        expected = REFERENCES["segment_softmax_backward"](ptr, perm, out.double(), g.double(), log)
        assert_near(grad, expected)


@pytest.mark.parametrize("permuted", [False, True], ids=["in place", "permuted"])
@pytest.mark.parametrize("width", [None, 3])
def test_opcheck(width, permuted):
    ptr, perm = view([2, 0, 5, 1], torch.int32, permuted=permuted)
    val, x = values(8, width, torch.float32), values(4, width, torch.float32)
    for op, args in (
        (kernels.segment_reduce, (ptr, perm, val, "sum")),
        (kernels.segment_reduce, (ptr, perm, val, "amax")),
        (kernels.segment_arg, (ptr, perm, val, True)),
        (kernels.segment_expand, (ptr, perm, 8, x)),
        (kernels.scatter_sum, (torch.tensor([2, 0, 2]), torch.randn(3), 4, True)),
        (kernels.segment_softmax, (ptr, perm, val, False)),
        (kernels.segment_softmax_backward, (ptr, perm, val, val.neg(), True)),
    ):
        torch.library.opcheck(op, args)


def test_an_unknown_reduction_is_refused():
    ptr, _ = view([2], torch.int64, permuted=False)
    for reduce in (kernels.segment_reduce, REFERENCES["segment_reduce"]):
        with pytest.raises(RuntimeError, match="`reduce` is mean"):
            reduce(ptr, None, torch.randn(2), "mean")


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused():
    ptr, perm = view([2, 3], torch.int64, permuted=True)
    val = torch.randn(5)
    for op, args in (
        (kernels.segment_reduce, (ptr, perm.int(), val, "sum")),
        (kernels.segment_reduce, (ptr, perm, val[1:].clone(), "sum")),
        (kernels.segment_reduce, (ptr, None, val[1:].clone(), "sum")),
        (kernels.segment_reduce, (ptr, perm, torch.randn(3, 5).T, "sum")),
        (kernels.segment_reduce, (ptr, perm, val.to(torch.complex64), "amax")),
        (kernels.segment_arg, (ptr, perm, val.to(torch.complex64), True)),
        (kernels.segment_arg, (ptr, perm[1:].clone(), val, True)),
        (kernels.segment_expand, (ptr, perm, 4, val[:2].clone())),
        (kernels.segment_expand, (ptr, None, 4, val[:2].clone())),
        (kernels.segment_expand, (ptr, perm, 5, val[:3].clone())),
        (kernels.scatter_sum, (perm, val[1:].clone(), 5, False)),
        (kernels.scatter_sum, (perm[None], val, 5, False)),
        (kernels.segment_softmax, (ptr, perm, val.long(), False)),
        (kernels.segment_softmax, (ptr, perm, val[None, None], False)),
        (kernels.segment_softmax_backward, (ptr, perm, val, val.double(), False)),
        (kernels.segment_softmax_backward, (ptr, perm, val, val[1:].clone(), False)),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            op(*args)


@pytest.mark.parametrize("scatter_sum", [REFERENCES["scatter_sum"], kernels.scatter_sum])
def test_wide_sums_lose_no_small_term(scatter_sum):
    found = scatter_sum(torch.zeros(3, dtype=torch.int64), torch.tensor([1e8, 1.0, -1e8]), 1, True)
    assert found.tolist() == [1.0]
    assert found.dtype == torch.float32
