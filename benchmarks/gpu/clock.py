"""Measures time and memory on a device: the only code that depends on whether it is a GPU."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

Run = Callable[[], Any]

_LEAST_ROUNDS = 3
_CYCLES = 2e9
"""Of a second, at most."""
_COPIED = 1 << 29
"""Bytes of the array that is copied to see how fast memory is: ten times an L2."""


def has_device(device: str) -> bool:
    """Whether programs can run there."""
    return device == "cpu" or torch.cuda.is_available()


def in_words(device: str) -> str:
    """Its name, its memory and what runs on it."""
    if device == "cpu":
        return f"the CPU, torch {torch.__version__}"
    found = torch.cuda.get_device_properties(device)
    return (
        f"{found.name}, {found.multi_processor_count} multiprocessors, "
        f"{found.total_memory / 1e9:.0f} GB, L2 of {found.L2_cache_size / 1e6:.0f} MB; "
        f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    )


def wait(device: str) -> None:
    """Waits until the device has finished its work; raises the error of the device, if any."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def seconds(run: Run, repeats: int, device: str, ahead: float = 0.0) -> float:
    """Seconds of a call: the time between two events around so many calls, over their number.

    The device first does nothing for `ahead` seconds. If the host needs less for all calls, it has
    sent them when the first event is reached, and the time is that of the device alone.
    """
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - start) / repeats
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if ahead:
        torch.cuda._sleep(round(ahead * _CYCLES))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def in_turns(
    runs: Mapping[str, Run], rounds: int, device: str, most: float = 3.0, sample: float = 0.002,
    alone: bool = False,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds of a call of each run in turns: A B C, B C A, ...

    Three calls before the first round warm up. A run that has taken `most` seconds leaves after
    three rounds. A sample repeats a call until about `sample` seconds are over. With `alone` it is
    the time of the device alone: what the host does for a call is over before.
    """
    ahead = dict.fromkeys(runs, 0.0)
    fastest = {name: min(seconds(run, 1, device) for _ in range(3)) for name, run in runs.items()}
    repeats = {name: max(1, round(sample / max(least, 1e-6))) for name, least in fastest.items()}
    if alone:
        for name, run in runs.items():
            begin = time.perf_counter()
            seconds(run, repeats[name], device)
            ahead[name] = 1e-3 + 1.5 * (time.perf_counter() - begin)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in names:
                spent = sum(taken[name]) * repeats[name]
                if spent <= most or len(taken[name]) < _LEAST_ROUNDS:
                    taken[name].append(seconds(runs[name], repeats[name], device, ahead[name]))
            names.append(names.pop(0))
    finally:
        if collecting:
            gc.enable()
    return taken


def peak(run: Run, device: str) -> int | None:
    """Bytes that a call has at most, above what was there before it; None on CPUs."""
    if device == "cpu":
        return None
    gc.collect()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def room(device: str) -> float:
    """Bytes that new arrays may have."""
    if device == "cpu":
        return 4e8
    torch.cuda.empty_cache()
    return float(torch.cuda.mem_get_info(device)[0])


def copy_rate(device: str, size: int = _COPIED) -> float:
    """Bytes read and written in a second by a copy from memory of the device to the same memory."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    taken = in_turns({"copy": partial(target.copy_, source)}, 15, device, sample=0)
    return 2 * size / statistics.median(taken["copy"])
