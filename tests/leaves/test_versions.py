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


def test_a_library_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(versions.kernels, "_COMPILED", False)
    monkeypatch.delenv("SPGRAD_NO_EXT", raising=False)
    assert lines()["kernels"].endswith("; the compiled library is not installed")


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
