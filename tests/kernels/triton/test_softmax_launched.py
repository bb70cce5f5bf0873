"""Triton softmax of segments and its gradient, in the interpreter."""

import pytest
import torch
from interpreting import DTYPES, PATTERNS, beside_reference, chunks_of_eight, long_lines, view

from spgrad.kernels import REFERENCES
from spgrad.kernels.triton.reductions import softmax

pytestmark = [
    pytest.mark.usefixtures(chunks_of_eight.__name__, "poisoned"),
    # NumPy, which the interpreter calls, says so where the NaN is what is wanted.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]

INF, NAN = torch.inf, torch.nan
logs = pytest.mark.parametrize("log", [False, True])


@pytest.fixture
def short_strides(monkeypatch):
    """Programs read two entries of each part of a long segment at a time."""
    monkeypatch.setattr(softmax, "PART_ENTRIES", 2)


def both(ptr, perm, val, log):
    """The softmax and its gradient beside their references."""
    beside_reference("segment_softmax", ptr, perm, val, log)
    out = REFERENCES["segment_softmax"](ptr, perm, val, log)
    g = torch.randn(val.shape).to(val.dtype)
    beside_reference("segment_softmax_backward", ptr, perm, out, g, log)


@logs
@pytest.mark.parametrize(
    ("pattern", "n"),
    [*((pattern, n) for pattern in PATTERNS for n in (None, 3)), ("hubs", 1), ("short", 5)],
)
def test_softmax(pattern, n, log):
    ptr, idx, perm = view(pattern, 8 if pattern == "hubs" else 5, ordered=n == 3)
    both(ptr, perm, torch.randn(len(idx), *[] if n is None else [n]) * 5, log)


@logs
@pytest.mark.parametrize("n", [None, 3])
def test_long_segments_in_several_strides(n, log, short_strides):
    ptr, idx, perm = view("hubs", 8, ordered=n == 3)
    both(ptr, perm, torch.randn(len(idx), *[] if n is None else [n]) * 5, log)


@logs
@pytest.mark.parametrize("n", [None, 3])
def test_lines_of_many_parts(n, log):
    ptr, idx, perm = long_lines(8)
    both(ptr, perm, torch.randn(len(idx), *[] if n is None else [n]) * 5, log)


def test_a_segment_of_20_000_entries(monkeypatch):
    """Cut as it is on a GPU, beside segments of one chunk, one entry less, and one more."""
    monkeypatch.undo()
    ptr, idx, perm = long_lines(softmax.LONG.value, 19)
    both(ptr, perm, torch.randn(len(idx)) * 5, False)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, index):
    ptr, idx, perm = view("hubs", 8, index=index)
    both(ptr, perm, torch.randn(len(idx), 2).to(dtype), index == torch.int32)
    both(ptr, perm, torch.randn(len(idx)).to(dtype), index == torch.int64)


@logs
def test_many_columns(log):
    """More than a tile has."""
    ptr, idx, perm = view("hubs", 8, 12)
    both(ptr, perm, torch.randn(len(idx), 130), log)


@logs
def test_not_finite_numbers(log, monkeypatch):
    lines = [
        *([INF], [-INF], [NAN], [2.0], [], [-INF] * 5, [-INF] * 12, [NAN] * 12, [INF] * 3),
        *([-INF, -INF, -INF, -INF, -INF, 1, 2], [-INF, 3, -INF], [1, 2, -INF, -INF, -INF, -INF]),
        *([1, INF, 2, 3, 4, 5], [INF, -INF, 1], [-INF, -INF, -INF, -INF, -INF, INF]),
        *([1, 2, NAN], [NAN, -INF, -INF, 1, 2, 3], [NAN, INF], [-INF] * 6 + [NAN]),
        *([-INF] * 9 + [1, 2], [-INF] * 4 + [4] * 7 + [-INF], [2, 3] + [-INF] * 18),
        *([INF] + [1] * 10, [1] * 10 + [INF], [-INF] * 10 + [INF], [INF] * 2 + [-INF] * 10),
        *([NAN] + [-INF] * 10, [-INF] * 10 + [NAN], [1] * 6 + [NAN, 2, 3, 4], [NAN, INF] * 6),
        *([1e30, -1e30, 1e30, -1e30], [-1e4] * 9 + [-1e4 - 1, 1e4, 1e4 + 1], [-1e30] * 11),
    ]
    ptr = torch.tensor([0] + [len(line) for line in lines]).cumsum(0).int()
    val = torch.tensor([x for line in lines for x in line])
    perm = torch.randperm(len(val)).int()
    both(ptr, perm, torch.empty_like(val).index_copy_(0, perm.long(), val), log)
    monkeypatch.setattr(softmax, "PART_ENTRIES", 4)  # two strides of a part
    both(ptr, None, torch.stack([val, val.flip(0)], 1), log)


@logs
def test_operands_that_no_triton_kernel_takes(log):
    ptr, idx, perm = view("short")
    both(ptr, perm, torch.randn(len(idx), 0), log)
    no_lines = torch.zeros(1, dtype=torch.int32)
    both(no_lines, None, torch.randn(0, 3), log)
    both(no_lines, None, torch.randn(0), log)
