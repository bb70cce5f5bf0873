"""One training step of A @ H in spgrad and in torch.sparse: time, and peak memory.

Every competitor lives in a process of its own, so that none finds the other's memory or caches.
The processes take turns, so that all meet the same load of the machine.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.demo.step import Competitor, Matrix, serve
from spgrad.kernels import compiled

ROUNDS, STEPS = 8, 3  # turns of each competitor, and steps that count in each
PATIENCE = 8.0  # seconds after which no other round begins

COMPETITORS = (
    Competitor("spgrad", "CSR", "A @ H"),
    Competitor("torch", "CSR", "sparse.mm(A, H)"),
    Competitor("torch", "CSR", "A @ H", dense=2),
    Competitor("torch", "COO", "sparse.mm(A, H)", dense=1),
    Competitor("torch", "COO", "A @ H", dense=2),
)


@dataclass(frozen=True)
class Result:
    """The measurements of one competitor.

    Attributes:
        competitor: The competitor.
        seconds: Median time of a step; None if it made no step.
        memory: Bytes by which a step raised the peak of its process.
        gradient: Number of values in the gradient of A.
        failure: Why there was no step.
    """

    competitor: Competitor
    seconds: float | None = None
    memory: int = 0
    gradient: int = 0
    failure: str = ""


def compare(A: SparseTensor, width: int, advance: Callable[[], None]) -> list[Result]:
    """Measures a step of every competitor: A @ H, the gradients of A and H, and the update.

    Args:
        A: CSR (m, k).
        width: Columns of H.
        advance: Called ROUNDS + 1 times.

    Returns:
        One result for each competitor, in their order.
    """
    crow, col, val = (p.numpy() for p in (A.crow_indices(), A.col_indices(), A.values().detach()))
    matrix = Matrix(crow, col, val, tuple(A.shape), width)
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(_process(c, matrix)) for c in COMPETITORS]
        said = [_hear(pipe) for pipe in pipes]
        advance()
        begun = time.monotonic()
        seconds: list[list[float]] = [[] for _ in pipes]
        for turn in range(ROUNDS):
            if turn == 0 or time.monotonic() - begun < PATIENCE:
                for pipe, report, times in zip(pipes, said, seconds, strict=True):
                    _take_turn(pipe, report, times)
            advance()
    return [
        Result(c, statistics.median(times) if times else None, **report)
        for c, times, report in zip(COMPETITORS, seconds, said, strict=True)
    ]


def _take_turn(pipe: Connection, report: dict[str, Any], times: list[float]) -> None:
    if "failure" in report:
        return
    answer = _hear(pipe, STEPS)
    times += answer.pop("times", [])
    report.update(answer)


def _hear(pipe: Connection, steps: int | None = None) -> dict[str, Any]:
    """The next report of a process; with `steps`, the process is first asked for these."""
    try:
        if steps is not None:
            pipe.send(steps)
        return pipe.recv()
    except (EOFError, OSError):
        return {"failure": "ended by the system"}  # probably for lack of memory


@contextlib.contextmanager
def _process(competitor: Competitor, matrix: Matrix) -> Iterator[Connection]:
    """A process that serves steps until the end of the context."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(
        target=serve, args=(there, competitor, matrix, torch.get_num_threads()), daemon=True
    )
    with _same_kernels():
        process.start()
    there.close()
    try:
        yield here
    finally:
        with contextlib.suppress(OSError):  # it may have ended
            here.send(0)
        here.close()
        process.join()


@contextlib.contextmanager
def _same_kernels() -> Iterator[None]:
    """Makes processes that start within use the kernels of this one, without their own warning."""
    before = os.environ.get("SPGRAD_NO_EXT")
    if not compiled():
        os.environ["SPGRAD_NO_EXT"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("SPGRAD_NO_EXT", None)
        else:
            os.environ["SPGRAD_NO_EXT"] = before
