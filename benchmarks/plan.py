"""Which cells are measured, and the child processes that measure them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.peers import CONTENDERS
from benchmarks.problems import OPS, Problem

ROOT = Path(__file__).parents[1]
# Every array comes from the system and goes back to it, so that the peak is exact (glibc).
EXACT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
NO_COLUMNS = 1  # what k is where the operation has no dense operand

Cell = tuple[int, str, str, int]  # threads, matrix, op, k
Result = dict[str, Any]
Progress = Callable[[Result], None]


@dataclass(frozen=True)
class Options:
    """What is measured and how long it may take.

    Attributes:
        ops: Names of operations.
        matrices: Names of matrices.
        columns: Values of k.
        threads: Numbers of threads.
        dtype: "float32" or "float64".
        layout: That of spgrad's operand.
        index: "int32" or "int64".
        rounds: Samples of each contender at most.
        seconds: Seconds for each contender in a cell, more if three samples take more.
        limit: Bytes that a contender may allocate.
        memory: Whether to measure memory too.
    """

    ops: tuple[str, ...]
    matrices: tuple[str, ...]
    columns: tuple[int, ...]
    threads: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "csr"
    index: str = "int32"
    rounds: int = 15
    seconds: float = 1.2
    limit: float = 4e9
    memory: bool = True

    def cells(self) -> Iterator[Cell]:
        """What is measured, those that share a process together."""
        for threads in self.threads:
            for matrix in self.matrices:
                for op in self.ops:
                    columns = self.columns if OPS[op].dense else (NO_COLUMNS,)
                    for k in columns:
                        if OPS[op].applies(self.problem(matrix, k)):
                            yield threads, matrix, op, k

    def problem(self, matrix: str, k: int) -> Problem:
        return Problem(matrix, k, self.dtype, self.layout, self.index)


def time_all(options: Options, names: list[str], progress: Progress) -> list[Result]:
    """Times every cell, one after the other; one process for each matrix and number of threads."""
    groups = groupby(options.cells(), key=lambda cell: cell[:2])
    return [
        result
        for _, cells in groups
        for result in _measured(options, list(cells), names, progress, memory=False)
    ]


def measure_all_memory(options: Options, names: list[str], progress: Progress) -> list[Result]:
    """Memory of the step on one thread, each contender in a process of its own."""
    if not options.memory or "step" not in options.ops:
        return []
    cells = [(1, matrix, "step", k) for matrix in options.matrices for k in options.columns]
    return list(_measured(options, cells, names, progress, memory=True))


def _measured(
    options: Options, cells: list[Cell], names: list[str], progress: Progress, *, memory: bool
) -> Iterator[Result]:
    """The results of cells that share a process."""
    able = [[name for name in names if CONTENDERS[name].offers(op)] for _, _, op, _ in cells]
    requests = [
        {
            "op": op,
            "problem": asdict(options.problem(matrix, k)),
            "contenders": offering,
            "memory": memory,
        }
        for (_, matrix, op, k), offering in zip(cells, able, strict=True)
    ]
    answers = _ask(options, cells[0][0], requests)
    for cell, offering, answer in zip(cells, able, answers, strict=True):
        lost = isinstance(answer, str)
        found = {name: {"error": answer} for name in offering} if lost else answer
        result = _result(options, cell, found)
        progress(result)
        yield result


def all_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _result(options: Options, cell: Cell, found: Any) -> Result:
    threads, matrix, op, k = cell
    settings = {"dtype": options.dtype, "layout": options.layout, "index": options.index}
    where = {"op": op, "matrix": matrix, "k": k, "threads": threads}
    return {**where, **settings, "contenders": found}


def _ask(options: Options, threads: int, cells: list[dict[str, Any]]) -> Iterator[Any]:
    """The answers of a new process to these cells; from where it ends early, why it did."""
    count = str(threads)
    env = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if cells[0]["memory"]:
        env |= EXACT_MEMORY
    request = {
        "threads": threads,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "limit": options.limit,
        "cells": cells,
    }
    command = [sys.executable, "-m", "benchmarks.worker"]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        given = 0
        for line in process.stdout:
            yield json.loads(line)
            given += 1
        status = process.wait()
    for _ in cells[given:]:
        yield f"the process ended with status {status}"
