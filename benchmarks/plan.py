"""Which cells are measured, and the child processes that measure them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.matrices import ALL_KINDS, MATRICES, SOLVES
from benchmarks.measure import available_memory
from benchmarks.operations import OPS
from benchmarks.peers import CONTENDERS
from benchmarks.problems import Problem
from benchmarks.record import Record
from benchmarks.summary import ALONE

ROOT = Path(__file__).parents[1]
# Every array comes from the system and goes back to it, so that the peak is exact (glibc).
EXACT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
# What libraries read the number of threads from.
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC", "PJRT_NPROC")
NO_COLUMNS = 1  # what k is where the operation has no dense operand

Result = dict[str, Any]
Progress = Callable[[str, Result], None]
Task = tuple[str, "Cell"]  # "time" or "memory", and of what

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The values of k that A x and its step are compared at on every matrix."""
FULL_COLUMNS = (1, 8, 32, 128, 512)
PRODUCTS = ("spmm", "step")
FLOATS = (("float32", "int32"), ("float64", "int32"))
SYSTEMS = (1, 32)
"""The numbers of right-hand sides of a triangular system."""

# Of --full: what grows and what is small, and how far numbers and indices of other types go.
GROWING = ("spmm", "step", "sddmm", "spgemm", "coalesce", "transpose", "softmax", "sum_rows", "sin")
CALLS = ("spmm", "step")
MEASURED = ("step", "cg_50_step")
"""Those whose memory is measured."""
TARGETED = ("spmm", "step", "sddmm", "spgemm", "softmax", "sum_rows", "coalesce", "transpose")
TARGETED_COLUMNS = (NO_COLUMNS, 32, 128)
USUAL = ("float32", "int32")


class Cell(NamedTuple):
    """What is measured of each contender at a time."""

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
        full: Whether to leave out the combinations that --full does not measure.
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
        """The cells, in groups that share a process."""
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
        if OPS[cell.op].assume:
            return (cell.dtype, cell.index) in FLOATS and cell.k in (NO_COLUMNS, *SYSTEMS)
        if MATRICES[cell.matrix].group == "solves":
            return False
        usual = (cell.dtype, cell.index) == USUAL
        group = MATRICES[cell.matrix].group
        if group == "blocked":
            types = (cell.dtype, cell.index) in FLOATS
            return OPS[cell.op].blocked and types and cell.k in TARGETED_COLUMNS
        if group == "growth":
            return usual and cell.op in GROWING and cell.k in (NO_COLUMNS, 32)
        if group == "small":
            return usual and cell.op in CALLS and cell.k == 8
        if cell.op in PRODUCTS and (cell.dtype, cell.index) in FLOATS and cell.k in WIDTHS:
            return True
        if cell.k not in FULL_COLUMNS:
            return False
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


def tasks(options: Options) -> list[Task]:
    """Times first, then memory."""
    timed: list[Task] = [("time", cell) for cell in options.cells()]
    return [*timed, *(("memory", cell) for cell in memory_cells(options))]


def measure_all(
    options: Options,
    names: list[str],
    record: Record,
    progress: Progress,
    deadline: float = float("inf"),
) -> bool:
    """Measures the cells that the record lacks, each matrix in a process of its own.

    Args:
        options: What is measured.
        names: The contenders.
        record: Where each cell goes as soon as it is measured.
        progress: Is told of each.
        deadline: When to stop, in seconds of `time.monotonic`; the cell at hand is finished.

    Returns:
        Whether all were measured.
    """
    missing = [task for task in tasks(options) if not known(options, record, task)]
    left = len(missing)
    for (what, *_), group in groupby(missing, key=lambda task: (task[0], *task[1][:2])):
        cells = [cell for _, cell in group]
        with closing(_measured(options, cells, names, what)) as results:
            for result in results:
                record.add(what, result)
                progress(what, result)
                left -= 1
                if left and time.monotonic() > deadline:
                    return False
    return True


def known(options: Options, record: Record, task: Task) -> Result | None:
    """The result of a task that has been measured."""
    what, cell = task
    return record.find(what, {**cell._asdict(), "layout": options.layout})


def memory_cells(options: Options) -> list[Cell]:
    """Cells of steps, on one thread, without matrices of a few kilobytes."""
    if not options.memory:
        return []
    one = replace(options, threads=(1,), indices=options.indices[:1])
    found: list[Cell] = []
    for op in MEASURED:
        possible = [t for t in options.dtypes if t in OPS[op].dtypes or not OPS[op].dtypes]
        if op in options.ops:
            found += replace(one, ops=(op,), dtypes=tuple(possible[:1])).cells()
    if not options.full:
        return found
    kinds = *ALL_KINDS, *SOLVES
    return [c for c in found if c.matrix in kinds and c.k in TARGETED_COLUMNS]


def measure_bandwidth(options: Options) -> dict[str, Any]:
    """Number of threads -> bytes a second."""
    cell = [{"what": "bandwidth"}]
    return {str(threads): next(_ask(options, threads, cell)) for threads in options.threads}


def _measured(
    options: Options, cells: list[Cell], names: list[str], what: str
) -> Generator[Result]:
    """The results of cells that share a process; if it ends early, the next one goes on."""
    requests = [_request(options, cell, names, what) for cell in cells]
    given = 0
    while given < len(cells):
        with closing(_ask(options, cells[0].threads, requests[given:])) as answers:
            for answer in answers:
                offering = requests[given]["contenders"]
                lost = isinstance(answer, str)
                found = {name: {"error": answer} for name in offering} if lost else answer
                yield {**cells[given]._asdict(), "layout": options.layout, "contenders": found}
                given += 1


def _request(options: Options, cell: Cell, names: list[str], what: str) -> dict[str, Any]:
    able = [name for name in names if CONTENDERS[name].offers(cell.op, cell.dtype)]
    if what == "memory":
        able = [name for name in able if not CONTENDERS[name].limit or name == ALONE]
    problem = asdict(options.problem(cell))
    return {"op": cell.op, "problem": problem, "contenders": able, "what": what}


def all_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ask(options: Options, threads: int, cells: list[dict[str, Any]]) -> Generator[Any]:
    """The results of a new process for these cells; if it ends at one, the reason is the last."""
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
        try:
            for line in process.stdout:
                yield json.loads(line)
                given += 1
            status = process.wait()
        finally:
            process.kill()  # where nobody wants the other answers
    if given < len(cells):
        yield f"the process ended with status {status}"
