"""Which cells are measured, and the child processes that measure them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.matrices import ALL_KINDS, MATRICES
from benchmarks.measure import available_memory
from benchmarks.operations import OPS
from benchmarks.peers import CONTENDERS
from benchmarks.problems import Problem

ROOT = Path(__file__).parents[1]
# Every array comes from the system and goes back to it, so that the peak is exact (glibc).
EXACT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
# What libraries read the number of threads from.
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC", "PJRT_NPROC")
NO_COLUMNS = 1  # what k is where the operation has no dense operand

Result = dict[str, Any]
Progress = Callable[[Result], None]

# Of --full: what grows and what is small, and how far numbers and indices of other types go.
GROWING = ("spmm", "step", "sddmm", "spgemm", "coalesce", "transpose", "softmax", "sum_rows", "sin")
CALLS = ("spmm", "step")
TARGETED = ("spmm", "step", "sddmm", "spgemm", "softmax", "sum_rows", "coalesce", "transpose")
TARGETED_COLUMNS = (NO_COLUMNS, 32, 128)
USUAL = ("float32", "int32")


class Cell(NamedTuple):
    """What one figure of each contender is about."""

    threads: int
    matrix: str
    op: str
    k: int
    dtype: str
    index: str


@dataclass(frozen=True)
class Options:
    """What is measured and how long it may take.

    Attributes:
        ops: Names of operations.
        matrices: Names of matrices.
        columns: Values of k.
        threads: Numbers of threads.
        dtypes: "float32", "float64" or "bfloat16".
        layout: That of spgrad's operand.
        indices: "int32" or "int64".
        rounds: Samples of each contender at most.
        seconds: Seconds for each contender in a cell, more if three samples take more.
        limit: Bytes that a process may allocate.
        memory: Whether to measure memory too.
        full: Whether to leave out the combinations of which nothing is to be learnt.
    """

    ops: tuple[str, ...]
    matrices: tuple[str, ...]
    columns: tuple[int, ...]
    threads: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    layout: str = "csr"
    indices: tuple[str, ...] = ("int32",)
    rounds: int = 15
    seconds: float = 1.2
    limit: float = 4e9
    memory: bool = True
    full: bool = False

    def cells(self) -> Iterator[Cell]:
        """What is measured, those that share a process together."""
        for threads, matrix, dtype, index, op in product(
            self.threads, self.matrices, self.dtypes, self.indices, self.ops
        ):
            for k in self.columns if OPS[op].dense else (NO_COLUMNS,):
                cell = Cell(threads, matrix, op, k, dtype, index)
                if OPS[op].applies(self.problem(cell)) and self._wanted(cell) and fits(cell):
                    yield cell

    def _wanted(self, cell: Cell) -> bool:
        if not self.full:
            return True
        usual = (cell.dtype, cell.index) == USUAL
        group = MATRICES[cell.matrix].group
        if group == "growth":
            return usual and cell.op in GROWING and cell.k in (NO_COLUMNS, 32)
        if group == "small":
            return usual and cell.op in CALLS and cell.k == 8
        if usual:
            return True
        one_of_them = "float32" == cell.dtype or "int32" == cell.index
        return one_of_them and cell.op in TARGETED and cell.k in TARGETED_COLUMNS

    def problem(self, cell: Cell) -> Problem:
        return Problem(cell.matrix, cell.k, cell.dtype, self.layout, cell.index)


def fits(cell: Cell) -> bool:
    """Whether the matrix and two dense operands have room in half of the memory that is free."""
    matrix = MATRICES[cell.matrix]
    size = {"bfloat16": 2, "float32": 4, "float64": 8}[cell.dtype]
    bytes_ = (size + 4) * matrix.entries + size * cell.k * sum(matrix.shape)
    return bytes_ < available_memory() / 2


def time_all(options: Options, names: list[str], progress: Progress) -> list[Result]:
    """Times every cell, one after the other; one process for each matrix and number of threads."""
    groups = groupby(options.cells(), key=lambda cell: cell[:2])
    return [
        result
        for _, cells in groups
        for result in _measured(options, list(cells), names, progress, "time")
    ]


def memory_cells(options: Options) -> list[Cell]:
    """Of the step, on one thread; nothing is to be seen in matrices of a few kilobytes."""
    if not options.memory or "step" not in options.ops:
        return []
    first = replace(options, ops=("step",), threads=(1,), dtypes=options.dtypes[:1])
    first = replace(first, indices=options.indices[:1])
    if not options.full:
        return list(first.cells())
    return [c for c in first.cells() if c.matrix in ALL_KINDS and c.k in TARGETED_COLUMNS]


def measure_all_memory(options: Options, names: list[str], progress: Progress) -> list[Result]:
    """Memory of the step, each contender in a process of its own."""
    cells = memory_cells(options)
    return list(_measured(options, cells, names, progress, "memory")) if cells else []


def measure_bandwidth(options: Options) -> dict[str, Any]:
    """Number of threads -> bytes a second."""
    cell = [{"what": "bandwidth"}]
    return {str(threads): next(_ask(options, threads, cell)) for threads in options.threads}


def _measured(
    options: Options, cells: list[Cell], names: list[str], progress: Progress, what: str
) -> Iterator[Result]:
    """The results of cells that share a process."""
    able = [[n for n in names if CONTENDERS[n].offers(cell.op, cell.dtype)] for cell in cells]
    if what == "memory":
        able = [[name for name in found if not CONTENDERS[name].limit] for found in able]
    requests = [
        {
            "op": cell.op,
            "problem": asdict(options.problem(cell)),
            "contenders": offering,
            "what": what,
        }
        for cell, offering in zip(cells, able, strict=True)
    ]
    answers = _ask(options, cells[0].threads, requests)
    for cell, offering, answer in zip(cells, able, answers, strict=True):
        lost = isinstance(answer, str)
        found = {name: {"error": answer} for name in offering} if lost else answer
        result = {**cell._asdict(), "layout": options.layout, "contenders": found}
        progress(result)
        yield result


def all_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ask(options: Options, threads: int, cells: list[dict[str, Any]]) -> Iterator[Any]:
    """The answers of a new process to these cells; from where it ends early, why it did."""
    count = str(threads)
    env = {**os.environ, **dict.fromkeys(_COUNTS, count)}
    env.setdefault("KMP_BLOCKTIME", "1")  # MKL's threads wait in a loop for 200 ms otherwise
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if cells[0]["what"] == "memory":
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
