"""Each allocation of every kernel fails once: the kernel raises an error and leaks nothing.

It is no part of the suite: it needs a library that is built for tests, which `make sanitize`
builds.
"""

import resource
from pathlib import Path

import pytest
import torch
from calls import NAMES, calls

from spgrad import kernels

HERE = torch.empty(0)


def fail(n):
    """Makes the n-th allocation from now on fail; what is left of the count, live ones."""
    return torch.ops.spgrad.fail_allocation(HERE, n).tolist()


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"])
def threads(request):
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def attempt(name, args):
    """The results of a kernel, or the error it raised."""
    try:
        made = getattr(kernels, name)(*args)
    except RuntimeError as error:
        return None, str(error)
    return made if isinstance(made, tuple) else (made,), ""


def failures(name, args):
    """Calls a kernel until no allocation is left to fail; how many did."""
    attempt(name, args)  # its memory is kept, and the list of what is kept stays
    expected, _ = attempt(name, args)
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    kernels.empty_cache(HERE)
    live = fail(0)[1]
    n = 1
    while n < 100_000:
        fail(n)
        made, error = attempt(name, args)
        left = fail(0)[0]
        for a, b in zip(before, args, strict=True):
            assert not isinstance(a, torch.Tensor) or torch.equal(a, b)
        if made is None:
            assert left == 0, error
            assert error.startswith("spgrad: out of memory: the system has no "), error
        else:
            for a, b in zip(made, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        del made, a, b
        kernels.empty_cache(HERE)
        assert fail(0)[1] == live, f"{name}: what it had before allocation {n} is not freed"
        if left > 0:
            return n - 1
        n += 1 + max(n - 100, 0) // 10  # each of the first hundred, then some of those alike
    raise AssertionError(f"{name}: 100 000 allocations")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_allocation_of_a_kernel_fails(name, dtype, threads):
    for n in (300, 140_000):
        assert failures(name, calls(n, dtype)[name]) > 0


@pytest.mark.parametrize("bits", [20, 62])
def test_each_allocation_of_a_sort_fails(bits, threads):
    size = (1 << bits, 1 << bits)
    indices = torch.randint(1 << bits, (2, 3000))
    assert failures("coalesce", (indices, size)) > 0
    assert failures("sort_coo", (indices, size)) > 0


def test_each_allocation_of_a_large_result_fails(threads):
    n = 1 << 17  # 8 MB of results, whose memory is kept
    ptr, idx = torch.arange(n + 1), torch.arange(n)
    assert failures("spmm", (ptr, idx, None, torch.ones(n), torch.ones(n, 16))) > 0
    assert failures("expand", (ptr * 16, 16 * n)) > 0


def test_each_allocation_of_a_long_row_of_attention_fails(threads):
    """The kernel computes an attention for each 4096 entries of a row."""
    n = 3 * 4096
    ptr, idx = torch.tensor([0, n]), torch.arange(n) % 64
    q, k, v = torch.randn(1, 1, 3), torch.randn(1, 64, 3), torch.randn(1, 64, 4)
    assert failures("attention", (ptr, idx, None, torch.randn(n), q, k, v, 0.1)) > 0


def lines_of(megabytes):
    """Operands of `expand` whose result has so many bytes: from 4 MB on, its memory is kept."""
    return torch.arange(megabytes + 1) << 17, megabytes << 17


def mapped():
    """The megabytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() >> 20


def of_a_wrong_dtype():
    """The error of a call that has nothing to do with memory."""
    return attempt("expand", (torch.zeros(2), 0))[1]


def test_results_whose_memory_can_not_be_listed_are_given_back():
    """The list of what is kept has room for some, and then would grow."""
    made = [kernels.expand(*lines_of(4)) for _ in range(8)]
    made.clear()
    kernels.empty_cache(HERE)
    live, before = fail(0)[1], mapped()
    made = [kernels.expand(*lines_of(4)) for _ in range(40)]
    kept = 0
    while made:
        fail(1)
        made.pop()
        kept += fail(0)[0] > 0
    assert 8 <= kept < 40
    assert "indices are int32 or int64" in of_a_wrong_dtype()
    assert kernels.empty_cache(HERE) == kept * 4 << 20
    assert fail(0)[1] == live
    assert mapped() < before + 40


def test_a_result_while_memory_of_no_use_can_not_be_listed():
    """What is of no use any more stays, and the result has other memory."""
    kernels.empty_cache(HERE)
    outcomes = set()
    for n in range(1, 6):
        for megabytes in [8] + 40 * [5]:
            kernels.expand(*lines_of(megabytes))
        fail(n)
        made, error = attempt("expand", lines_of(16))
        failed = fail(0)[0] == 0
        if made is None:
            assert error.startswith("spgrad: out of memory: the system has no ")
        else:
            assert torch.equal(made[0], torch.arange(16).repeat_interleave(1 << 17))
            assert "indices are int32 or int64" in of_a_wrong_dtype()
        outcomes.add((failed, made is not None, kernels.empty_cache(HERE) >> 20))
        del made
        kernels.empty_cache(HERE)
    assert (True, True, 13) in outcomes  # it failed, which shows in what is kept alone
    assert (False, True, 5) in outcomes
