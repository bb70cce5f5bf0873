"""Triton kernels where torch calls them: through operations, and through torch's opcheck."""

import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from interpreting import LAUNCHED, MODULES, by_columns, chunks_of_eight, view

from spgrad import kernels, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.kernels.declare import NATIVE
from spgrad.lowering.products import row_spmm, spmm

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
ROOT = TESTS.parent
OPERATIONS = [
    "matmul",
    "spmm",
    "sddmm",
    "softmax",
    "scaled_dot_product_attention",
    "additive_attention",
]


BY_HAND = {
    "tests/ops/products/test_additive_attention.py": "not 16_bits",  # the interpreter cuts bfloat16
    "tests/nn/graph/test_graph_attention.py": "torch_geometric or formula or autocast or nothing",
}
"""File of tests -> those of its tests that run on Triton kernels."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name):
    """Value, gradients and second order of every claim of the support table."""
    run_on_triton("tests/support/test_zoo.py", f"[{name}-")


@pytest.mark.parametrize("file", BY_HAND)
def test_written_by_hand(file):
    run_on_triton(file, BY_HAND[file])


def run_on_triton(file, chosen):
    """Asserts that the chosen tests of a file pass where Triton kernels answer."""
    command = [sys.executable, "-m", "pytest", "-p", "on_cpu", "-p", "no:cacheprovider", "-q"]
    command += ["-n0", "-W", "ignore::RuntimeWarning"]  # of NumPy, where NaN is what is wanted
    command += [file, "-k", chosen]
    alone = {"TRITON_INTERPRET": "1", "SPGRAD_NO_EXT": "1", "SPGRAD_NO_NATIVE": "1"}
    environment = {**os.environ, **alone, "PYTHONPATH": f"{HERE}{os.pathsep}{TESTS}"}
    options = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment}
    run = subprocess.run(command, check=False, **options)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


@pytest.fixture
def dispatched(monkeypatch):
    """Lets torch call the Triton kernels for tensors on the CPU; the names of those it called.

    A kernel that passes its operands on to another backend fails the test.
    """
    called = []

    def counted(name):
        def run(*args):
            called.append(name)
            return LAUNCHED[name](*args)

        return run

    def refuse(*_):
        pytest.fail("another backend was called")

    with torch.library._scoped_library("spgrad", "IMPL") as library:
        for name in MODULES:
            monkeypatch.setitem(NATIVE, name, refuse)
            with warnings.catch_warnings():  # torch warns that the other backend is overridden
                warnings.simplefilter("ignore")
                library.impl(name, counted(name), "CPU", allow_override=True)
        yield called


M, K, N, HEADS = 3, 9, 32, 2


def operands():
    """{kernel: arguments} with a long line between empty ones; results of others are drawn."""
    dense = torch.randn
    ptr, idx, perm = by_rows = view("one_line", M, K)
    by_cols, nse = by_columns(*by_rows, K), len(idx)
    val, left, right = dense(nse), dense(M, N), dense(K, N)
    by_head, wide_left, wide_right = dense(nse, HEADS), dense(M, HEADS * N), dense(K, HEADS * N)
    q, k, of_rows = dense(HEADS, M, N), dense(HEADS, K, N), dense(HEADS, M)
    scores, sums = (by_head, dense(M, HEADS), dense(K, HEADS)), dense(M, HEADS)
    given = wide_left, wide_left, sums, sums, wide_left, sums  # g and results
    blocks, tall_left, tall_right = dense(6 * nse), dense(2 * M, N), dense(3 * K, N)
    return {
        "additive_attention": (*by_rows, *scores, wide_right, 0.2, True),
        "additive_attention_backward": (*by_cols, *scores, wide_right, 0.2, *given),
        "attention": (*by_rows, val, q, k, k, 0.5),
        "attention_backward": (*by_rows, *by_cols, val, q, k, k, q, of_rows, of_rows, 0.5),
        "block_sddmm": (*by_rows, tall_left, tall_right, 2, 3, False),
        "block_spmm": (*by_rows, blocks, tall_right, 2, 3, True),
        "heads_sddmm": (*by_rows, wide_left, wide_right, HEADS),
        "heads_spmm": (*by_rows, by_head, wide_right),
        "sddmm": (*by_rows, left, right),
        "segment_softmax": (ptr, perm, val, False),
        "segment_softmax_backward": (ptr, perm, val, val, False),
        "spmm": (*by_rows, val, right),
        "spmm_sddmm": (*by_rows, val, left, right),
    }


def recorded(x):
    """A tensor of which a gradient is asked, if it can have one."""
    floating = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.detach().clone().requires_grad_() if floating else x


CHECKED = "test_schema", "test_faketensor", "test_autograd_registration"
"""What depends on the backend; test_every_kernel.py has opcheck's other test, of torch.compile."""


