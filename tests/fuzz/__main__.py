"""`python -m fuzz NUMBER --seed SEED`: runs random programs and prints those that fail."""

import argparse
import collections
import concurrent.futures
import os
import sys
import time
import warnings

import torch

from fuzz.compare import Failure, run_seed
from fuzz.shrink import reproducer, shrink
from fuzz.threads import run_threads

CHUNK = 250
THREADED = 250
"""Every number that this divides is also a larger program, for several threads."""
SPAN = 10**9
"""Programs that one seed can give."""

_SEEN = set()  # kinds of failure that this process has made small


def run_chunk(first, count):
    """What `failed` says of those programs, one after the other, that fail."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, about its own corner cases
    found = [failed(number) for number in range(first, first + count)]
    return [f for f in found if f is not None], count


def failed(number):
    """The kind of failure of a program, and the first of each kind in words; None if it passes."""
    try:
        if number % THREADED == 0:
            run_threads(number)
        run_seed(number)
    except Failure as failure:
        words = None
        if failure.key not in _SEEN:
            _SEEN.add(failure.key)
            words = report(number, failure)
        return failure.key, words
    except Exception as error:  # noqa: BLE001  a fault of the fuzzer itself
        return (type(error).__name__, "fuzz"), f"program {number}: {error!r}"
    return None


def report(number, failure):
    """A failure, and the small program that shows it."""
    small = failure if "threads" in failure.kind else shrink(failure)
    return f"program {number}\n{reproducer(small)}"


def main(arguments):
    """Runs programs in several processes; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("number", type=int, nargs="?", default=10_000, help="of programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    start, first = time.monotonic(), options.seed * SPAN
    chunks = [
        (n, min(CHUNK, first + options.number - n))
        for n in range(first, first + options.number, CHUNK)
    ]
    kinds, shown, done = collections.Counter(), set(), 0
    with concurrent.futures.ProcessPoolExecutor(options.workers) as pool:
        for found, count in pool.map(run_chunk, *zip(*chunks, strict=True)):
            done += count
            for key, words in found:
                kinds[key] += 1
                if words is not None and key not in shown:
                    shown.add(key)
                    print(f"\n{words}", flush=True)
    took = time.monotonic() - start
    print(f"\n{done} programs, {done / took:.0f} a second, {sum(kinds.values())} failed")
    for (kind, name), count in kinds.most_common():
        print(f"{count:8d}  {kind} of {name}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
