"""Prints the changes that no test notices: ``python -m mutants --help``."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import queue
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from mutants.changes import Change, changes
from mutants.equivalent import is_equivalent
from mutants.reach import DATA, ROOT, Reach
from mutants.tree import Tree

# Rows of the support table and matrices of the zoo are the tests' own data, and nobody asserts what
# a picture looks like.
LEFT_OUT = ["kernels/triton/", "demo/", "plot/", "support/", "testing/zoo.py"]
if importlib.util.find_spec("pypardiso") is None:  # whose tests are then skipped
    LEFT_OUT.append("linalg/direct/pardiso.py")
SHARE = 0.95


class Outcome(NamedTuple):
    """A change, and the result of the worker for it."""

    change: Change
    found: dict[str, Any]


def all_changes() -> list[Change]:
    """Every change of the sources, in the order of the files."""
    found: list[Change] = []
    source = ROOT / "src" / "spgrad"
    for path in sorted(source.rglob("*.py")):
        if not str(path.relative_to(source)).startswith(tuple(LEFT_OUT)):
            found += changes(str(path.relative_to(ROOT)), path.read_bytes())
    return found


def diff(change: Change) -> str:
    """The change as a unified diff."""
    before = (ROOT / change.file).read_bytes()
    texts = [t.decode().splitlines(keepends=True) for t in (before, change.applied(before))]
    return "".join(difflib.unified_diff(*texts, change.file, change.file, n=1))


def tried(drawn: list[Change], reach: Reach, jobs: int, seconds: float) -> Iterator[Outcome]:
    """The outcome of each change as it comes."""
    waiting: queue.SimpleQueue[Change] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    chosen = {change: reach.tests(change) for change in drawn}
    for change in drawn:
        waiting.put(change)

    def work(job: int) -> None:
        tree = Tree(ROOT / "build" / "mutants" / str(job))
        try:
            while True:
                change = waiting.get_nowait()
                done.put(Outcome(change, _one(tree, change, chosen[change], seconds)))
        except queue.Empty:
            pass
        finally:
            tree.close()

    for job in range(jobs):
        threading.Thread(target=work, args=(job,), daemon=True).start()
    for _ in drawn:
        yield done.get()


def _one(tree: Tree, change: Change, tests: list[str], seconds: float) -> dict[str, Any]:
    if not tests:
        return {"failed": None, "why": "no test executes it", "passed": 0}
    source = (ROOT / change.file).read_bytes()
    return tree.run(change.file, change.applied(source), tests, seconds)


def unreliable(outcomes: list[Outcome]) -> set[str]:
    """Of the tests that noticed a change, those that also fail without one."""
    tests = {o.found["failed"] for o in outcomes} - {None, "?", "conftest.py"}
    tree = Tree(ROOT / "build" / "mutants" / "unchanged")
    found = set()
    try:
        while tests:
            file = "src/spgrad/__init__.py"
            answer = tree.run(file, (ROOT / file).read_bytes(), sorted(tests), 3600)
            if answer["failed"] is None:
                break
            found.add(answer["failed"])
            tests.discard(answer["failed"])
    finally:
        tree.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("-n", type=int, default=200, help="changes to draw (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at a time (2)")
    parser.add_argument("--seconds", type=float, default=120, help="of tests for each (120)")
    parser.add_argument("--only", default="", help="draw from files whose path holds this text")
    options = parser.parse_args()
    if not DATA.is_file():
        parser.exit(2, f"mutants: {DATA} is missing. Make it with `make coverage`.\n")
    found = [change for change in all_changes() if options.only in change.file]
    drawn = random.Random(options.seed).sample(found, min(options.n, len(found)))
    tried_ones = [change for change in drawn if not is_equivalent(change)]
    print(f"{len(drawn)} of {len(found)} changes, {len(drawn) - len(tried_ones)} equivalent")
    outcomes = []
    for outcome in tried(tried_ones, Reach(), options.jobs, options.seconds):
        outcomes.append(outcome)
        _print(outcome, len(outcomes), len(tried_ones))
    doubtful = unreliable(outcomes)
    killed = [o for o in outcomes if o.found["failed"] and o.found["failed"] not in doubtful]
    for test in sorted(doubtful):
        print(f"fails without a change too, and is not counted: {test}")
    share = len(killed) / max(len(outcomes), 1)
    print(f"noticed: {len(killed)} of {len(outcomes)}, {share:.1%}")
    return int(share < SHARE)


def _print(outcome: Outcome, number: int, of: int) -> None:
    change, found = outcome
    where = f"{number}/{of} {change.file}:{change.lines[0]} {change.function}"
    if found["failed"]:
        print(f"{where}: {found['failed']}", flush=True)
        return
    ran = f"{found['passed']} tests pass"
    print(f"{where}: NOT NOTICED ({found['why'] or ran})\n{diff(change)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
