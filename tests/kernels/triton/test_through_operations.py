"""Operations on Triton kernels, from the layouts to the second derivative, on the matrix zoo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
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
    environment = {**os.environ, **alone, "PYTHONPATH": str(HERE)}
    options = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment}
    run = subprocess.run(command, check=False, **options)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
