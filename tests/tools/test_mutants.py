"""The mutation tests: which changes are made, and that the list of equivalent ones holds."""

import ast
import inspect
import subprocess
import sys

import coverage
import pytest

from mutants import __main__ as command
from mutants import reach
from mutants.changes import changes
from mutants.equivalent import EQUIVALENT
from mutants.reach import IN_PROCESSES

SOURCE = '''
"""Text."""

LIMIT = 4

def f(a, b, *, c=True):
    """Text with 1 and a < b."""
    if not a:
        raise ValueError(f"{b + 1} is wrong")
    x = a + b.contiguous()
    x = g(x, b) if a < b and c else (a - 1)
    g(x)
    for i in a:
        if i is None:
            continue
        x -= i[0]
    return x, -a

def g(a, b): return (
    a) * (
    b)
'''


def made():
    return changes("file.py", SOURCE.encode())


def becomes(function):
    return {(c.was, c.becomes) for c in made() if c.function == function}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("if not a:", "if not (not a):"),
        ("if not a:", "if False:"),
        ("if not a:", "if (a):"),
        ("x = a + b.contiguous()", "x = a - b.contiguous()"),
        ("x = a + b.contiguous()", "x = a + b"),
        ("x = g(x, b) if a < b and c else (a - 1)", "x = g(b, x) if a < b and c else (a - 1)"),
        ("x = g(x, b) if a < b and c else (a - 1)", "x = g(x, b) if a <= b and c else (a - 1)"),
        ("x = g(x, b) if a < b and c else (a - 1)", "x = g(x, b) if a >= b and c else (a - 1)"),
        ("x = g(x, b) if a < b and c else (a - 1)", "x = g(x, b) if a < b or c else (a - 1)"),
        ("x = g(x, b) if a < b and c else (a - 1)", "x = g(x, b) if a < b and c else (a + 1)"),
        ("x = g(x, b) if a < b and c else (a - 1)", "x = g(x, b) if a < b and c else (a - 2)"),
        ("x = g(x, b) if a < b and c else (a - 1)", "pass"),
        ("g(x)", "pass"),
        ("if i is None:", "if i is not None:"),
        ("continue", "pass"),
        ("x -= i[0]", "pass"),
        ("x -= i[0]", "x -= i[1]"),
        ("return x, -a", "return x, (a)"),
        ('raise ValueError(f"{b + 1} is wrong")', "pass"),
    ],
)
def test_changes_of_a_function(was, now):
    assert (was, now) in becomes("f")


def test_a_default_and_a_constant_are_changed():
    assert any("c=False" in now for _, now in becomes("f"))
    assert becomes("") == {("LIMIT = 4", "LIMIT = 5"), ("LIMIT = 4", "LIMIT = 3")}


def test_tests_of_a_default_are_those_that_call_the_function():
    (change,) = [c for c in made() if "c=False" in c.becomes]
    assert change.becomes == "def f(a, b, *, c=False):"
    first, last = change.lines
    lines = SOURCE.splitlines()[first - 1 : last]
    assert lines[0].startswith("def f")
    assert lines[-1] == "    if not a:"


def test_signatures_for_type_checkers_are_left_as_they_are():
    source = b"@overload\ndef f(a: int = 1) -> int: ...\n@cached\ndef f(a=2): return a\n"
    assert {c.becomes for c in changes("file.py", source)} == {
        "def f(a=3): return a", "def f(a=1): return a",
    }  # fmt: skip


def test_operands_in_brackets_keep_them():
    ((was, now),) = becomes("g")
    assert (was, now) == ("def g(a, b): return ( a) * ( b)"[13:], "return ( a) / ( b)")


def test_each_change_compiles_and_is_a_change():
    found = made()
    assert len(found) > 20
    for change in found:
        source = change.applied(SOURCE.encode())
        assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(SOURCE))
        assert "is wrong" in source.decode() or change.becomes == "pass"


def test_every_file_can_be_changed():
    found = command.all_changes()
    sources = {f: (command.ROOT / f).read_bytes() for f in {c.file for c in found}}
    assert len(sources) > 100
    assert not any("/demo/" in f or "/triton/" in f for f in sources)
    for change in found[::50]:
        compile(change.applied(sources[change.file]), change.file, "exec")
        text = command.diff(change)
        assert text.startswith(f"--- {change.file}\n+++ {change.file}\n@@ ")


def test_equivalent_changes_are_changes_still():
    known = {(c.file, c.function, c.was, c.becomes) for c in command.all_changes()}
    assert [entry for entry in EQUIVALENT if entry[:4] not in known] == []
    assert all(len(entry.why) > 20 for entry in EQUIVALENT)


def test_the_tests_of_a_refusal_near_a_change_come_first(tmp_path, monkeypatch):
    """Time may not suffice for the others, if most of the suite executes the line."""
    path = tmp_path / "src/spgrad/file.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    monkeypatch.setattr(reach, "ROOT", tmp_path)
    line = 1 + next(i for i, text in enumerate(SOURCE.splitlines()) if "if not a" in text)
    data = coverage.CoverageData(str(tmp_path / "data"))
    for i in range(100):
        data.set_context(f"tests/test_a.py::test_{i}|run")
        data.add_lines({str(path): [line, line + 1] if i == 70 else [line]})
    data.write()
    found = reach.Reach(tmp_path / "data", tmp_path)
    change = next(c for c in changes("src/spgrad/file.py", SOURCE.encode()) if line in c.lines)
    tests = found.tests(change)
    assert tests[0] == "tests/test_a.py::test_70"
    assert sorted(tests) == sorted(f"tests/test_a.py::test_{i}" for i in range(100))


def test_tests_that_start_processes_are_there():
    """Pytest collects all that are named, and so refuses none of the run."""
    named = [test for tests in IN_PROCESSES.values() for test in tests]
    options = ["-n0", "--collect-only", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *named],
        cwd=command.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert {name for name in named if "::" in name} <= {*run.stdout.splitlines()}


def test_workers_need_no_package_of_ours():
    """It runs where spgrad is changed, and must not import it before a fork."""
    from mutants import worker

    source = inspect.getsource(worker)
    assert "import spgrad" not in source
    assert "from mutants" not in source
