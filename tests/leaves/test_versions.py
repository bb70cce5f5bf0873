"""The report of versions: the machine and the installed packages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spgrad
from spgrad import cli, machine, versions

ROOT = Path(__file__).parents[2]
PYPROJECT = ROOT / "pyproject.toml"


def lines() -> dict[str, str]:
    """What each line that has a name says."""
    found = (line.partition("  ") for line in versions.report().splitlines() if line[0] != " ")
    return {name: said.strip() for name, _, said in found}


def test_every_line_is_there(capsys):
    spgrad.show_versions()
    shown = capsys.readouterr().out
    assert cli.main(["versions"]) == 0
    assert capsys.readouterr().out == shown
    said = lines()
    assert said["spgrad"] == spgrad.__version__
    assert said["torch"].startswith(torch.__version__)
    assert said["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert said["processor"]
    assert said["threads"].startswith(str(torch.get_num_threads()))
    assert f"numpy {versions._version('numpy')}" in said["packages"]
    assert versions._version("no-such-package") == ""


def test_packages_that_are_absent_are_named(monkeypatch):
    monkeypatch.setattr(versions, "OPTIONAL", ("no-such-package",))
    assert lines()["packages"] == "none of the optional ones"
    assert versions.report().endswith("not installed: no-such-package")


def test_the_version_is_one():
    assert f'\nversion = "{spgrad.__version__}"\n' in PYPROJECT.read_text()
    assert f"\nversion: {spgrad.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{spgrad.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


def test_nobody_is_named():
    report = versions.report()
    assert str(Path.home()) not in report.replace("\n", " ").split()
    assert str(Path(spgrad.__file__).parent) not in report


@pytest.mark.parametrize(
    ("variables", "kernels"),
    [
        ({"SPGRAD_NO_EXT": "1"}, "native: .*; SPGRAD_NO_EXT is set"),
        ({"SPGRAD_NO_EXT": "1", "SPGRAD_NO_NATIVE": "1"}, "references; SPGRAD_NO_EXT is set"),
    ],
)
def test_what_leaves_the_library_out_is_said(variables, kernels):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPGRAD_")}
    run = subprocess.run(
        [sys.executable, "-m", "spgrad", "versions"],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert re.search(rf"^kernels +{kernels}$", run.stdout, re.MULTILINE)
    assert all(f"{name}={value}" in run.stdout for name, value in variables.items())


def test_why_there_is_no_library_is_said(monkeypatch):
    monkeypatch.setattr(versions.kernels, "_COMPILED", False)
    monkeypatch.setattr(versions.kernels, "_LIBRARIES", [])
    monkeypatch.delenv("SPGRAD_NO_EXT", raising=False)
    assert lines()["kernels"].endswith("; the compiled CPU kernels are not installed")
    monkeypatch.setattr(versions.kernels, "_LIBRARIES", [Path("libspgrad_cpu.avx2.so")])
    assert lines()["kernels"].endswith("kernels (libspgrad_cpu.avx2.so) are for another processor")


def test_the_packages_are_those_of_the_extras():
    text = PYPROJECT.read_text()
    extras = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    named: set[str] = set()
    for extra, packages in re.findall(r"^(\w+) = \[(.*?)\]", extras, re.MULTILINE | re.DOTALL):
        if extra not in ("test", "bench"):
            named |= set(re.findall(r"\"([\w.-]+)", packages))
    assert named == set(versions.OPTIONAL)


def test_the_processor(tmp_path):
    intel = tmp_path / "intel"
    intel.write_text("processor : 0\nmodel name : A CPU @ 2 GHz\nflags\t\t: fpu avx2 fma\n")
    assert machine.processor_name(intel) == "A CPU @ 2 GHz"
    assert machine.processor_flags(intel) == {"fpu", "avx2", "fma"}
    arm = tmp_path / "arm"
    arm.write_text("processor : 0\nFeatures : fp asimd\n")
    assert machine.processor_flags(arm) == {"fp", "asimd"}
    assert machine.processor_name(arm)  # what Python knows
    assert machine.processor_flags(tmp_path / "none") == frozenset()


def cache(folder, number, **said):
    (folder / f"index{number}").mkdir()
    for name, text in said.items():
        (folder / f"index{number}" / name).write_text(f"{text}\n")


def test_caches_are_read_and_named(tmp_path):
    cache(tmp_path, 0, type="Data", level=1, size="48K", shared_cpu_list="0")
    cache(tmp_path, 1, type="Instruction", level=1, size="32K", shared_cpu_list="0")
    cache(tmp_path, 2, type="Unified", level=2, size="1024K", shared_cpu_list="0-1,8")
    cache(tmp_path, 3, type="Unified", level=3, size="36M", shared_cpu_list="0-7")
    cache(tmp_path, 4, type="Unified", level=4, size="1G", shared_cpu_list="0,2")
    cache(tmp_path, 5, type="Unified", level=5, size="512", shared_cpu_list="3-3")
    cache(tmp_path, 6, type="Unified", level=6)  # as some virtual machines list one
    cache(tmp_path, 7, type="Unified", level=7, size="1023K", shared_cpu_list="0-3")
    found = machine.caches(tmp_path)
    assert found == [
        {"name": "L1d", "bytes": 48 * 2**10, "shared_by": 1},
        {"name": "L2", "bytes": 2**20, "shared_by": 3},
        {"name": "L3", "bytes": 36 * 2**20, "shared_by": 8},
        {"name": "L4", "bytes": 2**30, "shared_by": 2},
        {"name": "L5", "bytes": 512, "shared_by": 1},
        {"name": "L7", "bytes": 1023 * 2**10, "shared_by": 4},
    ]
    assert machine.caches_in_words(found) == (
        "L1d 48 KB of each, L2 1 MB shared by 3, L3 36 MB shared by 8, L4 1024 MB shared by 2, "
        "L5 0.5 KB of each, L7 1023 KB shared by 4"
    )
    assert machine.caches(tmp_path / "none") == []
    assert machine.caches_in_words([]) == ""


def test_threads_and_caches_of_this_machine(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4} if pid == 0 else {})
    monkeypatch.setattr(versions, "caches", list)
    said = lines()
    assert said["threads"].endswith(", where 3 of 7 cores may be used")
    assert " KB of each" not in versions.report()
    monkeypatch.delattr(os, "sched_getaffinity")
    known = {"name": "L2", "bytes": 1536, "shared_by": 1}
    monkeypatch.setattr(versions, "caches", lambda: [known])
    for name in versions.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    said = lines()
    assert said["threads"].endswith(", where 7 of 7 cores may be used")
    assert "  L2 1.5 KB of each\n" in versions.report()
    assert said["variables"] == "none is set"
    monkeypatch.setenv(versions.VARIABLES[0], "1")
    assert lines()["variables"] == f"{versions.VARIABLES[0]}=1"
