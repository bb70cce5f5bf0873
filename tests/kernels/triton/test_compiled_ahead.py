"""Triton kernels are compiled for GPUs that are not here, and stay within what a program may take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
REGISTERS, SHARED = 255, 48 * 1024
"""What a thread may have on NVIDIA's GPUs, and a program on any, without asking for more."""


@pytest.mark.parametrize(
    ("target", "dtype", "columns"),
    [
        ("sm_80", "float32", "64"),
        ("sm_80", "bfloat16", "64"),
        ("sm_90", "float32", "1 64 512"),
        ("gfx942", "float32", "64"),
    ],
)
def test_nothing_is_spilled(target, dtype, columns, tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu.ahead", "--target", target]
    command += ["--dtype", dtype, "--columns", *columns.split()]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert run.returncode == 0, run.stderr[-4000:]
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len({one["kernel"] for one in found}) >= 4
    for one in found:
        assert one["spilled"] == 0, one
        assert one["shared"] <= SHARED, one
        assert one["registers"] <= REGISTERS, one
