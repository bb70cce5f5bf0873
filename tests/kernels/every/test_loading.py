"""Which compiled library is loaded, and what is said where none is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spgrad
from spgrad import kernels

ROOT = Path(__file__).parents[3]
AVX2 = {"avx2", "bmi2", "f16c", "fma"}
AVX512 = AVX2 | {"avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.fixture
def copied(tmp_path):
    """A folder with spgrad, but without a library, and with a module that imports it."""
    without = shutil.ignore_patterns("libspgrad_cpu.*", "__pycache__")
    shutil.copytree(Path(spgrad.__file__).parent, tmp_path / "spgrad", ignore=without)
    (tmp_path / "user.py").write_text("import torch\n\nimport spgrad.linalg\n")
    return tmp_path


def imported(folder: Path) -> str:
    """What the import of a copy, which ends with native kernels, writes to stderr."""
    code = "import user, spgrad; print(spgrad.kernels.backend(), spgrad.__file__)"
    path = os.pathsep.join((str(folder), str(Path(torch.__file__).parents[1])))
    env = {**os.environ, "PYTHONPATH": path, "SPGRAD_NO_EXT": ""}
    command = [sys.executable, "-S", "-c", code]  # without an editable install, which comes first
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["native", str(folder / "spgrad" / "__init__.py")]
    assert ran.stderr.startswith(f"{folder / 'user.py'}:3: UserWarning: spgrad: the compiled CPU")
    assert ran.stderr.count("Warning") == 1
    return ran.stderr


def test_where_the_library_is_missing_the_line_that_imports_spgrad_is_warned(copied):
    assert "kernels are not installed" in imported(copied)


def test_a_library_for_another_processor_is_not_loaded(copied):
    machine = copied / "spgrad" / "machine.py"
    (copied / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 bmi2 f16c fma\n")
    text = machine.read_text().replace("/proc/cpuinfo", str(copied / "cpuinfo"))
    machine.write_text(text)
    # loading this file would raise
    (copied / "spgrad" / "kernels" / "libspgrad_cpu.avx512.so").touch()
    said = imported(copied)
    assert "kernels (libspgrad_cpu.avx512.so) are for another processor" in said
    assert "make kernels" in said


@pytest.mark.parametrize(
    ("name", "flags", "runs"),
    [
        ("libspgrad_cpu.so", set(), True),
        ("libspgrad_cpu.dylib", set(), True),
        ("libspgrad_cpu.avx2.so", AVX2, True),
        ("libspgrad_cpu.avx2.so", AVX512 | {"sse2"}, True),
        ("libspgrad_cpu.avx2.so", AVX2 - {"bmi2"}, False),
        ("libspgrad_cpu.avx2.so", set(), False),
        ("libspgrad_cpu.avx512.so", AVX512, True),
        ("libspgrad_cpu.avx512.so", AVX512 - {"avx512bw"}, False),
        ("libspgrad_cpu.avx512.so", AVX2, False),
    ],
)
def test_the_name_of_a_library_says_what_it_needs(name, flags, runs):
    assert kernels.runs_here(Path("folder.avx512") / name, lambda: frozenset(flags)) is runs


def test_the_build_gives_libraries_the_names_that_the_loader_knows():
    given = re.findall(r"set\(NEEDED (\S+)\)", (ROOT / "CMakeLists.txt").read_text())
    assert set(given) == set(kernels._NEEDED)


@pytest.mark.skipif(not kernels.compiled(), reason="there is no library")
def test_the_library_has_code_for_the_widest_registers_of_this_processor():
    (library,) = kernels._LIBRARIES
    assert library.suffixes[0] in (".so", ".dylib") or library.suffixes[0] == next(
        (suffix for suffix in kernels._NEEDED if kernels.runs_here(Path(f"lib{suffix}.so"))), ".so"
    )
