"""The selecting kernels against their references and against loops over the definition."""

from itertools import pairwise

import pytest
import torch
from operands import check

from spgrad import kernels

INDEX_DTYPES = [torch.int32, torch.int64]
BIG = 60_000  # entries: enough for several threads
SHAPES = {  # of which each is m, n and a number of entries
    "square": (7, 7, 25),
    "no lines": (0, 5, 0),
    "no entries": (4, 3, 0),
    "one line": (1, 50, 30),
    "one column": (50, 1, 30),
    "full": (3, 4, 100),
    "wide": (3, 2**30, 40),
    "empty lines": (1000, 1000, 30),
}
LARGE = [(3000, 500, BIG), (2, BIG, BIG)]

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str),
]
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def operand(m, n, nse, dtype):
    """Line pointers and ascending indices."""
    pairs = torch.stack([torch.randint(max(m, 1), (nse,)), torch.randint(max(n, 1), (nse,))])
    line, idx = pairs.unique(dim=1).contiguous().unbind()
    return torch.searchsorted(line, torch.arange(m + 1)).to(dtype), idx.to(dtype)


def lines_of(ptr, *arrays):
    """The entries of each line as tuples."""
    entries = list(zip(*(a.tolist() for a in arrays), strict=True))
    ends = ptr.tolist()
    assert ends[-1] == len(entries)
    return [entries[a:b] for a, b in pairwise(ends)]


@shapes
def test_ranges(shape, dtype):
    ptr, idx = operand(*shape, dtype)
    n = shape[1]
    entries = lines_of(ptr, idx, torch.arange(len(idx)))
    for step in (1, -1, 3, -2):
        for low, high in ((0, n), (n // 3, n - n // 4), (n // 2, n // 2)):
            wanted = range(low, high)[::step]
            got = check("select_range", ptr, idx, wanted.start, step, len(wanted))
            kept = [[(wanted.index(j), p) for j, p in e if j in wanted] for e in entries]
            assert lines_of(*got) == [sorted(line) for line in kept]
            check(
                "select_range", *(ptr, idx, wanted.start, step, len(wanted), torch.randn(len(idx)))
            )


@shapes
def test_listed_lines(shape, dtype):
    ptr, idx = operand(*shape, dtype)
    m = shape[0]
    val = torch.randn(len(idx), dtype=torch.float64)
    entries = lines_of(ptr, idx, val)
    for count in (0, 1, 90) if m else (0,):
        lines = torch.randint(max(m, 1), (count,))
        got = check("list_lines", ptr, idx, val, lines)
        assert lines_of(*got) == [entries[i] for i in lines]


@pytest.mark.parametrize("shape", [s for s in SHAPES.values() if s[1] < 2**20], ids=str)
@pytest.mark.parametrize("order", ["ascending", "repeated", "reversed", "none"])
def test_columns(order, shape, dtype):
    ptr, idx = operand(*shape, dtype)
    n = shape[1]
    columns = {
        "ascending": torch.arange(0, n, 2),
        "repeated": torch.randint(max(n, 1), (min(n, 40),)),
        "reversed": torch.arange(n).flip(0),
        "none": torch.arange(0),
    }[order].to(dtype)
    whole = torch.tensor([0, len(columns)], dtype=dtype)
    inv_ptr, _, inv_idx = kernels.transpose_plan(whole, columns, n)
    got = check("select_columns", ptr, idx, inv_ptr, inv_idx)
    places = lines_of(inv_ptr, inv_idx)
    entries = lines_of(ptr, idx, torch.arange(len(idx)))
    wanted = [sorted((new, p) for j, p in line for (new,) in places[j]) for line in entries]
    assert lines_of(*got) == wanted


@shapes
def test_points(shape, dtype):
    ptr, idx = operand(*shape, dtype)
    m, n, _ = shape
    own = kernels.expand(ptr, len(idx)).long(), idx.long()
    other = torch.randint(max(m, 1), (50 if m else 0,)), torch.randint(n + 1, (50 if m else 0,))
    line, index = (torch.cat(pair) for pair in zip(own, other, strict=True))
    found = check("locate", ptr, idx, line, index)
    places = {pair: p for p, pair in enumerate(zip(*(t.tolist() for t in own), strict=True))}
    pairs = zip(line.tolist(), index.tolist(), strict=True)
    assert found.tolist() == [places.get(pair, -1) for pair in pairs]
    assert found.dtype == torch.int64


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_much(shape, dtype):
    ptr, idx = operand(*shape, dtype)
    m, n, _ = shape
    for step in (1, -3):
        check("select_range", ptr, idx, n // 2, step, n // 8)
    for columns in (torch.randint(n, (2 * n,)), torch.randperm(n)[: n - n // 3]):
        whole = torch.tensor([0, len(columns)], dtype=dtype)
        inv_ptr, _, inv_idx = kernels.transpose_plan(whole, columns.to(dtype), n)
        check("select_columns", ptr, idx, inv_ptr, inv_idx)
    check("list_lines", ptr, idx, torch.rand(len(idx)) < 0.5, torch.randint(m, (2 * m,)))
    check("locate", ptr, idx, torch.randint(m, (BIG,)), torch.randint(n, (BIG,)))


def test_indices_beyond_the_dtype_are_nowhere(dtype):
    ptr, idx = operand(3, 5, 9, dtype)
    line, index = torch.tensor([0, 1, 2]), torch.tensor([2**40, -1, 2**62])
    assert check("locate", ptr, idx, line, index).tolist() == [-1, -1, -1]


def test_the_operator_protocol(dtype):
    ptr, idx = operand(6, 5, 14, dtype)
    torch.library.opcheck(kernels.select_range, (ptr, idx, 4, -2, 2))
    val = torch.randn(len(idx))
    torch.library.opcheck(kernels.select_range, (ptr, idx, 4, -2, 2, val))
    torch.library.opcheck(kernels.list_lines, (ptr, idx, val, torch.tensor([5, 0, 5])))
    inv_ptr, _, inv_idx = kernels.transpose_plan(
        torch.tensor([0, 3], dtype=dtype), torch.tensor([4, 0, 4], dtype=dtype), 5
    )
    torch.library.opcheck(kernels.select_columns, (ptr, idx, inv_ptr, inv_idx))
    torch.library.opcheck(kernels.locate, (ptr, idx, torch.tensor([1, 5]), torch.tensor([0, 4])))


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused(dtype):
    ptr, idx = operand(6, 5, 14, dtype)
    lines = torch.tensor([0, 5])
    for op, args in (
        (kernels.select_range, (ptr, idx, 0, 0, 3)),
        (kernels.select_range, (ptr, idx, 0, 1, 3, torch.randn(len(idx) + 1))),
        (kernels.list_lines, (ptr, idx, torch.randn(len(idx)), torch.tensor([6]))),
        (kernels.list_lines, (ptr, idx, torch.randn(len(idx)), torch.tensor([-1]))),
        (kernels.select_columns, (ptr, idx, lines.to(dtype), idx)),
        (kernels.locate, (ptr, idx, torch.tensor([6, 0]), lines)),
        (kernels.locate, (ptr, idx, lines, lines[:1].clone())),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            op(*args)
