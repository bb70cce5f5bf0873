"""The merging kernels against their references and against sets of indices."""

import numpy as np
import pytest
import torch
from operands import check

from spgrad import kernels
from spgrad.kernels import REFERENCES

INDEX_DTYPES = [torch.int32, torch.int64]
BIG = 60_000  # entries: enough for several threads

pytestmark = pytest.mark.usefixtures("poisoned")


def operand(m, n, nse, dtype, *, order="sorted", dense_line=False):
    """Line pointers and indices, of which none repeats in a line; about `nse` entries."""
    line = torch.randint(max(m, 1), (nse,))
    if dense_line:
        line[: nse // 2] = m // 2
    keys = (line * max(n, 1) + torch.randint(max(n, 1), (nse,))).unique()
    line, idx = keys // max(n, 1), keys % max(n, 1)
    if order != "sorted":
        chosen = line % 3 == 1 if order == "some unsorted" else torch.ones_like(line).bool()
        shuffled = torch.randperm(line.numel())
        shuffled = shuffled[line[shuffled].argsort(stable=True)]
        idx = torch.where(chosen, idx[shuffled], idx)
    ptr = torch.searchsorted(line, torch.arange(m + 1))
    return ptr.to(dtype), idx.to(dtype)


def one_line(*indices, dtype=torch.int64):
    return [
        (torch.tensor([0, len(idx)]).to(dtype), torch.as_tensor(idx).to(dtype)) for idx in indices
    ]


def ascends(ptr, idx):
    line = kernels.expand(ptr, len(idx))
    return bool(((idx.diff() > 0) | (line.diff() > 0)).all())


def merged(merge, a, b):
    """What NumPy makes of the entries of all lines: line pointers and indices."""
    (ptr_a, idx_a), (ptr_b, idx_b) = ([t.numpy().astype(np.int64) for t in one] for one in (a, b))
    width = 1 + max(idx_a.max(initial=0), idx_b.max(initial=0))
    lines = np.arange(len(ptr_a) - 1)
    keys = merge(
        lines.repeat(np.diff(ptr_a)) * width + idx_a, lines.repeat(np.diff(ptr_b)) * width + idx_b
    )
    counts = np.bincount(keys // width, minlength=len(lines))
    return np.cumsum([0, *counts]), keys % width


def check_merges(a, b):
    """Both merges equal their references, and what NumPy makes of the entries.

    Kernels that are told that the lines ascend give the same as those that look.
    """
    for ordered in (False, True) if ascends(*a) and ascends(*b) else (False,):
        check_merges_told(a, b, ordered=ordered)


def check_merges_told(a, b, *, ordered):
    for name, merge in (("union", np.union1d), ("intersection", np.intersect1d)):
        ptr, idx, from_a, from_b, to_a, to_b = check(name, *a, *b, ordered)
        wanted_ptr, wanted_idx = merged(merge, a, b)
        assert np.array_equal(ptr, wanted_ptr)
        assert np.array_equal(idx, wanted_idx)
        line = kernels.expand(ptr, len(idx))
        for source, sink, (starts, indices) in ((from_a, to_a, a), (from_b, to_b, b)):
            here = torch.arange(len(idx))[source >= 0]
            there = source[here].long()
            assert torch.equal(sink[there].long(), here)
            assert int((sink >= 0).sum()) == len(here)
            assert torch.equal(indices[there], idx[here])
            assert torch.equal(kernels.expand(starts, len(indices))[there], line[here])
            assert bool((source >= -1).all() and (sink >= -1).all())
        real = torch.int8, torch.int16, torch.bfloat16, torch.float32, torch.float64
        for dtype in (*real, torch.complex128):
            val_a, val_b = (torch.randn(len(t[1])).mul(9).to(dtype) for t in (a, b))
            found = check(f"{name}_values", *a, val_a, *b, val_b, ordered)
            wanted = ptr, idx, kernels.take(val_a, from_a), kernels.take(val_b, from_b)
            assert all(map(torch.equal, found, wanted))
            if name == "union":
                for minus, fn in ((False, torch.add), (True, torch.sub)):
                    added = check("union_sum", *a, val_a, *b, val_b, minus, ordered)
                    assert all(map(torch.equal, added, (ptr, idx, fn(*wanted[2:]))))
        if name == "union":
            assert bool(((from_a >= 0) | (from_b >= 0)).all())
            assert bool((to_a >= 0).all() and (to_b >= 0).all())
        else:
            assert bool((from_a >= 0).all() and (from_b >= 0).all())


# (m, n, entries of a, entries of b)
SHAPES = {
    "square": (7, 7, 20, 25),
    "no lines": (0, 5, 0, 0),
    "no columns": (5, 0, 0, 0),
    "no entries": (4, 3, 0, 0),
    "no entries in a": (4, 3, 0, 9),
    "no entries in b": (4, 3, 9, 0),
    "one by one": (1, 1, 1, 1),
    "one line": (1, 50, 30, 20),
    "one column": (50, 1, 30, 40),
    "wide": (3, 2**30, 40, 30),
    "tall": (10_000, 3, 40, 50),
    "empty lines": (1000, 1000, 30, 30),
    "long lines": (5, 4000, 6000, 300),
    "large": (3000, 500, BIG, BIG),
    "large and small": (3000, 500, BIG, 40),
    "large, one line": (1, 3 * BIG, BIG, BIG),
    "large, two lines": (2, BIG, BIG, BIG),
}


CASES = [
    (name, dtype, order)
    for name, shape in SHAPES.items()
    for dtype in INDEX_DTYPES
    for order in ("sorted", "unsorted", "some unsorted")
    if BIG not in shape or (dtype == torch.int64) == (order == "unsorted")  # each of them once
]


@pytest.mark.parametrize(("name", "dtype", "order"), CASES, ids=str)
def test_merges(name, dtype, order):
    m, n, nse_a, nse_b = SHAPES[name]
    a = operand(m, n, nse_a, dtype, order=order)
    b = operand(m, n, nse_b, dtype, order=order)
    check_merges(a, b)
    check_merges(b, a)


def bands(m, offsets, dtype, *, until=None):
    """Lines with entries at these distances from the diagonal; at random places from `until` on."""
    line, offset = torch.arange(m)[:, None], torch.tensor(offsets)
    idx = line + offset
    if until is not None:
        places = torch.rand(m - until, 40).argsort(1)[:, : len(offsets)].sort(1).values
        idx[until:] = places * (m // 40)
    inside = (idx >= 0) & (idx < m)
    ptr = torch.cat([inside.new_zeros(1, dtype=torch.int64), inside.sum(1).cumsum(0)])
    return ptr.to(dtype), idx[inside].to(dtype)


@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("other", [[-69, -1, 0, 1, 70], [-70, 0, 1, 2, 71], [0], [5]], ids=str)
@pytest.mark.parametrize("until", [None, 6000])
def test_indices_that_follow_a_rule(until, other, dtype):
    """To the end, and in the first lines only."""
    a = bands(9000, [-70, -1, 0, 1, 70], dtype, until=until)
    b = bands(9000, other, dtype, until=until)
    check_merges(a, b)
    check_merges(b, a)


@pytest.mark.parametrize("nse", [60, 5000])
def test_one_operand_sorted(nse):
    a = operand(9, 3000, nse, torch.int32)
    b = operand(9, 3000, nse, torch.int32, order="unsorted")
    check_merges(a, b)
    check_merges(b, a)


@pytest.mark.parametrize("order", ["sorted", "unsorted"])
def test_with_itself(order):
    a = operand(30, 40, 300, torch.int64, order=order)
    check_merges(a, a)


@pytest.mark.parametrize("order", ["sorted", "unsorted"])
@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
def test_a_line_with_half_of_the_entries(dtype, order):
    a = operand(400, 50_000, BIG, dtype, order=order, dense_line=True)
    check_merges(a, operand(400, 50_000, BIG, dtype, order=order, dense_line=True))
    check_merges(a, operand(400, 50_000, 100, dtype, order=order))


@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("length", [5, 8, 31, 40, 900])
def test_few_entries_among_many(length, dtype):
    """At both ends of a line, in gaps and on its entries; two in some lines, and none in some."""
    lines = max(BIG // length, 9)
    line, odd = torch.arange(lines), torch.arange(length) * 2 + 1
    a = (torch.arange(lines + 1) * length).to(dtype), odd.repeat(lines).to(dtype)
    sought = torch.tensor([0, 2 * length, 1, 2 * length - 1, length // 2, 3, 4])[line % 7]
    count = torch.tensor([1, 1, 2, 0, 1])[line % 5]
    ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    idx = sought.repeat_interleave(count)
    idx[1:] += (idx[1:] == idx[:-1]) & (line.repeat_interleave(count).diff() == 0)
    b = ptr.to(dtype), idx.to(dtype)
    check_merges(a, b)
    check_merges(b, a)


@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("length", [2, 7, 8, 9, 17, 64, 1500])
def test_runs_of_entries_of_one_operand(length, dtype):
    """Runs of a and of b alternate in each line, in some with an entry in common."""
    lines = max(BIG // (4 * length), 5)
    line = torch.arange(lines).repeat_interleave(4 * length)
    index = torch.arange(4 * length).repeat(lines)
    of_a = (index // length % 2 == 0) & (line % 7 != 3)
    common = (index % length == 0) & (line % 3 == 1)
    some = line % 5 != 4
    a, b = (
        (
            torch.searchsorted(line[chosen], torch.arange(lines + 1)).to(dtype),
            index[chosen].to(dtype),
        )
        for chosen in (of_a & some, (~of_a | common) & (some | (line % 2 == 0)))
    )
    check_merges(a, b)
    check_merges(b, a)


@pytest.mark.parametrize("low", [0, 2**48 - 40])
def test_indices_around_the_largest_of_a_key(low):
    idx = low + torch.arange(80).repeat(50)
    ptr = torch.arange(51) * 80
    chosen = torch.rand(idx.numel()) < 0.5
    sparse = torch.cat([ptr[:1], chosen.view(50, 80).sum(1).cumsum(0)])
    check_merges((ptr, idx), (sparse, idx[chosen] + 1))


@pytest.mark.parametrize("unsorted", [False, True])
def test_linear_keys_in_one_line(unsorted):
    keys = torch.randint(2**62, (4 * BIG,)).unique()
    a, b = keys[torch.rand(len(keys)) < 0.6], keys[torch.rand(len(keys)) < 0.4]
    a = torch.cat([a, torch.tensor([2**62])])
    if unsorted:
        b = b[torch.randperm(len(b))]
    check_merges(*one_line(a, b))


@pytest.mark.parametrize("gap", [1, 2, BIG])
def test_lines_that_interleave_follow_or_contain_each_other(gap):
    low = torch.arange(BIG)
    check_merges(*one_line(low * 2, low * 2 + gap))
    check_merges(*one_line(low * 2, low * 2 - gap + 2 * BIG))
    check_merges(*one_line(low, low[::gap].clone()))
    check_merges(*one_line(low, low[gap : 2 * gap].clone()))


def test_keys_that_collide():
    keys = torch.arange(300) << 32
    check_merges(*one_line(keys[torch.randperm(300)], keys[torch.randperm(200)]))
    keys = torch.arange(300) * 4096
    check_merges(*one_line(keys[torch.randperm(300)], keys[torch.randperm(200)], dtype=torch.int32))


# the larger operands have more than 4 MB, so that their results are in memory that is kept
@pytest.mark.parametrize(("m", "n", "nse"), [(9, 9, 30), (700, 9000, 600_000)])
def test_results_own_their_memory(m, n, nse):
    a, b = operand(m, n, nse, torch.int64), operand(m, n, nse, torch.int64)
    vals = [torch.randn(len(t[1]), dtype=torch.float64) for t in (a, b)]
    valued = *a, vals[0], *b, vals[1]
    for name in ("union", "intersection"):
        for _ in range(2):  # in new memory, and in that of the results before
            made = *check(name, *a, *b), *check(f"{name}_values", *valued)[:2]
            for result in (*made, *REFERENCES[name](*a, *b)):
                assert result.is_contiguous()
                assert result.untyped_storage().nbytes() == result.numel() * 8
    added = check("union_sum", *valued, False)
    assert all(t.untyped_storage().nbytes() == t.numel() * 8 for t in added)


DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.complex64, torch.complex128, torch.bool),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
]


def values(*shape, dtype):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 127, shape).to(dtype)


@pytest.mark.parametrize("width", [None, 0, 1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
def test_take(index, dtype, width):
    shape = (50,) if width is None else (50, width)
    val = values(*shape, dtype=dtype)
    none = torch.empty(0, dtype=torch.int64)
    for src in (torch.randint(-1, 50, (170,)), torch.full((3,), -1), torch.arange(50), none):
        src = src.to(index)
        actual = check("take", val, src)
        expected = [val[s] if s >= 0 else torch.zeros_like(val[0]) for s in src.tolist()]
        assert torch.equal(actual, torch.stack(expected) if expected else val[:0])


@pytest.mark.parametrize("shape", [(0,), (0, 4)])
def test_take_from_nothing(shape):
    val = torch.empty(shape)
    assert torch.equal(check("take", val, torch.tensor([-1, -1])), torch.zeros(2, *shape[1:]))
    assert check("take", val, torch.tensor([], dtype=torch.int32)).shape == shape


@pytest.mark.parametrize("shape", [(BIG,), (BIG, 5)])
def test_take_of_much(shape):
    check("take", torch.randn(shape), torch.randint(-1, BIG, (3 * BIG,), dtype=torch.int32))


@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
def test_opcheck(dtype):
    a = operand(6, 5, 14, dtype)
    b = operand(6, 5, 12, dtype, order="unsorted")
    torch.library.opcheck(kernels.union, (*a, *b))
    torch.library.opcheck(kernels.intersection, (*a, *b))
    with_values = (*a, torch.randn(len(a[1])), *b, torch.randn(len(b[1])))
    torch.library.opcheck(kernels.union_values, with_values)
    torch.library.opcheck(kernels.intersection_values, with_values)
    torch.library.opcheck(kernels.union_sum, (*with_values, True))
    from_a = kernels.union(*a, *b)[2]
    torch.library.opcheck(kernels.take, (torch.randn(len(a[1])), from_a))
    torch.library.opcheck(kernels.take, (torch.randn(len(a[1]), 3), from_a))


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused():
    ptr, idx = operand(6, 5, 14, torch.int64)
    val = torch.randn(len(idx))
    for op, args in (
        (kernels.union, (ptr, idx, ptr.int(), idx.int())),
        (kernels.union, (ptr, idx, ptr[:-1].clone(), idx)),
        (kernels.union, (ptr, idx.int(), ptr, idx)),
        (kernels.intersection, (ptr, idx, ptr, idx[1:].clone())),
        (kernels.intersection, (ptr.double(), idx.double(), ptr.double(), idx.double())),
        (kernels.union_values, (ptr, idx, val, ptr, idx, val.double())),
        (kernels.union_values, (ptr, idx, val[1:].clone(), ptr, idx, val)),
        (kernels.union_values, (ptr, idx, val, ptr, idx, val[1:].clone())),
        (kernels.union_sum, (ptr, idx, val, ptr, idx, val.double(), False)),
        (kernels.union_sum, (ptr, idx, val > 0, ptr, idx, val > 0, False)),
        (kernels.intersection_values, (ptr, idx, val[:, None], ptr, idx, val)),
        (kernels.intersection_values, (ptr, idx, val, ptr, idx.int(), val)),
        (kernels.take, (val, idx.double())),
        (kernels.take, (torch.randn(4, 6).T, idx)),
        (kernels.take, (val[None, None], idx)),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            op(*args)


@pytest.mark.parametrize("common", [0.0005, 0.2, 0.6, 0.999, 1.0])
def test_large_merges_do_not_depend_on_the_threads(common):
    """The elements of later threads move down by few places, or by more than a thread has."""
    nse, before = 700_000, torch.get_num_threads()  # so that sums take memory of more than 4 MB
    shared = int(common * nse)
    kind = torch.randperm(2 * nse - shared)
    sides = [(kind < nse).nonzero().squeeze(1), (kind >= nse - shared).nonzero().squeeze(1)]
    ptr = torch.tensor([0, nse // 3, nse], dtype=torch.int32)
    operands = [t for idx in sides for t in (ptr, idx.int(), torch.rand(nse))]
    ways = [
        lambda: kernels.union_sum(*operands, False, True),
        lambda: kernels.union_values(*operands, True),
        lambda: kernels.intersection_values(*operands, True),
    ]
    try:
        torch.set_num_threads(1)
        expected = [way() for way in ways]
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            for way, of_one in zip(ways, expected, strict=True):
                assert all(map(torch.equal, way(), of_one))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(expected[0][2], expected[1][2] + expected[1][3])
