"""Every parallel loop where one thread's part ends and the next begins, on 1 to 4 threads."""

import pytest
import torch
from calls import NAMES, calls

from spgrad import kernels
from spgrad.kernels import REFERENCES

GRAIN = 32768
"""Entries from which on a second thread helps: `kSerialWork` in threads.h."""

THREADS = (1, 2, 3, 4)

pytestmark = pytest.mark.usefixtures("poisoned")


def on_threads(name, *args):
    """The results on 1 to 4 threads, which are the same to the bit."""
    found = []
    for threads in THREADS if kernels.compiled() else (1,):
        torch.set_num_threads(threads)
        made = getattr(kernels, name)(*args)
        found.append(made if isinstance(made, tuple) else (made,))
    for results in found[1:]:
        for one, other in zip(found[0], results, strict=True):
            assert one.shape == other.shape
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return found[0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("n", [GRAIN + 1, 4 * GRAIN + 3])
def test_every_kernel_near_the_limits(n, dtype):
    for name, args in calls(n, dtype).items():
        made = on_threads(name, *args)
        torch.set_num_threads(1)
        expected = REFERENCES[name](*args)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for actual, reference in zip(made, expected, strict=True):
            torch.testing.assert_close(actual, reference, msg=lambda m, name=name: f"{name}: {m}")


def test_every_kernel_has_a_call():
    assert sorted(calls(100)) == NAMES


def limits(n):
    """The places where n entries are cut for 2, 3 or 4 threads, and those beside them."""
    cuts = {0, n}
    for threads in THREADS[1:]:
        each, more = divmod(n, threads)
        cuts |= {each * c + min(c, more) for c in range(threads)}  # equal parts
        cuts |= {-(-n // threads) * c for c in range(threads)}  # what torch cuts a range into
    near = {cut + step for cut in cuts for step in (-2, -1, 0, 1)}
    return sorted(place for place in near if 0 < place < n)


N = 4 * GRAIN + 3
PLACES = limits(N)


@pytest.mark.parametrize(("nse", "ordered"), [(0, 1), (1, 1), (2, 0)])
def test_check_coo_of_numbers(nse, ordered):
    """Without dimensions, all entries are at one place."""
    indices = torch.empty(0, nse, dtype=torch.int64)
    assert on_threads("check_coo", indices, ())[0].tolist() == [-1, -1, ordered]
    assert REFERENCES["check_coo"](indices, ()).tolist() == [-1, -1, ordered]


@pytest.mark.parametrize("rows", [1, 2])
def test_check_coo_finds_one_disorder_anywhere(rows):
    indices = torch.arange(N).expand(rows, N).contiguous()
    size = (N,) * rows
    assert on_threads("check_coo", indices, size)[0].tolist() == [-1, -1, 1]
    for p in PLACES:
        again = indices.clone()
        again[:, p] = again[:, p - 1]  # a repeated entry
        assert on_threads("check_coo", again, size)[0].tolist() == [-1, -1, 0]
        outside = indices.clone()
        outside[-1, p] = N
        assert on_threads("check_coo", outside, size)[0].tolist()[:2] == [rows - 1, p]


def test_check_compressed_finds_one_disorder_anywhere():
    ptr, idx = torch.tensor([0, N]), torch.arange(N)
    short = torch.cat([torch.arange(0, N, 5), torch.tensor([N])])
    for pointers in (ptr, short):
        assert on_threads("check_compressed", pointers, idx, N)[0].tolist() == [0, -1]
        for p in PLACES:
            for bad, code in ((-1, 4), (N, 4)):
                wrong = idx.clone()
                wrong[p] = bad
                assert on_threads("check_compressed", pointers, wrong, N)[0].tolist() == [code, p]
    for p in PLACES:
        again = idx.clone()
        again[p] = again[p - 1]
        assert on_threads("check_compressed", ptr, again, N)[0].tolist() == [5, p]


@pytest.mark.parametrize("name", ["coalesce", "sort_coo"])
def test_entries_out_of_order_are_sorted_wherever_they_stand(name):
    indices = torch.arange(N)[None] * 2
    for p in PLACES:
        swapped = indices.clone()
        swapped[0, p - 1 : p + 1] = indices[0, p - 1 : p + 1].flip(0)
        unique, *others = on_threads(name, swapped, (2 * N,))
        assert torch.equal(unique, indices)
        order = torch.arange(N)
        order[p - 1 : p + 1] = order[p - 1 : p + 1].flip(0)
        assert torch.equal(others[-1].long(), order)
        again = indices.clone()
        again[0, p] = again[0, p - 1]
        unique, *others = on_threads(name, again, (2 * N,))
        assert torch.equal(unique[0], torch.cat([indices[0, :p], indices[0, p + 1 :]]))


def test_a_run_of_repeated_entries_may_be_longer_than_a_thread_s_part():
    for first, last in ((1, N - 1), (GRAIN, 3 * GRAIN), (0, N)):
        index = torch.arange(N)
        index[first:last] = first
        unique, group = on_threads("coalesce", index[None], (N,))
        expected, inverse = index.unique(return_inverse=True)
        assert torch.equal(unique[0], expected)
        assert torch.equal(group, inverse)


@pytest.mark.parametrize("name", ["union", "intersection"])
def test_a_line_out_of_order_is_merged_in_order(name):
    ptr, idx = torch.tensor([0, N]), 3 * torch.arange(N)
    other = torch.tensor([0, 4]), torch.tensor([0, 1, 3 * GRAIN, 3 * N])
    expected = (idx, other[1]) if name == "union" else (idx[[0, GRAIN]],)
    expected = torch.cat(expected).unique()
    for p in PLACES:
        swapped = idx.clone()
        swapped[p - 1 : p + 1] = idx[p - 1 : p + 1].flip(0)
        assert torch.equal(on_threads(name, ptr, swapped, *other)[1], expected)


def test_a_product_finds_the_columns_of_a_row_out_of_order():
    one = torch.tensor([0, 1]), torch.tensor([0]), None, torch.ones(1)
    ptr, val = torch.tensor([0, N]), torch.ones(N)
    for p in PLACES:
        idx = torch.arange(N)
        idx[p - 1 :] = idx[p - 1 :].roll(1)  # the largest column in the middle
        row = ptr, idx, None, val
        found, columns, values = on_threads("spgemm", *one, *row, N)
        assert found.tolist() == [0, N]
        assert torch.equal(columns, torch.arange(N))
        assert bool((values == 1).all())


@pytest.mark.parametrize("bits", [16, 31, 32, 33, 47, 48, 49, 50, 61, 62])
def test_indices_of_any_size_are_merged(bits):
    large = 1 << bits
    a, b = (
        torch.tensor([3, 7, large - 1, large + 1]),
        torch.tensor([3, large - 1, large, large + 5]),
    )
    ptr = torch.tensor([0, 1, 4])
    for turned in (a, b), (b, a):
        ptr_u, idx, *_ = on_threads("union", ptr, turned[0], ptr, turned[1])
        lines = [torch.cat([t[part] for t in turned]).unique() for part in (slice(1), slice(1, 4))]
        assert idx.tolist() == torch.cat(lines).tolist()
        assert ptr_u.tolist() == [0, len(lines[0]), len(lines[0]) + len(lines[1])]
        both = on_threads("intersection", ptr, turned[0], ptr, turned[1])
        assert both[1].tolist() == [3, large - 1]
        assert both[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("lines", [2, 3, 7, 40])
def test_short_lines_of_large_indices_are_merged(lines):
    """Lines that are merged together number their indices in 48 bits, where these suffice."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)

        def draw(most, generator=generator):
            return int(torch.randint(most, (1,), generator=generator))

        a, b = (
            [
                torch.randint(1 << (44 + draw(18)), (draw(6),), generator=generator).unique()
                for _ in range(lines)
            ]
            for _ in range(2)
        )
        ptrs = [torch.tensor([0, *map(len, rows)]).cumsum(0) for rows in (a, b)]
        found = on_threads("union", ptrs[0], torch.cat(a), ptrs[1], torch.cat(b))
        wanted = [torch.cat(rows).unique() for rows in zip(a, b, strict=True)]
        assert torch.equal(found[1], torch.cat(wanted))
        assert found[0].diff().tolist() == [len(row) for row in wanted]


@pytest.mark.parametrize("bits", [16, 31, 32, 33, 47, 48, 61, 62])
def test_indices_of_any_size_are_sorted_and_found(bits):
    large = 1 << bits
    idx = torch.tensor([large, 3, large - 1, 0, large + 1, 3])
    for name in ("coalesce", "sort_coo"):
        unique = on_threads(name, idx[None], (large + 2,))[0]
        assert unique[0].tolist() == [0, 3, large - 1, large, large + 1]
        two = torch.stack([torch.tensor([1, 0, 0, 1, 0, 0]), idx])
        unique = on_threads(name, two, (2, large + 2))[0]
        assert unique.tolist() == [[0, 0, 0, 1, 1], [3, large - 1, large + 1, 0, large]]
    ptr, ascending = torch.tensor([0, 5]), idx.unique()
    line = torch.zeros(3, dtype=torch.int64)
    wanted = torch.tensor([large, large + 2, 3])
    assert on_threads("locate", ptr, ascending, line, wanted)[0].tolist() == [3, -1, 1]
    assert on_threads("check_coo", ascending[None], (large + 2,))[0].tolist() == [-1, -1, 1]
    assert on_threads("check_coo", ascending[None], (large,))[0].tolist()[:2] == [0, 3]
    assert on_threads("check_compressed", ptr, ascending, large + 1)[0].tolist() == [4, 4]
    cut = on_threads("cut_lines", ptr, ascending, torch.tensor([large]))[0]
    assert cut.tolist() == [3]
    _, chosen, _ = on_threads("select_range", ptr, ascending, large - 1, 1, 3)
    assert chosen.tolist() == [0, 1, 2]


@pytest.mark.parametrize("bits", [16, 30, 31, 32, 47, 48, 60])
def test_indices_of_any_size_are_multiplied_and_moved(bits):
    large = 1 << bits
    ptr, idx = torch.tensor([0, 2]), torch.tensor([0, large])
    made = on_threads("kron_lines", ptr, idx, torch.tensor([0, 2]), torch.tensor([0, 1]), 2)
    assert made[1].tolist() == [0, 1, 2 * large, 2 * large + 1]
    made = on_threads("expand_blocks", ptr, idx, 1, 2, False)
    assert made[1].tolist() == [0, 1, 2 * large, 2 * large + 1]
    made = on_threads("group_blocks", ptr, 2 * idx + 1, 1, 2, False)
    assert made[1].tolist() == [0, large]
    begin, end, shift = ptr[:1], ptr[1:], torch.tensor([large])
    made = on_threads("join_ranges", idx, begin, end, shift, 2, False)
    assert made[1].tolist() == [large, 2 * large]
    made = on_threads("join_ranges", idx, begin, end, shift, 2, True)
    assert made[1].tolist() == [0, large]
