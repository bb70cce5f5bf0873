"""Measures the Triton kernels on a GPU, beside functions of torch and of other libraries.

Each matrix has a process of its own, which measures its cells one after the other. Where a kernel
breaks the device, or takes too long, another process goes on with the next cell.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu import clock
from benchmarks.gpu.cases import COLUMNS, DTYPES, KERNELS, MATRIX_NAMES, Cell, cells
from benchmarks.gpu.measure import DeviceBrokenError, measure
from benchmarks.gpu.report import markdown
from benchmarks.matrices import MATRICES

NEEDS = (
    "This needs torch with CUDA and a GPU that it can use, and torch.cuda.is_available() is False."
)
_ROOT = Path(__file__).parents[2]
_LONGEST = 900
"""Seconds for a cell, of which compiling and checking may take most."""


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--matrix", nargs="+", choices=MATRICES, default=list(MATRIX_NAMES))
    parser.add_argument("--columns", nargs="+", type=int, default=list(COLUMNS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)  # "cpu", for tests
    parser.add_argument("--from", dest="first", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def _work(options: argparse.Namespace, todo: list[Cell]) -> None:
    """Measures the cells from one on, and prints a line of JSON for each."""
    for cell in todo[options.first :]:
        faulthandler.dump_traceback_later(_LONGEST, exit=True)
        found = measure(cell, options.device, options.rounds)
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def _of_matrix(options: argparse.Namespace, matrix: str, todo: list[Cell]) -> Iterator[Any]:
    """What processes found of each cell of a matrix."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", options.device]
    command += ["--rounds", str(options.rounds), "--matrix", matrix, "--kernel", *options.kernel]
    command += ["--columns", *map(str, options.columns), "--dtype", *options.dtype]
    done = 0
    while done < len(todo):
        with tempfile.TemporaryFile("w+") as errors:
            start = [*command, "--from", str(done)]
            pipes = {"stdout": subprocess.PIPE, "stderr": errors}
            with subprocess.Popen(start, **pipes, text=True, cwd=_ROOT) as run:
                assert run.stdout is not None
                for line in run.stdout:
                    yield json.loads(line)
                    done += 1
                status = run.wait()
            errors.seek(0)
            said = errors.read().strip().splitlines() or [f"status {status}"]
        if done < len(todo):
            yield {**todo[done]._asdict(), "broke": said[-1][:160]}
            done += 1


def main(given: list[str] | None = None) -> int:
    """Measures, prints the table, and keeps all figures in a file; the exit status."""
    options = _arguments(given)
    if not clock.has_device(options.device):
        sys.stderr.write(NEEDS + "\n")
        return 2
    todo = cells(options.kernel, options.matrix, options.columns, options.dtype)
    if options.first is not None:
        try:
            _work(options, todo)
        except DeviceBrokenError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        return 0
    machine, rate = clock.in_words(options.device), clock.copy_rate(options.device)
    clock.room(options.device)  # gives back what the copies took: other processes measure
    rows: list[Any] = []
    options.out.mkdir(parents=True, exist_ok=True)
    for matrix in options.matrix:
        for row in _of_matrix(options, matrix, [cell for cell in todo if cell.matrix == matrix]):
            rows.append(row)
            sys.stderr.write(f"{len(rows)} of {len(todo)}: {Cell(*list(row.values())[:4])}\n")
            kept = {"machine": machine, "copies": rate, "rows": rows}
            (options.out / "gpu.json").write_text(json.dumps(kept, indent=1))
    sys.stdout.write(markdown(machine, rate, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
