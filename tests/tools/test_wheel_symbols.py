"""The kernels' library, linked for a wheel, asks older systems for nothing that they lack."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spgrad import kernels

ROOT = Path(__file__).resolve().parents[2]
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}  # of manylinux_2_28
VERSIONED = re.compile(r"\((GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\)\s+(\S+)")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def too_new(library):
    """The functions that the library needs in a version later than the wheel's tag promises."""
    return {
        name
        for of, version, name in VERSIONED.findall(output("objdump", "-T", str(library)))
        if tuple(map(int, version.split("."))) > NEWEST[of]
    }


@pytest.mark.skipif(not kernels.compiled(), reason="there is no library")
@pytest.mark.skipif(not all(map(shutil.which, ("g++", "nm", "objdump"))), reason="no binutils")
def test_what_is_too_new_for_a_wheel_is_replaced(tmp_path):
    compiled = tmp_path / "manylinux.o"
    source = ROOT / "packaging" / "manylinux.cpp"
    output("g++", "-std=c++20", "-fPIC", "-c", str(source), "-o", str(compiled))
    own = {line.split()[-1] for line in output("nm", "--defined-only", str(compiled)).splitlines()}
    wrapped = set(re.findall(r"LINKER:--wrap=(\w+)", (ROOT / "CMakeLists.txt").read_text()))
    assert {name.removeprefix("__wrap_") for name in own if name.startswith("__wrap_")} == wrapped
    (library,) = Path(kernels.__file__).parent.glob("libspgrad_cpu.*")
    needed = too_new(library)
    missing = needed - own - wrapped
    assert not missing, f"packaging/manylinux.cpp does not replace {', '.join(sorted(missing))}"
