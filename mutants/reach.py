"""Which test executes which line, as `make coverage` records it in build/coverage."""

from __future__ import annotations

import difflib
import itertools
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import coverage

from mutants.changes import Change

ROOT = Path(__file__).parents[1]
DATA = ROOT / "build" / "coverage" / "data"
SOURCES = ROOT / "build" / "coverage" / "sources"

SLOW = (
    "tests/tools/test_benchmarks",
    "tests/leaves/test_demo",
    "tests/torch_protocol/compile",
    "tests/documented",
)
SHARDED = "tests/distributed/test_distributed.py"
IN_PROCESSES = {
    "src/spgrad/distributed/": [
        f"{SHARDED}::test_as_in_one_process[numbers-2]",
        f"{SHARDED}::test_as_in_one_process[solves and errors-2]",
        f"{SHARDED}::test_as_in_one_process[numbers-4]",
        f"{SHARDED}::test_as_in_one_process[solves and errors-4]",
        f"{SHARDED}::test_checkpoints_are_loaded_by_another_number_of_processes",
    ],
    "src/spgrad/torch_protocol/processes/": ["tests/torch_protocol/processes/test_collectives.py"],
    "src/spgrad/nn/sparsity/together": ["tests/nn/test_processes.py"],
    # a part of it is for `distributed` alone
    "src/spgrad/lowering/products/spmm": [f"{SHARDED}::test_as_in_one_process[numbers-2]"],
}
"""Tests that execute files in processes of their own, which name no test: by how paths begin."""
AT_IMPORT = 300  # tests of a change that is executed on import, when no test is running
NEAR = 10  # lines before and behind a change
SELDOM = 50  # a line is seldom executed if at most one in so many of the tests executes it
FIRST = 50  # tests that execute such a line near a change, and come before the others


class Reach:
    """Which test executes which line, for the current sources."""

    def __init__(self, data: Path = DATA, sources: Path = SOURCES) -> None:
        self._data = coverage.CoverageData(str(data))
        self._data.read()
        self._measured = {self._below_src(f): f for f in self._data.measured_files()}
        self._sources = sources
        self._of_file: dict[str, dict[int, list[str]]] = {}

    @staticmethod
    def _below_src(file: str) -> str:
        return file[file.rindex("src/spgrad/") :]

    def tests(self, change: Change) -> list[str]:
        """The tests that execute the changed lines, first one of each test function.

        Time does not suffice for all tests of a line that most of the suite executes. So some
        come before the others that also execute a line near it that few execute, as a refusal is.

        For a line that only an import executes: some of the tests that execute the file.
        """
        started = [
            test
            for folder, tests in IN_PROCESSES.items()
            if change.file.startswith(folder)
            for test in tests
        ]
        lines = self._lines(change.file)
        first, last = change.lines
        found = {t for line in range(first, last + 1) for t in lines.get(line, ())}
        if found:
            near = [set(lines.get(i, ())) & found for i in range(first - NEAR, last + NEAR + 1)]
            rare = sorted((some for some in near if len(some) * SELDOM <= len(found)), key=len)
            quick = [t for some in rare for t in sorted(some) if not t.startswith(SLOW)]
            order = [*dict.fromkeys(quick)][:FIRST] + _in_turns(found, change.file)
            return [*dict.fromkeys(order), *started]
        within = {t for tests in lines.values() for t in tests}
        return [*_in_turns(within, change.file)[:AT_IMPORT], *started]

    def _lines(self, file: str) -> dict[int, list[str]]:
        """Line as it is numbered now -> tests."""
        if file not in self._of_file:
            self._of_file[file] = self._read(file)
        return self._of_file[file]

    def _read(self, file: str) -> dict[int, list[str]]:
        if file not in self._measured:
            return {}
        by_line = self._data.contexts_by_lineno(self._measured[file])
        old = (self._sources / file).read_text().splitlines()
        new = (ROOT / file).read_text().splitlines()
        found: dict[int, list[str]] = {}
        for a, b, size in difflib.SequenceMatcher(
            None, old, new, autojunk=False
        ).get_matching_blocks():
            for i in range(size):
                tests = {c.rsplit("|", 1)[0] for c in by_line.get(a + i + 1, ()) if c}
                found[b + i + 1] = sorted(tests)
        return found


def keep_sources() -> None:
    """Keeps the sources that are measured."""
    shutil.rmtree(DATA.parent, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "spgrad", SOURCES / "src" / "spgrad")


def _in_turns(tests: set[str], file: str) -> list[str]:
    """The first case of each test function, then the second of each, and so on.

    Files of the family of `file` come first, those that start programs last.
    """
    functions = defaultdict(list)
    for test in sorted(tests):
        functions[test.split("[")[0]].append(test)
    stem = Path(file).stem
    of_file = Counter(test.split("::")[0] for test in tests)

    def rank(function: str) -> tuple[object, ...]:
        here = function.split("::", maxsplit=1)[0]
        return here.startswith(SLOW), stem not in here, -of_file[here], function

    order = sorted(functions, key=rank)
    rounds = itertools.zip_longest(*(functions[name] for name in order))
    return [test for turn in rounds for test in turn if test is not None]


if __name__ == "__main__":
    keep_sources()
