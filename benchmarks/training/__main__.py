"""Measures training epochs of the programs in `examples/` beside the same models elsewhere."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe, in_words
from benchmarks.measure import growth, interleave, paired, settle_allocator, spread
from benchmarks.plan import EXACT_MEMORY
from benchmarks.training.layers import LAYERS
from benchmarks.training.processes import PAIRS, Pair
from benchmarks.training.programs import OWN, PROGRAMS, Unavailable
from benchmarks.training.rates import RATES

EPOCHS = {**PROGRAMS, **PAIRS}
ALL: dict[str, dict[str, Any]] = {**EPOCHS, **LAYERS, **RATES}
_SAMPLE = {False: 0.003, True: 0.02}
"""Seconds of one sample; True for samplers on one thread, which draw one batch after another."""


def _times(program: str, rounds: int) -> dict[str, dict[str, Any]]:
    """For each contender the spread of seconds an epoch and of its ratio, or why it has none."""
    epochs, found = {}, {}
    for name, make in ALL[program].items():
        torch.manual_seed(0)
        try:
            epochs[name] = make()
            epochs[name]()
            found[name] = {"drawn": epochs[name]()}
        except Unavailable as error:
            found[name] = {"missing": str(error)}
            epochs.pop(name, None)
    alone = program in RATES and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter
    taken = interleave(epochs, rounds, seconds=12, sample=_SAMPLE[alone], clock=clock)
    for name, seconds in taken.items():
        found[name] |= {"seconds": spread(seconds), "ratio": paired(seconds, taken[OWN])}
    return found


def _memory(program: str, contender: str) -> int | None:
    """Bytes by which an epoch raises the peak of a process of its own, or of its two."""
    command = [sys.executable, "-m", "benchmarks.training", "--memory", program, contender]
    command += ["--threads", str(torch.get_num_threads())]
    environment = {**os.environ, **EXACT_MEMORY}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def _grown(program: str, contender: str) -> None:
    """Prints the growth, in the process that `_memory` starts."""
    torch.manual_seed(0)
    epoch = ALL[program][contender]()
    epoch()
    found = epoch.growth() if isinstance(epoch, Pair) else growth(epoch, calls=1)
    print(json.dumps(found))


def _lines(program: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each contender."""
    lines = []
    for name, row in found.items():
        if "missing" in row:
            lines.append(f"{program:22s} {name:16s} {row['missing']}")
            continue
        ms = {key: 1e3 * value for key, value in row["seconds"].items()}
        held = "      ?" if row["memory"] is None else f"{row['memory'] / 1e6:7.1f}"
        ratio, drawn = row["ratio"], row["drawn"]
        rate = f"  {drawn / ms['median'] / 1e3:5.1f} million edges a second" if drawn else ""
        lines.append(
            f"{program:22s} {name:16s} {ms['median']:8.1f} ms ({ms['q1']:.1f} to {ms['q3']:.1f})"
            f"  {held} MB  {ratio['median']:6.2f} times ({ratio['q1']:.2f} to {ratio['q3']:.2f})"
            f"{rate}"
        )
    return lines


def main() -> None:
    """Measures, prints a line for each contender, and keeps all numbers in a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--program", nargs="+", choices=ALL, default=list(EPOCHS))
    parser.add_argument("--layers", action="store_true", help="layers on graphs, not programs")
    parser.add_argument("--rates", action="store_true", help="samplers of graphs, not programs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--memory", nargs=2, metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        _grown(*options.memory)
        return
    settle_allocator()
    print(in_words(describe()))
    print(f"{options.threads} threads; an epoch, the peak that it adds, and its time over spgrad's")
    results = {}
    for program in LAYERS if options.layers else RATES if options.rates else options.program:
        found = _times(program, options.rounds)
        for name, row in found.items():
            if "missing" not in row:
                row["memory"] = _memory(program, name)
        print("\n".join(_lines(program, found)), flush=True)
        results[program] = found
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "training.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
