"""Measures time and memory."""

from __future__ import annotations

import ctypes
import gc
import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import spgrad

Samples = Mapping[str, list[float]]

_LEAST_ROUNDS = 3
_LONG = 5.0  # seconds of a call that is timed only once


def interleave(
    runs: Mapping[str, Callable[[], Any]],
    rounds: int,
    seconds: float,
    sample: float = 0.003,
    pause: float = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds a call of each run, taken in turns: A B C, B C A, C A B, A B C ...

    Because they take turns, other load affects all alike, and two runs can be compared round by
    round. A run that has used up its `seconds` leaves after three rounds or more, or after one if
    a call takes more than five seconds. One sample repeats a call until `sample` seconds are over.
    In the `pause` before a sample, waiting threads of the run before go to sleep; then one call
    wakes the threads of this run. `time.thread_time` as the `clock` counts the time of one thread
    without that of other processes on its core.
    """
    repeats = {name: _repeats(run, sample, clock) for name, run in runs.items()}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    spent = dict.fromkeys(runs, 0.0)
    names = list(runs)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in names:
                least = 1 if taken[name] and taken[name][0] > _LONG else _LEAST_ROUNDS
                if spent[name] > seconds and len(taken[name]) >= least:
                    continue
                if pause:
                    time.sleep(pause)
                    runs[name]()  # wakes its own
                elapsed = _time(runs[name], repeats[name], clock)
                taken[name].append(elapsed / repeats[name])
                spent[name] += elapsed
            names.append(names.pop(0))
    finally:
        if collecting:
            gc.enable()
    return taken


def _repeats(run: Callable[[], Any], sample: float, clock: Callable[[], float]) -> int:
    """How many calls take about `sample` seconds; the least of three, as first ones are slow."""
    fastest = _time(run, 1, clock)
    for _ in range(2):
        if fastest < sample:
            fastest = min(fastest, _time(run, 1, clock))
    return max(1, round(sample / max(fastest, 1e-7)))


def _time(run: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return clock() - start


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles, smallest, and how many there are."""
    low, median, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {"median": median, "q1": low, "q3": high, "min": min(values), "n": len(values)}


def paired(peer: list[float], own: list[float]) -> dict[str, float]:
    """Spread of peer / own, round by round: above 1 the peer is slower."""
    return spread([a / b for a, b in zip(peer, own, strict=False)])


def settle_allocator() -> None:
    """Brings glibc's malloc into the state of a process that has run for a while.

    It gives memory back above a threshold that grows with the largest array freed, up to 32 MB.
    Until then, whether a call's results fault in page by page is up to what the calls before it
    freed, which can double a small call's time.
    """
    bytearray(31 << 20)


def limit_memory(extra: float) -> None:
    """Lets this process take `extra` bytes more than it has, so that an allocation can fail."""
    held = _status("VmData")
    if held is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (held + int(extra), hard))


def growth(run: Callable[[], Any], calls: int = 2) -> int | None:
    """Bytes by which the resident memory grows at most above what it was before `calls` calls.

    None where the system can't tell; Linux can. What the process has freed is given back first,
    so the calls have to ask for it anew.
    """
    gc.collect()
    spgrad.empty_cache()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again at VmRSS
    except (AttributeError, OSError):
        return None
    before = _status("VmRSS")
    for _ in range(calls):
        run()
    peak = _status("VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def available_memory() -> float:
    """Bytes that new arrays may have; infinite where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * int(found[0]) if found else math.inf


def _status(field: str) -> int | None:
    """A field of /proc/self/status in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(found[0]) if found else None
