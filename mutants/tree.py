"""Copies of the tree to change files in, each with an interpreter that imports spgrad from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

from mutants.reach import ROOT


class Tree:
    """A copy of the working tree, and a worker that runs tests in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _copy(path)
        (path / "build").mkdir()
        self.python = _interpreter(path)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "2"}
        environment["OMP_WAIT_POLICY"] = "passive"  # as conftest.py; torch is there before it
        environment.pop("PYTHONPATH", None)
        self._worker = subprocess.Popen(
            [str(self.python), str(path / "mutants" / "worker.py")],
            cwd=path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, file: str, source: bytes, tests: list[str], seconds: float) -> dict[str, Any]:
        """The result of the worker."""
        job = {"file": file, "source": source.decode(), "tests": tests, "seconds": seconds}
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(job) + "\n")
        self._worker.stdin.flush()
        return json.loads(self._worker.stdout.readline())

    def close(self) -> None:
        """Ends the worker."""
        self._worker.kill()
        self._worker.wait()


def _copy(path: Path) -> None:
    """Copies the files that git tracks or would add, and the compiled library."""
    shutil.rmtree(path, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    kernels = (ROOT / "src/spgrad/kernels").glob("libspgrad_cpu.*")
    names = [*listed.stdout.splitlines(), *(str(k.relative_to(ROOT)) for k in kernels)]
    for name in names:
        if (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
    for compiled in (ROOT / "tests").rglob("__pycache__"):  # good for the copy too
        shutil.copytree(compiled, path / compiled.relative_to(ROOT))


def _interpreter(path: Path) -> Path:
    """Python with the packages of this one, but spgrad from `path`, also in its subprocesses."""
    home = path / ".venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    ours = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    theirs = sysconfig.get_path("purelib")
    (Path(ours) / "spgrad.pth").write_text(f"{path / 'src'}\n{theirs}\n")
    assert sys.prefix != sys.base_prefix, "run this with .venv/bin/python"
    subprocess.run([str(python), "-m", "compileall", "-q", "src"], cwd=path, check=True)
    return python
