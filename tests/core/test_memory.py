"""The memory of large results: kept when they are freed, never shared by two that live."""

import copy
import multiprocessing
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import spgrad

MB = 1 << 20

needs_kernels = pytest.mark.skipif(
    not (spgrad.compiled() and sys.platform == "linux"), reason="only kernels on Linux keep memory"
)
needs_glibc = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="AddressSanitizer has its own memory, and reserves more addresses than a limit allows",
)
# The first lines of a script that makes and frees results.
SETUP = """
import torch, spgrad
def result(mb):
    n = mb * 2**20 // 4 // 16
    return spgrad.eye(n) @ torch.ones(n, 16)
"""


def result(megabytes: float, value: float = 1.0) -> torch.Tensor:
    """A product with so many bytes, all of whose elements are `value`."""
    n = int(megabytes * MB) // 4 // 16
    return spgrad.eye(n) @ torch.full((n, 16), float(value))


def run(script: str, **environment: str) -> str:
    # without site, the library is the one of this process, and not the one that is installed
    options = ["-S"] if sys.flags.no_site else []
    done = subprocess.run(
        [sys.executable, *options, "-c", SETUP + script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def nothing_kept():
    spgrad.empty_cache()


def test_nothing_is_kept_at_first_and_after_a_small_result():
    y = result(1)
    del y
    assert spgrad.empty_cache() == 0


@needs_kernels
def test_a_freed_result_is_kept_until_it_is_asked_back():
    y = result(8)
    assert spgrad.empty_cache() == 0  # it is in use
    del y
    assert spgrad.empty_cache() == 8 * MB
    assert spgrad.empty_cache() == 0


@needs_kernels
@pytest.mark.parametrize("again", [8, 7])
def test_the_next_result_of_about_the_size_has_its_memory(again):
    y = result(8)
    place = y.data_ptr()
    del y
    y = result(again, 2)
    assert y.data_ptr() == place
    assert (y == 2).all()
    assert spgrad.empty_cache() == 0


@needs_kernels
@pytest.mark.parametrize("other", [5, 16])
def test_results_of_another_size_have_other_memory(other):
    y = result(8)
    del y
    y = result(other)
    assert (y == 1).all()
    assert spgrad.empty_cache() == 8 * MB


@needs_kernels
def test_memory_that_is_of_no_use_any_more_is_given_back():
    y = result(8)
    del y
    for _ in range(40):
        y = result(5)
        del y
    y = result(16)
    assert (y == 1).all()
    assert spgrad.empty_cache() == 5 * MB


def test_results_that_live_share_nothing():
    made = [result(8, value) for value in range(4)]
    del made[1]
    made += [result(8, value) for value in (4, 5)]
    assert [y.unique().tolist() for y in made] == [[0], [2], [3], [4], [5]]


@pytest.mark.parametrize(
    "view", [torch.Tensor.numpy, torch.Tensor.detach, lambda y: y[1:].T, torch.Tensor.share_memory_]
)
def test_a_view_keeps_its_memory(view):
    y = result(8)
    seen = view(y)
    del y
    assert (result(8, 2) == 2).all()
    assert (np.asarray(seen) == 1).all()


def test_gradients_are_made_of_it_like_results():
    n = 2 * MB // 16  # 8 MB of x, of y, and of their gradients
    A = spgrad.eye(n).requires_grad_()
    x = torch.ones(n, 16, requires_grad=True)
    for step in range(1, 4):
        (A @ x).mul(step).sum().backward()
        assert (x.grad == sum(range(1, step + 1))).all()  # accumulated
        assert (A.grad.values() == 16 * sum(range(1, step + 1))).all()


def test_other_kinds_of_results():
    with torch.inference_mode():
        assert result(8).is_inference()
    y = result(8)
    assert y.is_contiguous()
    assert copy.deepcopy(y).equal(y)
    assert (y.double() @ torch.ones(16, 1, dtype=torch.float64) == 16).all()
    with pytest.raises(RuntimeError, match="resiz"):
        y.resize_(y.numel() + 1)


@needs_kernels
@pytest.mark.parametrize(("megabytes", "kept"), [("0", 0), ("20", 16), ("1000", 32)])
def test_the_environment_says_how_much_is_kept(megabytes, kept):
    made = run(
        "y = [result(8) for _ in range(4)]; del y; print(spgrad.empty_cache() // 2**20)",
        SPGRAD_CACHE_MB=megabytes,
    )
    assert made == str(kept)


@needs_kernels
@needs_glibc
def test_smaller_results_have_no_new_pages_either():
    """Each result has 256 pages; glibc gives the first ones back unless it is told to keep them."""
    script = """
import resource
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5): y = [result(1), result(1)]; del y
before = faults()
for _ in range(20): y = [result(1), result(1)]; del y
print(faults() - before)
"""
    assert int(run(script)) < 2000


@needs_kernels
@needs_glibc
def test_kept_memory_is_given_back_where_the_system_has_no_more():
    script = """
import resource
y = result(64); del y
A, x = spgrad.eye(80 * 2**14), torch.ones(80 * 2**14, 16)
A @ x[:, :1]
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 32 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
y = A @ x
print(y.numel() // 2**18, float(y.min()), float(y.max()), spgrad.empty_cache())
"""
    assert run(script).split() == ["80", "1.0", "1.0", "0"]


@needs_kernels
def test_more_than_the_limit_is_never_kept():
    script = "y = result(24); del y; y = result(8); del y; print(spgrad.empty_cache() // 2**20)"
    assert run(script, SPGRAD_CACHE_MB="16") == "8"


def test_results_are_memory_of_torch_where_none_is_kept():
    script = """
y = result(8).resize_(4 * 2**20)
torch.add(torch.ones(5 * 2**20), 1, out=y.resize_(0))
print(y.numel() // 2**20, int(y.unique()))
z = result(8).clone()
print(z.resize_(3 * 2**20).numel() // 2**20)
"""
    assert run(script, SPGRAD_CACHE_MB="0").split() == ["5", "2", "3"]


@needs_kernels
def test_out_of_memory_says_how_many_bytes_are_wanted():
    A = spgrad.sparse_csc_tensor([0, 1], [5], [1.0], (2**45, 1))
    with pytest.raises(RuntimeError) as caught:
        A.to_sparse_csr()
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"spgrad: out of memory: the system has no {8 * (2**45 + 1)} bytes")
    assert "(281475.0 GB), which are wanted at once" in first
    B = spgrad.sparse_csr_tensor([0, 1], [2**60], [1.0], (1, 2**61))
    with pytest.raises(RuntimeError, match="spgrad: out of memory: the system has no"):
        spgrad.eye(1) @ B  # sums of a row


@pytest.mark.parametrize(
    "call",
    [
        lambda A: spgrad.linalg.logdet(A, method="lanczos", probes=2**45),
        lambda A: A @ torch.ones(2, 1).expand(2, 2**50),
        lambda A: spgrad.repeat(A, 2**40, 2**10),
        lambda A: spgrad.data.collate([(A, np.broadcast_to(np.float64(1), 2**48))] * 2),
    ],
)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_out_of_memory_of_torch_is_worded_likewise(call):
    A = spgrad.from_dense(torch.eye(2) + 1)
    with pytest.raises(RuntimeError) as caught:
        call(A)
    text = r"spgrad: out of memory: the system has no \d+ bytes \([0-9.]+ GB\), which are wanted"
    assert re.match(text, str(caught.value))
    assert type(caught.value) is RuntimeError


def _in_a_child(y, queue):
    queue.put((float(y.sum()), float(result(8, 3).sum())))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX alone")
def test_a_forked_process_has_its_own():
    script = """
import os
import re
kept = result(8)
y = result(8); del y
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    y = result(8) * 2
    os._exit(0 if (y == 2).all() and (kept == 1).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(kept.sum()) == kept.numel())
"""
    assert run(script) == "0 True"


def test_a_result_goes_to_another_process():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    y = result(8)
    child = context.Process(target=_in_a_child, args=(y, queue))
    child.start()
    assert queue.get(timeout=120) == (2 * MB, 3 * 2 * MB)
    child.join()
