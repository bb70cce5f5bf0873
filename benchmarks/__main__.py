"""Runs the benchmarks: ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import report
from benchmarks.machine import describe
from benchmarks.matrices import MATRICES, REAL
from benchmarks.peers import CONTENDERS, PEERS
from benchmarks.plan import ROOT, Options, Result, all_threads, measure_all_memory, time_all
from benchmarks.problems import OPS
from benchmarks.summary import OWN

_DEFAULT_OUT = ROOT / "build" / "benchmarks"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmarks: {message}. See python -m benchmarks --help.\n")


def _at_least(kind: type, least: float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not value >= least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {least} or more")
        return value

    return read


def _file(text: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(text).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text} can't be read ({error})") from None
    if not isinstance(found, dict) or not {"machine", "times", "memory"} <= found.keys():
        raise argparse.ArgumentTypeError(f"{text} is no results file of these benchmarks")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m benchmarks",
        description="Compares spgrad with other libraries: time in turns, and peak memory. "
        "Without options: A x and A x with both gradients, on the real matrices, with 32 and 128 "
        "columns, on one thread.",
        epilog="Results go to --out as results.json and results.md, progress to standard error.",
    )
    add = parser.add_argument
    count = _at_least(int, 1)
    peers = [peer.name for peer in PEERS]
    add("--full", action="store_true", help="every operation, matrix, k and number of threads")
    add("--quick", action="store_true", help="few samples: figures to glance at")
    add("--op", nargs="+", choices=OPS, metavar="OP", help=", ".join(OPS))
    add("--matrix", nargs="+", choices=MATRICES, metavar="NAME", help=", ".join(MATRICES))
    add("--k", nargs="+", type=count, metavar="K", help="columns of the dense operands")
    add("--threads", choices=("1", "all", "both"), help="default: 1; with --full: both")
    add("--peer", nargs="+", choices=peers, metavar="PEER", help=", ".join(peers))
    add("--dtype", choices=("float32", "float64"), default="float32")
    add("--layout", choices=("csr", "csc", "coo"), default="csr", help="of spgrad's operand")
    add("--index", choices=("int32", "int64"), default="int32", help="of spgrad and torch CSR")
    add("--repeats", type=count, metavar="N", help="samples of each contender (default: 15)")
    add("--memory-limit", type=_at_least(float, 0.1), default=4.0, metavar="GB", help="default: 4")
    add("--no-memory", action="store_true", help="time only")
    add("--out", type=Path, default=_DEFAULT_OUT, metavar="DIR", help="default: build/benchmarks")
    add("--against", type=_file, metavar="FILE", help="compare with an earlier results.json")
    add("--markdown", action="store_true", help="print Markdown for the README")
    return parser


def _options(args: argparse.Namespace) -> Options:
    threads = args.threads or ("both" if args.full else "1")
    counts = {"1": (1,), "all": (all_threads(),), "both": tuple({1: 0, all_threads(): 0})}
    everything = tuple(name for name in MATRICES if name != "tiny")
    return Options(
        ops=tuple(args.op or (OPS if args.full else ("spmm", "step"))),
        matrices=tuple(args.matrix or (everything if args.full else REAL)),
        columns=tuple(args.k or ((1, 32, 128) if args.full else (32, 128))),
        threads=counts[threads],
        dtype=args.dtype,
        layout=args.layout,
        index=args.index,
        rounds=args.repeats or (3 if args.quick else 15),
        seconds=0.1 if args.quick else 1.2,
        limit=args.memory_limit * 1e9,
        memory=not args.no_memory,
    )


def _progress(total: int, what: str) -> Callable[[Result], None]:
    start, done = time.monotonic(), 0

    def tell(result: Result) -> None:
        nonlocal done
        done += 1
        found = ", ".join(
            f"{name} {_brief(figures)}" for name, figures in result["contenders"].items()
        )
        where = f"{result['op']} {result['matrix']} k={result['k']} threads={result['threads']}"
        seconds = time.monotonic() - start
        print(f"[{what} {done}/{total}, {seconds:.0f} s] {where}: {found}", file=sys.stderr)

    return tell


def _brief(figures: dict[str, Any]) -> str:
    if "error" in figures:
        return figures["error"]
    if "seconds" in figures:
        return f"{report.milliseconds(figures['seconds']['median'])} ms"
    return f"{report.megabytes(figures['growth'])} MB"


def run(options: Options, names: list[str]) -> dict[str, Any]:
    """Measures, and gives what results.json holds."""
    machine = describe()  # imports spgrad, which warns here if its kernels are not compiled
    cells = len(list(options.cells()))
    timed = time_all(options, names, _progress(cells, "time"))
    steps = len(options.matrices) * len(options.columns)
    memory = measure_all_memory(options, names, _progress(steps, "memory"))
    return {"machine": machine, "times": timed, "memory": memory}


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {args.out} can't be made ({error.strerror})")
    wanted = [OWN, *(args.peer or (peer.name for peer in PEERS))]
    found = run(_options(args), [name for name in wanted if CONTENDERS[name].installed])
    (args.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "results.md").write_text(report.markdown(found, args.against))
    if args.markdown:
        print(report.markdown(found, args.against))
    else:
        report.show(found, args.against, print)
    return 0


if __name__ == "__main__":
    sys.exit(main())
