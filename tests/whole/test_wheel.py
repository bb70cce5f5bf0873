"""The library asks nothing of Python or of torch's C++ interface, so one wheel is enough."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import util
from pathlib import Path

import pytest

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
    assert "spgrad/py.typed" in names
    for path in [*package.rglob("*.py"), *(package / "data").rglob("*.*")]:
        assert f"spgrad/{path.relative_to(package).as_posix()}" in names
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
