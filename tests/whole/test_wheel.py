"""The library uses neither Python nor torch's C++ interface, so one wheel is enough."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import util
from pathlib import Path

import pytest
import torch

from spgrad.torch_protocol.requirement import OLDEST

ROOT = Path(__file__).parents[2]
LIBRARIES = sorted((ROOT / "src" / "spgrad" / "kernels").glob("libspgrad_cpu.*"))

needs_library = pytest.mark.skipif(
    bool(os.environ.get("SPGRAD_NO_EXT")), reason="SPGRAD_NO_EXT: no library"
)


def symbols(library: Path, which: str) -> list[str]:
    """The demangled dynamic symbols, `which` of them: --undefined-only or --defined-only."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    run = subprocess.run(
        [nm, "-D", "--demangle", which, library], capture_output=True, text=True, check=True
    )
    # "     U name@VERSION" or "<address> T name"
    return [line[17:].partition(" ")[2] for line in run.stdout.splitlines()]


def foreign(names: list[str]) -> list[str]:
    return [n for n in names if "at::" in n or "c10::" in n or n.startswith(("Py", "_Py"))]


def test_foreign_symbols_are_recognised():
    names = ["at::Tensor::sum() const", "vtable for c10::Error", "PyList_New", "_PyObject_New"]
    assert foreign(names) == names
    assert foreign(["aoti_torch_get_sizes", "std::format(int)", "torch_parallel_for"]) == []


@needs_library
def test_there_is_one_library():
    assert len(LIBRARIES) == 1


@needs_library
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_the_library_uses_the_stable_interface_alone(library):
    undefined = symbols(library, "--undefined-only")
    assert any(name.startswith("aoti_torch_") for name in undefined)
    assert foreign(undefined) == []


def introduced(header: str) -> dict[str, tuple[int, ...]]:
    """Names in a header of torch's C interface that came with a version, and that version."""
    found: dict[str, tuple[int, ...]] = {}
    conditions: list[tuple[int, ...]] = []
    for line in header.splitlines():
        if directive := re.match(r"\s*#\s*(if|endif)", line):
            if directive[1] == "endif":
                conditions.pop()
            else:
                since = re.search(r"TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)_0", line)
                conditions.append((int(since[1]), int(since[2])) if since else ())
        else:
            for name in re.findall(r"\b(?:aoti_)?torch_\w+", line):
                found[name] = max(conditions, default=())
    return found


def test_versions_of_names_are_read():
    text = """
    #ifndef X
    int torch_a();
    # if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0
    int torch_b(
        int);
    # endif // TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0
    #if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_12_0
    aoti_torch_c
    #endif
    #endif"""
    assert introduced(text) == {"torch_a": (), "torch_b": (2, 10), "aoti_torch_c": (2, 12)}


@needs_library
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_the_oldest_torch_has_what_the_library_calls(library):
    """By the headers of the torch that is installed, which say since when there is a function."""
    headers = Path(torch.__file__).parent / "include" / "torch" / "csrc"
    since: dict[str, tuple[int, ...]] = {}
    for folder in ("stable/c", "inductor/aoti_torch/c", "inductor/aoti_torch/generated"):
        for path in sorted((headers / folder).glob("*.h")):
            since |= introduced(path.read_text())
    called = [name for name in symbols(library, "--undefined-only") if "torch_" in name]
    assert called
    assert not {name: since.get(name) for name in called if since.get(name, (99,)) > OLDEST}
    assert max(since[name] for name in called) == OLDEST, "an older torch would do"


@needs_library
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_the_library_exports_nothing(library):
    assert symbols(library, "--defined-only") == []


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory) -> Path:
    """A wheel without the library: two seconds, and the same files and metadata otherwise."""
    if util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed")
    out = tmp_path_factory.mktemp("wheel")
    build = "import sys; from scikit_build_core import build; build.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, out],
        cwd=ROOT,
        env={**os.environ, "SPGRAD_NO_EXT": "1"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def test_the_pure_wheel_fits_every_platform(pure_wheel):
    assert pure_wheel.name.endswith("-py3-none-any.whl")


def test_the_wheel_carries_the_package_alone(pure_wheel):
    names = zipfile.ZipFile(pure_wheel).namelist()
    package = ROOT / "src" / "spgrad"
    carried = {"spgrad/py.typed", "spgrad/ops/__init__.pyi", "spgrad/demo/cora/cora.npz"}
    files = [*package.rglob("*.py*"), *(package / "demo" / "cora").iterdir()]
    carried |= {f"spgrad/{p.relative_to(package).as_posix()}" for p in files if p.is_file()}
    assert {name for name in carried if "__pycache__" not in name} <= set(names)
    assert not [n for n in names if "__pycache__" in n]
    assert not [n for n in names if n.endswith((".cpp", ".h", ".so", ".dylib"))]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"spgrad"}


def test_the_compiled_wheel_fits_every_python():
    """By scikit-build-core's own reading of the configuration, which compiling would not change."""
    if util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed")
    from scikit_build_core.builder.wheel_tag import WheelTag
    from scikit_build_core.settings.skbuild_read_settings import SettingsReader

    settings = SettingsReader.from_file(ROOT / "pyproject.toml", state="wheel", env={}).settings
    assert settings.wheel.cmake
    tag = WheelTag.compute_best([], settings.wheel.py_api, root_is_purelib=False)
    assert str(tag).startswith("py3-none-")
    assert not str(tag).endswith("-any")
