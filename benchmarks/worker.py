"""A child process that measures: a request as JSON on standard input, answers a line each.

Threads and memory are set for a process as a whole, so each number of threads, and each
measurement of memory, has a process of its own. `benchmarks.plan` starts this one.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.contender import Contender
from benchmarks.measure import growth, interleave, limit_memory, paired, spread
from benchmarks.peers import CONTENDERS, SPGRAD
from benchmarks.problems import OPS, Expected, Problem, WrongResultError

Answer = dict[str, Any]
Run = Callable[[], tuple[Any, ...]]

# What a library raises for what it can't do or hold; anything else is a mistake of ours.
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


def time_cell(op: str, problem: Problem, names: list[str], rounds: int, seconds: float) -> Answer:
    """Times the contenders whose results are right; says of the others why not."""
    expected = Expected.of(OPS[op], problem)
    tried = {name: _checked(CONTENDERS[name], op, problem, expected) for name in names}
    del expected
    runs = {name: found for name, found in tried.items() if not isinstance(found, str)}
    taken = interleave(runs, rounds, seconds) if runs else {}
    return {name: _figures(name, found, taken) for name, found in tried.items()}


def _checked(contender: Contender, op: str, problem: Problem, expected: Expected) -> Run | str:
    """What runs the operation, run once already, which is the warm-up too; or what is wrong."""
    try:
        run = contender.prepare(op, problem)
        expected.check(tuple(contender.read(result) for result in run()))
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
    """Growth of the process in the first calls with new inputs, and what it has to hold."""
    try:
        # Code, thread pools and buffers that a first call brings along are no part of the step.
        contender.prepare(op, replace(problem, matrix="tiny"))()
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
    limit_memory(request["limit"])
    for cell in request["cells"]:
        problem = Problem(**cell["problem"])
        op, names = cell["op"], cell["contenders"]
        if cell["memory"]:
            answer = measure_memory(op, problem, names)
        else:
            answer = time_cell(op, problem, names, request["rounds"], request["seconds"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
