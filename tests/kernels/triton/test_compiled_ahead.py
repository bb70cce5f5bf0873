"""Triton kernels are compiled for GPUs without running; their registers and memory have bounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
REGISTERS, SPILLED, SHARED = 255, 16, 48 * 1024
"""Of a thread; bytes of a thread, some of which a compiler spills to run more programs at a time;
bytes of a program, which may have so many on every GPU."""


@pytest.mark.parametrize(
    ("target", "dtype", "columns", "more"),
    [
        ("sm_80", "bfloat16", "64", ""),
        ("sm_90", "float32", "1 512", ""),
        ("gfx942", "float32", "64", ""),
        ("sm_80", "float32", "64", "--index int64 --block 128"),
        ("sm_90", "float64", "64", "--index int64"),
    ],
)
def test_what_a_program_takes(target, dtype, columns, more, tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu.ahead", "--target", target]
    command += ["--dtype", dtype, "--columns", *columns.split(), *more.split()]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    options = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment}
    run = subprocess.run(command, check=False, **options)
    assert run.returncode == 0, run.stderr[-4000:]
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len({one["kernel"] for one in found}) >= 4
    for one in found:
        assert one["spilled"] <= SPILLED, one
        assert one["shared"] <= SHARED, one
        assert one["registers"] <= REGISTERS, one
