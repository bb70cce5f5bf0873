"""A program that torchrun starts, as a user starts it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_sharded.py"
LIMIT = 200
"""Seconds that the program may take, with the start of three processes; a busy machine takes 60."""


def processes(mark):
    """Numbers of the processes that were started with a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def test_the_example_runs_under_torchrun_and_leaves_no_process():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mark = f"SPGRAD_TEST_RUN={uuid.uuid4().hex}"
    run = sys.executable, "-W", "ignore", "-m", "torch.distributed.run"
    options = "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict([mark.split("=")])}
    try:
        done = subprocess.run(
            [*run, *options, str(EXAMPLE), "--quick"],
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert "in 2 processes" in done.stdout
        assert done.stdout.endswith("good\n")
        until = time.monotonic() + 5
        while processes(mark) and time.monotonic() < until:
            time.sleep(0.1)
        assert processes(mark) == []
    finally:
        for number in processes(mark):
            os.kill(number, signal.SIGKILL)
