"""Installs distributions of spgrad into an environment with torch alone, and tries each.

`python packaging/try_dist.py dist/*` takes wheels and source distributions. Each is installed by
pip into one virtual environment that holds torch alone, tried by `packaging/try_installed.py`, and
uninstalled. A source distribution is built in isolation, in a folder that pip makes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRY = ROOT / "packaging" / "try_installed.py"


def main() -> None:
    """Tries the distributions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="wheels and source distributions")
    parser.add_argument("--torch", default=pinned(), help="what pip installs before (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = empty(Path(folder), options.torch)
        before = installed(python)
        for file in options.files:
            kernels = "native" if file.name.endswith("-any.whl") else "compiled"
            started = time.monotonic()
            print(
                f"== {file.name} ({file.stat().st_size / 1e6:.1f} MB), kernels {kernels}",
                flush=True,
            )
            install(python, file, options.torch, Path(folder))
            expect_only_spgrad(python, before)
            call(python, "-W", "ignore", TRY, kernels, ROOT / "README.md", folder=Path(folder))
            call(python, "-m", "pip", "uninstall", "-q", "-y", "spgrad", folder=Path(folder))
            print(f"installed and tried in {time.monotonic() - started:.0f} s", flush=True)
    print(f"{len(options.files)} passed, 0 failed")


def pinned() -> str:
    """The torch that development uses."""
    found = re.search(r"^torch==\S+", (ROOT / "requirements/demo.txt").read_text(), re.MULTILINE)
    assert found is not None
    return found[0]


def empty(folder: Path, torch: str) -> Path:
    """The Python of a new environment that holds torch, and what torch asks for."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "-q", torch, folder=folder)
    return python


def install(python: Path, file: Path, torch: str, folder: Path) -> None:
    """Installs a distribution as a user does; pip installs what the build needs."""
    constraint = folder / "constraints.txt"
    constraint.write_text(f"{torch}\n")
    call(
        *(python, "-m", "pip", "install", "-q", file.resolve()),
        folder=folder,
        PIP_CONSTRAINT=str(constraint),  # of builds, too
    )


def expect_only_spgrad(python: Path, before: set[str]) -> None:
    """Ends the program if pip installed more than spgrad."""
    more = {line.partition("==")[0] for line in installed(python) ^ before}
    more = {line.partition(" ")[0] for line in more}
    if more != {"spgrad"}:
        sys.exit(f"try_dist.py: the environment changed by {sorted(more)}, not by spgrad alone")


def installed(python: Path) -> set[str]:
    """What pip lists."""
    listed = subprocess.run(
        [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    )
    return set(listed.stdout.splitlines())


def call(*words: str | Path, folder: Path, **variables: str) -> None:
    """Runs a command outside of the source tree; ends the program if it fails."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPGRAD_", "PYTHON"))}
    kept["PATH"] = os.pathsep.join(  # no tool of the development environment
        part for part in kept["PATH"].split(os.pathsep) if not part.startswith(str(ROOT))
    )
    run = subprocess.run(words, cwd=folder, env={**kept, **variables})
    if run.returncode:
        sys.exit(f"try_dist.py: {' '.join(map(str, words))} ended with {run.returncode}")


if __name__ == "__main__":
    main()
