"""The targets that let allocations fail collect the tests that do so."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_of_allocations_are_collected_with_their_folder():
    """pytest 9 leaves out a file that is named beside its folder."""
    made = (ROOT / "Makefile").read_text()
    options = re.search(r"-S -m pytest -o (python_files)=\"(.*)\"$", made, re.MULTILINE)
    assert options is not None
    site = ["-S"] if sys.flags.no_site else []  # so that the same packages are found
    command = [sys.executable, *site, "-m", "pytest", "--collect-only", "-qq", "-n0"]
    command += ["-o", "=".join(options.groups()), "-p", "no:cacheprovider", "tests/kernels/every"]
    run = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    found = run.stdout
    assert run.returncode == 0, run.stderr
    assert "allocations.py: " in found
    assert "test_every_kernel.py: " in found
    folders = re.findall(r"^(?:SANITIZED|COVERED) \?= (\S+)", made, re.MULTILINE)
    assert len(folders) == 2
    assert all("tests/kernels/every".startswith(folder) for folder in folders)
