"""The order of the elements of segments and the first of each, against references and torch."""

import pytest
import torch
from operands import FLOATS, INTEGERS, LINES, both_threads, values, view

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

INDEX_DTYPES = [torch.int32, torch.int64]
LENGTHS = {
    **LINES,
    "beyond a chunk": [40_000, 1, 0, 1500],
    "around a limit": [1023, 1024, 1025, 64],
}


def drawn(count, width, dtype):
    """Numbers with ties and, as floats, with both zeros, infinities and NaN."""
    x = values(count, width, dtype)
    if not dtype.is_floating_point:
        return x
    few = (torch.rand(x.shape) * 6).to(torch.int64)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0], dtype=dtype)
    return torch.where(torch.rand(x.shape) < 0.4, special[few], x)


def negative_nans(x):
    """The same with the other sign of each NaN."""
    return torch.where(x.isnan(), x.neg(), x)


def places(counts, size):
    """Ascending places below `size` in each segment."""
    found = [torch.randperm(size)[:count].sort().values for count in counts]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("width", [None, 1, 3])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_order(dtype, width, descending):
    for turn, counts in enumerate(LENGTHS.values()):
        ptr, _ = view(counts, INDEX_DTYPES[turn % 2], permuted=False)
        val = drawn(int(ptr[-1]), width, dtype)
        order = both_threads("segment_order", ptr, val, descending)
        assert torch.equal(order, REFERENCES["segment_order"](ptr, val, descending))
        assert torch.equal(order, kernels.segment_order(ptr, negative_nans(val), descending))
        for begin, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
            line = val[begin:end].sort(dim=0, descending=descending, stable=True)
            assert torch.equal(order[begin:end] - begin, line.indices)


@pytest.mark.parametrize("specified", [False, True])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_top(dtype, largest, specified):
    for turn, counts in enumerate(LENGTHS.values()):
        ptr, _ = view(counts, INDEX_DTYPES[turn % 2], permuted=False)
        val, longest = drawn(int(ptr[-1]), None, dtype), max(counts, default=0)
        for size in (longest, longest + 7):
            where = places(counts, size)
            for k in {0, min(1, size), min(5, size), longest // 2, size}:
                options = (where, size, k, largest, specified)
                wanted = REFERENCES["segment_top"](ptr, val, *options)
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    found = kernels.segment_top(ptr, val, *options)
                    assert all(map(torch.equal, found, wanted))


def test_numbers_that_differ_only_in_few_bits():
    """Digits that all keys share are skipped, and the last bits count."""
    x = 1 + torch.arange(3000, dtype=torch.float64).flip(0) * 2.0**-52
    ptr = torch.tensor([0, 20, 90, 3000])
    for val in (x, x.neg(), torch.cat([x[:1500], x[:1500] * 2.0**-900])):
        for descending in (False, True):
            found = both_threads("segment_order", ptr, val, descending)
            assert torch.equal(found, REFERENCES["segment_order"](ptr, val, descending))


def test_extreme_integers():
    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        val = torch.tensor([0, limits.max, limits.min, 1, limits.min, limits.max], dtype=dtype)
        ptr = torch.tensor([0, 6])
        for descending in (False, True):
            found = kernels.segment_order(ptr, val, descending)
            wanted = val.sort(descending=descending, stable=True).indices
            assert torch.equal(found, wanted)


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused():
    ptr, _ = view([2, 3], torch.int64, permuted=False)
    val, where = torch.randn(5), torch.tensor([0, 1, 0, 1, 2])
    for op, args in (
        (kernels.segment_order, (ptr, val[1:].clone(), True)),
        (kernels.segment_order, (ptr, val.to(torch.complex64), True)),
        (kernels.segment_order, (ptr, torch.randn(3, 5).T, True)),
        (kernels.segment_top, (ptr, val[:, None], where, 4, 2, True, True)),
        (kernels.segment_top, (ptr, val.to(torch.complex64), where, 4, 2, True, True)),
        (kernels.segment_top, (ptr, val, where.int(), 4, 2, True, True)),
        (kernels.segment_top, (ptr, val, where[1:].clone(), 4, 2, True, True)),
        (kernels.segment_top, (ptr, val, where, 4, 5, True, False)),
        (kernels.segment_top, (ptr, val, where, 4, -1, True, False)),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            op(*args)
