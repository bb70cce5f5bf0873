"""Tries the installed spgrad in an environment with torch alone: `try_installed.py KERNELS README`.

It runs the ten lines of the README, every example in the docstrings that needs no other package,
and the command line. The program itself needs only Python's standard library.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

EXAMPLES = 300
"""At least so many examples have to run, which fails if the search finds none."""
_ELSEWHERE = "spgrad.kernels.triton."
"""Modules that can't be imported without Triton."""


class _Runner(doctest.DocTestRunner):
    """Ends the examples of a docstring at the first that needs a package that is not installed."""

    def __init__(self) -> None:
        super().__init__(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        self.elsewhere = 0

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        if issubclass(exc_info[0], ImportError):
            self.elsewhere += 1
            raise _NeedsPackageError
        super().report_unexpected_exception(out, test, example, exc_info)


class _NeedsPackageError(Exception):
    """Ends the examples of one docstring."""


def main(kernels: str, readme: Path) -> None:
    """Tries everything, and prints a line for each step."""
    package = import_package(kernels)
    printed = ten_lines(readme)
    print(f"the README's ten lines print the {printed} lines that it shows")
    ran, elsewhere = examples(package)
    print(f"{ran} examples of docstrings pass; {elsewhere} docstrings ask for other packages")
    with tempfile.TemporaryDirectory() as folder:
        command_line(package, kernels, Path(folder))
    print("python -m spgrad versions, ops and info answer")


def import_package(kernels: str) -> ModuleType:
    """Imports spgrad, which warns once if its kernels are not compiled."""
    importlib.import_module("torch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        package = importlib.import_module("spgrad")
    backend = importlib.import_module("spgrad.kernels").backend()
    expect(backend == kernels, f"kernels are {backend}, not {kernels}")
    said = [str(w.message) for w in caught if "spgrad" in str(w.message)]
    expect(len(said) == (kernels != "compiled"), f"importing spgrad warned: {said}")
    return package


def ten_lines(readme: Path) -> int:
    """Runs the first block of Python of the README, and compares what the next block shows."""
    blocks = re.search(r"```python\n(.*?)```\s*```\n(.*?)```", readme.read_text(), re.DOTALL)
    assert blocks is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(blocks[1], {})
    expect(out.getvalue() == blocks[2], f"the README's ten lines print\n{out.getvalue()}")
    return len(blocks[2].splitlines())


def examples(package: ModuleType) -> tuple[int, int]:
    """Runs the examples of all docstrings: how many ran, and how many docstrings ended early."""
    runner, finder = _Runner(), doctest.DocTestFinder()
    dist = importlib.import_module("torch.distributed")
    given = {"torch": importlib.import_module("torch"), "spgrad": package}
    root = Path(package.__path__[0])
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        if name.startswith(_ELSEWHERE):
            continue
        module = importlib.import_module(name.removesuffix(".__init__"))
        for test in finder.find(module, extraglobs=given):
            with contextlib.suppress(_NeedsPackageError):
                runner.run(test)
            if dist.is_initialized():  # by an example that ended early
                dist.destroy_process_group()
    ran, failed = runner.tries, runner.failures
    expect(failed == 0, f"{failed} of {ran} examples failed")
    expect(ran >= EXAMPLES, f"only {ran} examples were found")
    return ran, runner.elsewhere


def command_line(package: ModuleType, kernels: str, folder: Path) -> None:
    """Runs commands in new processes."""
    package.io.save(package.eye(5), folder / "eye.pt")
    for words, shown in (
        (["versions"], f"kernels     {kernels}"),
        (["ops"], "operation"),
        (["info", str(folder / "eye.pt")], "symmetric"),
    ):
        run = subprocess.run(
            [sys.executable, "-m", "spgrad", *words], capture_output=True, text=True, cwd=folder
        )
        expect(run.returncode == 0, f"spgrad {words[0]} ended with {run.stderr}")
        expect(shown in run.stdout, f"spgrad {words[0]} printed {run.stdout}")


def expect(held: bool, otherwise: str) -> None:
    """Ends the program with this text if the condition is False."""
    if not held:
        sys.exit(f"try_installed.py: {otherwise}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
