"""A child process that measures: a request as JSON on standard input, answers a line each.

Threads and memory are set for a whole process. So each number of threads, and each measurement of
memory, has its own process. `benchmarks.plan` starts this one.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.contender import Contender
from benchmarks.expected import Expected, WrongResultError
from benchmarks.limits import bandwidth
from benchmarks.measure import growth, interleave, limit_memory, paired, settle_allocator, spread
from benchmarks.operations import OPS
from benchmarks.peers import CONTENDERS, SPGRAD
from benchmarks.problems import Problem

Answer = dict[str, Any]
Run = Callable[[], tuple[Any, ...]]

_PAUSE = 0.002  # seconds
# What a library raises if it lacks an operation or memory; any other error is a bug here.
_REFUSALS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    MemoryError,
    AttributeError,
    ImportError,
    OSError,
    WrongResultError,
)


def time_cell(
    op: str,
    problem: Problem,
    names: list[str],
    rounds: int,
    seconds: float,
    limit: float = math.inf,
) -> Answer:
    """Times the contenders whose results are right; says of the others why not.

    All of them in turns; or each peer with spgrad, if together they would not fit.
    """
    try:
        expected = Expected.of(OPS[op], problem)
    except MemoryError as error:
        return {name: {"error": _in_one_line(error)} for name in names}
    if len(names) * 2 * problem.needed < limit:
        groups = [names]
    else:
        groups = [[name] for name in names if name != SPGRAD.name]
    own: list[float] = []
    answer: Answer = {}
    kept: dict[str, Run | str] = {}
    if SPGRAD.name in names:
        kept[SPGRAD.name] = _checked(SPGRAD, op, problem, expected)
    for group in groups:
        others = {n: _checked(CONTENDERS[n], op, problem, expected) for n in group if n not in kept}
        tried = {**kept, **others}
        runs = {name: found for name, found in tried.items() if not isinstance(found, str)}
        pause = _PAUSE if torch.get_num_threads() > 1 else 0
        taken = interleave(runs, rounds, seconds, pause=pause) if runs else {}
        answer |= {name: _figures(name, found, taken) for name, found in tried.items()}
        own += taken.get(SPGRAD.name, [])
    if own:
        answer[SPGRAD.name] = {"seconds": spread(own)}
    return {name: answer[name] for name in names}


def _checked(contender: Contender, op: str, problem: Problem, expected: Expected) -> Run | str:
    """A function that runs the operation, after one run as warm-up and check; or the error."""
    try:
        run = contender.prepare(op, problem)
        found = run()  # of a limit no result, but one that it has looked at
        if not contender.limit:
            expected.check(tuple(contender.read(result) for result in found))
    except _REFUSALS as error:
        return _in_one_line(error)
    return run


def _figures(name: str, found: Run | str, taken: dict[str, list[float]]) -> Answer:
    if isinstance(found, str):
        return {"error": found}
    figures: Answer = {"seconds": spread(taken[name])}
    if name != SPGRAD.name and SPGRAD.name in taken:
        figures["ratio"] = paired(taken[name], taken[SPGRAD.name])
    return figures


def measure_memory(op: str, problem: Problem, names: list[str]) -> Answer:
    """Measures each contender in a fork of this process, which has itself computed nothing."""
    _ = problem.needed  # makes the operands, for all forks
    return {name: _in_a_fork(partial(_memory, op, problem, CONTENDERS[name])) for name in names}


def _memory(op: str, problem: Problem, contender: Contender) -> Answer:
    """Growth of the process in the first calls with new inputs, and the bytes that it needs."""
    try:
        # Code, thread pools and buffers of a first call are no part of the step.
        contender.prepare(op, replace(problem, matrix=OPS[op].smallest))()
        grown = growth(contender.prepare(op, problem))
    except _REFUSALS as error:
        return {"error": _in_one_line(error)}
    if grown is None:
        return {"error": "unavailable on this system"}
    multiple = (problem.operands + grown) / problem.needed
    return {"growth": grown, "needed": problem.needed, "multiple": multiple}


def _in_a_fork(measure: Callable[[], Answer]) -> Answer:
    if not hasattr(os, "fork"):
        return {"error": "unavailable on this system"}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as answer:
            json.dump(measure(), answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"the process ended with status {status}"}


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "out of memory"
    return f"{type(error).__name__}: {text[:160]}"


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    request = json.load(sys.stdin)
    warnings.simplefilter("ignore", UserWarning)  # the process that asks has shown them
    torch.set_num_threads(request["threads"])
    settle_allocator()
    limit_memory(request["limit"])
    for cell in request["cells"]:
        answer = _answer(request, cell)
        try:
            print(json.dumps(answer), file=answers, flush=True)
        except BrokenPipeError:  # the process that asked is gone
            os._exit(1)


def _answer(request: dict[str, Any], cell: dict[str, Any]) -> Answer:
    if cell["what"] == "bandwidth":
        return bandwidth()
    problem = Problem(**cell["problem"])
    op, names = cell["op"], cell["contenders"]
    if cell["what"] == "memory":
        return measure_memory(op, problem, names)
    how = request["rounds"], request["seconds"], request["limit"]
    return time_cell(op, problem, names, *how)


if __name__ == "__main__":
    main()
