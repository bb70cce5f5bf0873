"""The kernels that make new lines of old ones, against their references."""

import pytest
import torch
from operands import check

from spgrad import kernels

INDEX_DTYPES = [torch.int32, torch.int64]

pytestmark = pytest.mark.usefixtures("poisoned")


def sorted_lines(m, n, nse, dtype):
    """A row view whose lines ascend; some are empty."""
    flat = torch.randperm(m * n)[:nse].sort().values
    ptr = torch.searchsorted(flat, torch.arange(m + 1) * n)
    return ptr.to(dtype), (flat % max(n, 1)).to(dtype)


SHAPES = {
    "small": (5, 7, 12),
    "no lines": (0, 4, 0),
    "no entries": (3, 4, 0),
    "one line": (1, 90, 40),
    "short lines": (900, 50, 1500),
    "large": (3000, 400, 90_000),
}
sizes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
dtypes = pytest.mark.parametrize("dtype", INDEX_DTYPES)


@sizes
@dtypes
@pytest.mark.parametrize("backward", [False, True])
def test_ranges(shape, dtype, backward):
    m, n, nse = shape
    ptr, _ = sorted_lines(m, n, nse, dtype)
    idx = torch.randint(1000, (nse,)).to(dtype)
    cut = ptr[:-1] + ((ptr.diff() + 1) // 2).to(dtype)
    begin, end = torch.stack([cut, ptr[:-1]], -1), torch.stack([ptr[1:], cut], -1)
    order = torch.randint(max(m, 1), (m,))
    begin, end = (t[order].reshape(-1) for t in (begin, end))
    count = int((end - begin).sum())
    shift = torch.tensor([1000, 2000], dtype=dtype)
    made, _ = check("join_ranges", idx, begin, end, shift, count, backward)
    for val in (torch.randn(nse), torch.randn(nse, 3), torch.rand(nse) < 0.5):
        check("take_ranges", val, made, begin, end, count, backward)


@sizes
@dtypes
def test_cuts(shape, dtype):
    m, n, nse = shape
    ptr, idx = sorted_lines(m, n, nse, dtype)
    for bound in (torch.randint(-1, n + 2, (m,)), torch.full((m,), 2**40), -torch.ones(m).long()):
        check("cut_lines", ptr, idx, bound)


@dtypes
def test_cuts_at_the_place_of_the_line_before(dtype):
    """In lines of a band, some of which are short or have other bounds."""
    m = 400
    idx = torch.arange(m)[:, None] + torch.tensor([0, 3, 4, 9])
    kept = torch.ones_like(idx).bool()
    kept[50] = False
    kept[90, 1:] = kept[130, :3] = False
    ptr = torch.cat([torch.zeros(1).long(), kept.sum(1).cumsum(0)]).to(dtype)
    idx = idx[kept].to(dtype)
    for above in range(11):
        bound = torch.arange(m) + above
        bound[200:203] += torch.tensor([-4, 4, 1000])
        check("cut_lines", ptr, idx, bound)
        check("locate", ptr, idx, torch.arange(m), bound)


@sizes
@dtypes
@pytest.mark.parametrize("beside", [False, True])
def test_joined_lines(shape, dtype, beside):
    m, n, nse = shape
    own = [
        sorted_lines(m, n, nse, dtype),
        sorted_lines(m, n, 0, dtype),
        sorted_lines(m, n, nse, dtype),
    ]
    if not beside:
        own.append(sorted_lines(4, 9, 20, dtype))
    for parts in (own[:1], own[:2], own, own[1:2] * 2):
        ptr, idx = map(list, zip(*parts, strict=True))
        shift = [7 * j for j in range(len(parts))]
        for like in (torch.randn(9), torch.rand(9) < 0.5, torch.randn(9, dtype=torch.complex128)):
            val = [torch.randn(i.numel()).to(like.dtype) for i in idx]
            check("join_lines", ptr, idx, shift, val, beside)
        check("join_lines", ptr, idx, shift, [], beside)


@dtypes
@pytest.mark.parametrize("other", [(3, 4, 5), (2, 2, 0), (40, 60, 70)])
def test_kronecker_products(other, dtype):
    for shape in ((5, 7, 12), (0, 4, 0), (300, 50, 900)):
        a, b = sorted_lines(*shape, dtype), sorted_lines(*other, dtype)
        check("kron_lines", *a, *b, other[1])


@dtypes
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("block", [(1, 1), (2, 3), (6, 2), (3, 5), (4, 2)])
def test_blocks(block, transposed, dtype):
    along, across = block
    for m, n, nse in ((12, 30, 50), (0, 30, 0), (6, 30, 0), (600, 150, 9000)):
        view = sorted_lines(m - m % along, n, nse, dtype)
        check("group_blocks", *view, along, across, transposed)
        check("group_blocks", *view, along, across, transposed, torch.randn(nse))


@pytest.mark.parametrize("size", [(30, 40), (2**31, 2**31, 2**31), (5,), (7, 0), (2**40, 9)])
def test_sorting(size):
    for nse in (0, 3, 70_000):
        few = torch.stack([torch.randint(max(s, 1), (nse // 3 + 1,)) for s in size])
        entries = torch.randint(few.shape[1], (nse if 0 not in size else 0,))
        check("sort_coo", few[:, entries], size)


def test_malformed_calls_are_refused():
    if not kernels.compiled():
        pytest.skip("the references trust their operands")
    one = torch.tensor([0, 1])
    calls = [
        (kernels.join_ranges, (one, one, one[:1], one, 0, False)),
        (kernels.join_ranges, (one, one, one + 1, one, 3, False)),
        (kernels.join_ranges, (one, one, one + 1, one[:0], 2, False)),
        (kernels.join_ranges, (one.int(), one, one + 1, one, 2, False)),
        (kernels.take_ranges, (one, one, one, one + 1, 2, False)),
        (kernels.cut_lines, (one, one[:1], one)),
        (kernels.join_lines, ([one], [one[:1]], [0, 1], [], True)),
        (kernels.join_lines, ([one], [one[:1]], [0], [one, one], True)),
        (kernels.join_lines, ([one], [one], [0], [], False)),
        (kernels.join_lines, ([one], [one[:1]], [0], [one], False)),
        (kernels.join_lines, ([one, one[:1]], [one[:1], one[:0]], [0, 0], [], True)),
        (kernels.join_lines, ([one, one.int()], [one[:1], one[:1].int()], [0, 0], [], True)),
        (kernels.kron_lines, (one, one[:1], one.int(), one[:1], 2)),
        (kernels.group_blocks, (one, one[:1], 2, 2, False)),
    ]
    for kernel, args in calls:
        with pytest.raises(RuntimeError, match="spgrad"):
            kernel(*args)
