"""A child process that measures: a request as JSON on standard input, answers a line each.

Threads and memory are set for a process as a whole, so each number of threads, and each
measurement of memory, has a process of its own. `benchmarks.plan` starts them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
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
    runs: dict[str, Run] = {}
    out: dict[str, Answer] = {}
    for name in names:
        contender = CONTENDERS[name]
        if not contender.offers(op):
            continue
        try:
            runs[name] = _checked(contender, op, problem, expected)
        except _REFUSALS as error:
            out[name] = {"error": _in_one_line(error)}
    del expected
    taken = interleave(runs, rounds, seconds) if runs else {}
    for name, samples in taken.items():
        out[name] = {"seconds": spread(samples)}
        if SPGRAD.name in taken and name != SPGRAD.name:
            out[name]["ratio"] = paired(samples, taken[SPGRAD.name])
    return out


def _checked(contender: Contender, op: str, problem: Problem, expected: Expected) -> Run:
    """What runs the operation, run once already; this is the warm-up too."""
    run = contender.prepare(op, problem)
    expected.check(tuple(contender.read(result) for result in run()))
    return run


def measure_memory(op: str, problem: Problem, contender: Contender) -> Answer:
    """Growth of the process in the first calls with new inputs, and what it has to hold."""
    # Code, thread pools and buffers that a first call brings along are no part of the step.
    contender.prepare(op, Problem("tiny", 8, problem.dtype, problem.layout, problem.index))()
    needed, operands = problem.needed, problem.operands
    run = contender.prepare(op, problem)
    problem.__dict__.clear()
    try:
        grown = growth(run)
    except _REFUSALS as error:
        return {"error": _in_one_line(error)}
    if grown is None:
        return {"error": "unavailable on this system"}
    return {
        "growth": grown,
        "operands": operands,
        "needed": needed,
        "multiple": (operands + grown) / needed,
    }


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "out of memory"
    return f"{type(error).__name__}: {text[:160]}"


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    request = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    limit_memory(request["limit"])
    for cell in request["cells"]:
        problem = Problem(**cell["problem"])
        op, names = cell["op"], cell["contenders"]
        if cell["memory"]:
            answer = {name: measure_memory(op, problem, CONTENDERS[name]) for name in names}
        else:
            answer = time_cell(op, problem, names, request["rounds"], request["seconds"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