# opcheck runs kernels, so it skips fake tensors, also those on CUDA. Therefore torch calls the
# kernels here for tensors on the CPU. What opcheck finds for tensors on CUDA, only a GPU can show.
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, on maxima of empty lines
@pytest.mark.usefixtures(chunks_of_eight.__name__)
def test_opcheck(name, dispatched):
    """No operand is changed or returned, fake results are like real ones, no graph is recorded."""
    args = tuple(map(recorded, operands()[name]))
    torch.library.opcheck(getattr(torch.ops.spgrad, name).default, args, test_utils=CHECKED)
    assert dispatched == [name] * len(CHECKED)


def as_on_a_gpu(uses_blocks):
    """The function, which answers for operands on the CPU as for those on a GPU."""

    def chosen(pattern, x, *, sampled=False):
        there = types.SimpleNamespace(device=torch.device("cuda"), dtype=x.dtype, dim=x.dim)
        return uses_blocks(pattern, there, sampled=sampled)

    return chosen


@pytest.fixture
def of_blocks(monkeypatch, dispatched):
    """Products of blocks call the Triton kernels; the names of those that were called."""
    monkeypatch.setattr(kernels, "by_triton", lambda: tuple(MODULES))
    chosen = as_on_a_gpu(spmm.uses_blocks)
    for module in (spmm, row_spmm):
        monkeypatch.setattr(module, "uses_blocks", chosen)
    return dispatched


PRODUCTS = {"A @ x": lambda A, x: A @ x, "x @ A": lambda A, x: (x.mT @ A).mT}


@pytest.mark.parametrize(
    ("product", "layout", "blocks", "n"),
    [
        ("A @ x", "bsr", (8, 8), 1),
        ("A @ x", "bsr", (16, 9), 5),
        ("A @ x", "bsc", (8, 20), 3),
        ("x @ A", "bsr", (12, 8), 4),
    ],
)
@pytest.mark.usefixtures(chunks_of_eight.__name__)
def test_a_step_of_blocks(product, layout, blocks, n, of_blocks):
    """Value and both gradients; some lines of blocks are empty, and some are cut into parts."""
    filled = torch.rand(10, 10) < 0.2
    filled[2], filled[:, 5] = True, True
    filled[7], filled[:, 8] = False, False
    likely = torch.kron(filled.double(), torch.ones(blocks, dtype=torch.float64))
    A = testing.random_sparse(
        likely.shape, LAYOUTS[layout], dtype=torch.float32, density=likely, blocksize=blocks
    ).requires_grad_()
    dense = A.detach().to_dense().double().requires_grad_()
    x = torch.randn(dense.shape[product == "A @ x"], n, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    y, wanted = PRODUCTS[product](A, x), PRODUCTS[product](dense, wide)
    g = torch.randn(y.shape)
    y.backward(g)
    wanted.backward(g.double())
    assert A.grad.pattern is A.pattern
    assert A.grad.nse == A.nse == filled.sum()
    testing.assert_close(y, wanted)
    testing.assert_close(A.grad, dense.grad * likely)
    testing.assert_close(x.grad, wide.grad)
    assert sorted(of_blocks) == ["block_sddmm", "block_spmm", "block_spmm"]
