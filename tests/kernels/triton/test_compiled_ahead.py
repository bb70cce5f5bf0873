"""Triton kernels are compiled for GPUs without running; their registers and memory have bounds."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import paper

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src/spgrad/kernels/triton"
KERNELS = {
    name
    for path in SOURCES.rglob("*.py")
    for name in re.findall(r"def (\w+_kernel)\(", path.read_text())
}
"""Every kernel that is launched."""
MACHINES = {machine.target: machine for machine in paper.MACHINES}
REGISTERS, SPILLED, SHARED = 128, 16, 48 * 1024
"""Of a thread where no machine is described: an AMD GPU has 512 for each thread under way; bytes of
a thread, some of which a compiler spills to run more programs at a time; bytes of a program, which
may have so many on every GPU."""
WARPS = {"float64": 8}
"""Fewest warps that a multiprocessor holds at a time, of 64; 12 in other dtypes."""


@pytest.mark.parametrize(
    ("target", "dtype", "columns", "more"),
    [
        ("sm_80", "bfloat16", "64", ""),
        ("sm_90", "float32", "1 512", ""),
        ("sm_90", "float16", "64", "--index int64"),
        ("sm_90", "bfloat16", "64", "--index int64"),
        ("gfx942", "float32", "64", ""),
        ("gfx942", "bfloat16", "1 512", ""),
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
    assert "FP_FUSION" not in run.stderr  # Triton warns where a launch leaves it to a default
    found = [json.loads(line) for line in run.stdout.splitlines()]
    blocks = {"block_spmm_kernel", "block_sddmm_kernel"} if dtype == "float64" else set()
    for k in columns.split():
        assert {one["kernel"] for one in found if one["columns"] == int(k)} == KERNELS - blocks
    for one in found:
        assert one["spilled"] <= SPILLED, one
        assert one["shared"] <= SHARED, one
        if target not in MACHINES:
            assert one["registers"] <= REGISTERS, one
            continue
        taken = one["registers"], one["shared"], one["warps"]
        programs = paper.programs(MACHINES[target], *taken)
        assert programs * one["warps"] >= WARPS.get(dtype, 12), one


def test_how_many_kernels_there_are():
    assert len(KERNELS) == 20
