"""A run of the benchmarks in pieces: what is kept, what is left out, what is refused."""

import json

import pytest

from benchmarks import __main__ as command
from benchmarks import machine, plan
from benchmarks.record import OtherRunError, Record, about
from spgrad.machine import caches

MACHINE = {
    "cpu": "a cpu", "cores": 2, "caches": [], "system": "Linux", "simd": "none", "python": "3",
    "spgrad": "0", "code": "abc", "compiled": True, "versions": {"torch": "2", "scipy": "1"},
    "load": 0.0, "date": "2030-01-01",
}  # fmt: skip
SETTINGS = {"contenders": ["spgrad"], "rounds": 3}
CELL = {
    "threads": 1, "matrix": "wing", "op": "spmm", "k": 4, "dtype": "float32", "index": "int32",
    "layout": "csr",
}  # fmt: skip
RESULT = {**CELL, "contenders": {"spgrad": {"error": "none"}}}
ABOUT = about(MACHINE, SETTINGS)


def test_a_record_finds_what_was_measured(tmp_path):
    path = tmp_path / "cells.jsonl"
    first = Record.resume(path, ABOUT)  # nothing is there
    assert first.find("time", CELL) is None
    first.add("time", RESULT)
    again = Record.resume(path, ABOUT)
    assert again.find("time", CELL) == first.find("time", CELL) == RESULT
    assert again.find("memory", CELL) is None
    assert again.find("time", {**CELL, "k": 8}) is None


def test_a_line_that_was_not_finished_is_measured_again(tmp_path):
    path = tmp_path / "cells.jsonl"
    Record.begin(path, ABOUT).add("time", RESULT)
    with path.open("a") as file:
        file.write(json.dumps({"what": "time", "result": {**RESULT, "k": 8}})[:-9])
    again = Record.resume(path, ABOUT)
    assert again.find("time", CELL) == RESULT
    assert again.find("time", {**CELL, "k": 8}) is None
    again.add("time", {**RESULT, "k": 8})
    assert Record.resume(path, ABOUT).find("time", {**CELL, "k": 8}) is not None


def test_to_begin_anew_keeps_the_old_file(tmp_path):
    path = tmp_path / "cells.jsonl"
    Record.begin(path, ABOUT).add("time", RESULT)
    assert Record.begin(path, ABOUT).find("time", CELL) is None
    assert len((tmp_path / "old-cells.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"cpu": "another"}, "cpu: a cpu there, another here"),
        ({"spgrad": "1"}, "spgrad: 0 there, 1 here"),
        ({"code": "abd"}, "code: abc there, abd here"),
        ({"versions": {"torch": "3", "scipy": "1"}}, "torch: 2 there, 3 here"),
        ({"versions": {"torch": "2"}}, "scipy: 1 there, None here"),
        ({"caches": [{"name": "L2", "bytes": 1}]}, "caches"),
    ],
)
def test_another_machine_or_version_is_refused(changed, told, tmp_path):
    path = tmp_path / "cells.jsonl"
    Record.begin(path, ABOUT).add("time", RESULT)
    with pytest.raises(OtherRunError, match=told):
        Record.resume(path, about({**MACHINE, **changed}, SETTINGS))
    with pytest.raises(OtherRunError, match="rounds: 3 there, 5 here"):
        Record.resume(path, about(MACHINE, {**SETTINGS, "rounds": 5}))
    Record.resume(path, about({**MACHINE, "load": 9.0, "date": "2031"}, SETTINGS))


@pytest.mark.parametrize("text", ["", "[1]\n", "not JSON\n", "{}\n{}\n"])
def test_a_file_of_something_else_is_refused(text, tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text(text)
    with pytest.raises(OtherRunError, match="no file of measured cells"):
        Record.resume(path, ABOUT)
    assert path.read_text() == text


def test_a_run_in_pieces(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "measure_bandwidth", lambda options: {})
    where = ["--matrix", "tiny", "--op", "spmm", "--k", "1", "2", "--threads", "1", "--quick"]
    how = ["--peer", "torch CSR", "--no-memory", "--out", str(tmp_path), "--minutes", "0"]
    for left in (1, 0):
        assert command.main([*where, *how, "--resume"]) == (3 if left else 0)
        shown = capsys.readouterr().err
        assert sum(line.startswith("[") for line in shown.splitlines()) == 1
        assert ("1 of 2 cells are measured. To go on: python -m benchmarks" in shown) is bool(left)
        run = json.loads((tmp_path / "results.json").read_text())
        assert [r["k"] for r in run["times"]] == [1, 2][: 2 - left]
        assert run["left"] == left
    with pytest.raises(SystemExit):
        command.main([*where, *how, "--resume", "--repeats", "4"])
    refused = capsys.readouterr().err
    assert "rounds: 3 there, 4 here" in refused
    assert refused.count("\n") == 1


def test_a_process_that_ends_loses_one_cell(monkeypatch, tmp_path):
    asked = []

    def ask(options, threads, requests):
        asked.append([request["problem"]["k"] for request in requests])
        if asked[1:]:
            yield from ({"spgrad": {}} for _ in requests)
        else:
            yield {"spgrad": {}}
            yield "the process ended with status -9"

    monkeypatch.setattr(plan, "_ask", ask)
    options = plan.Options(("spmm",), ("tiny",), (1, 2, 4, 8), (1,), memory=False)
    record, seen = Record.begin(tmp_path / "cells.jsonl", ABOUT), []
    assert plan.measure_all(options, ["spgrad"], record, lambda what, r: seen.append(r))
    assert asked == [[1, 2, 4, 8], [4, 8]]
    assert ["error" in r["contenders"]["spgrad"] for r in seen] == [False, True, False, False]


def test_caches(tmp_path):
    kinds = [
        ("1", "Data", "48K", "0,4"),
        ("1", "Instruction", "32K", "0"),
        ("3", "Unified", "2M", "0-3,8"),
    ]
    for i, texts in enumerate(kinds):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), texts, strict=True):
            (folder / name).write_text(text + "\n")
    found = {"cpu": "a cpu", "cores": 5, "caches": caches(tmp_path)}
    assert found["caches"] == [
        {"name": "L1d", "bytes": 48 * 2**10, "shared_by": 2},
        {"name": "L3", "bytes": 2 * 2**20, "shared_by": 5},
    ]
    assert (machine.cache(found, "L3"), machine.cache(found, "L2")) == (2**21, 0)
    assert machine.processor(found) == "a cpu, 5 cores, L1d 48 KB shared by 2, L3 2 MB shared by 5"
    assert caches(tmp_path / "none") == []
