"""Runs tests on one changed file after the other, each in a fork of a process that has torch.

It reads a line of JSON for each job from its input, {"file", "source", "tests", "seconds"}, and
answers with one: {"failed": the first test that failed or null, "why", "passed"}.
Run with the interpreter of a `mutants.tree`, in that tree.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import scipy.sparse
import torch
import torch.fx.experimental.symbolic_shapes

_LOADED = (hypothesis, np, scipy.sparse, torch)  # once, before the forks
ONE_TEST = 100.0, 900  # seconds of computing, and on the clock, after which a test hangs
MEMORY = 8 << 30


class _Watch:
    """Notes the first failure, and stops when the time is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # of computing
        self.failed: str | None = None
        self.why = ""
        self.passed = 0

    def over(self) -> bool:
        return time.process_time() > self.seconds

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._note(report)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, ONE_TEST[0])
        signal.alarm(ONE_TEST[1])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._note(report)
        elif report.when == "call":
            self.passed += 1

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self.over():
            pytest.exit("time is over", 0)

    def _note(self, report: Any) -> None:
        if self.failed is None:
            self.failed, self.why = report.nodeid, str(report.longrepr)[-300:]


def _pytest(file: str, tests: list[str], watch: _Watch) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "--tb=short"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported before
    options += ["--basetemp=build/tmp"]
    code = pytest.main([*options, *tests], plugins=[watch])
    if code == pytest.ExitCode.USAGE_ERROR and watch.failed is None:
        # an import that fails in conftest.py, or tests whose names come from the changed table
        code = pytest.main([*options, file], plugins=[watch])
        if code == pytest.ExitCode.USAGE_ERROR and watch.failed is None:
            watch.failed, watch.why = "conftest.py", "nothing can be collected"


def _child(job: dict[str, Any], answer: int) -> None:
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    log = os.open("build/log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (0, 1, 2):
        os.dup2(log, stream)
    watch = _Watch(job["seconds"])
    by_file: dict[str, list[str]] = {}
    for test in job["tests"]:
        by_file.setdefault(test.split("::")[0], []).append(test)
    for file, tests in by_file.items():  # what later files need is imported if they are needed
        if watch.failed is None and not watch.over():
            _pytest(file, tests, watch)
    found = {"failed": watch.failed, "why": watch.why, "passed": watch.passed}
    os.write(answer, json.dumps(found).encode())
    os._exit(0)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _child(job, writing)
        except BaseException:  # noqa: BLE001 (the fork must not go on with the loop)
            traceback.print_exc()
        os._exit(70)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what its tests left running
    if text:
        return json.loads(text)
    code = os.waitstatus_to_exitcode(status)
    return {"failed": "?", "why": f"the process ended with {code}", "passed": 0}


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        file = Path(job["file"])
        before, times = file.read_bytes(), file.stat()
        file.write_text(job["source"])
        try:
            found = _run(job)
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # compiled files hold again
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
