"""Checks the contenders of a cell, and times those that are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.expected import Expected, WrongResultError
from benchmarks.gpu import clock
from benchmarks.gpu.cases import Case, Cell
from benchmarks.gpu.contenders import OWN, UnfitError, contenders, entries
from benchmarks.measure import paired, spread

Found = dict[str, Any]


class DeviceBrokenError(Exception):
    """A contender broke the device: no call works any more in this process."""


def _in_one_line(error: BaseException) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first[:160]


def _check(found: tuple[Any, ...], expected: Expected) -> None:
    expected.check(tuple(entries(t).detach().double().cpu().numpy() for t in found))


def _tried(
    name: str, make: Callable[[Case], Any], case: Case, expected: Expected
) -> Callable[[], Any] | Found:
    """A function that runs the contender, after one right result; or what is wrong with it."""
    try:
        run = make(case)
        _check(run(), expected)
    except UnfitError as error:
        return {"absent": str(error)}
    except WrongResultError as error:
        return {"wrong": str(error)}
    except Exception as error:  # noqa: BLE001  # compilers raise classes of their own
        try:
            clock.wait(case.device)
        except RuntimeError as broken:
            raise DeviceBrokenError(f"{name}: {_in_one_line(broken)}") from error
        return {"absent": f"{type(error).__name__}: {_in_one_line(error)}"}
    return run


def measure(cell: Cell, device: str, rounds: int) -> Found:
    """{contender: its figures, or why it has none}, and the bytes that have to move."""
    case = Case(cell, device)
    expected = case.expected()
    found: Found = {}
    runs: dict[str, Callable[[], Any]] = {}
    for name, make in contenders(cell.kernel).items():
        answer = _tried(name, make, case, expected)
        if isinstance(answer, dict):
            found[name] = answer
        else:
            runs[name], found[name] = answer, {}
    taken = clock.in_turns(runs, rounds, device) if runs else {}
    alone = clock.in_turns(runs, rounds, device, alone=True) if runs else {}
    for name, samples in taken.items():
        found[name] |= {"seconds": spread(samples), "peak": clock.peak(runs[name], device)}
        found[name]["device"] = spread(alone[name])
        if name != OWN and OWN in taken:
            found[name]["ratio"] = paired(samples, taken[OWN])
            found[name]["device ratio"] = paired(alone[name], alone[OWN])
    moved = case.kernel.moved(case.sizes)
    if device != "cpu":
        del runs, case
        torch.cuda.empty_cache()
    return {**cell._asdict(), "found": found, "far": moved.far, "near": moved.near}
