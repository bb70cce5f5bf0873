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
from benchmarks.contender import DTYPES
from benchmarks.limits import LIMITS
from benchmarks.machine import describe
from benchmarks.matrices import ALL_KINDS, GROUPS, GROWTH, MATRICES, REAL, SMALL
from benchmarks.measure import available_memory
from benchmarks.operations import OPS
from benchmarks.peers import CONTENDERS, PEERS
from benchmarks.plan import (
    ROOT,
    Options,
    Result,
    all_threads,
    measure_all_memory,
    measure_bandwidth,
    memory_cells,
    time_all,
)
from benchmarks.plots import draw
from benchmarks.summary import OWN

_BUSY = 0.5  # load above which others are at work
_INDICES = ("int32", "int64")
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
        epilog="Results go to --out as results.json, results.md and plots, progress to standard "
        "error. Groups of matrices have names too: " + ", ".join(GROUPS) + ".",
    )
    add = parser.add_argument
    count = _at_least(int, 1)
    peers = [peer.name for peer in PEERS]
    add(
        "--full",
        action="store_true",
        help="every operation, matrix, k, dtype and number of threads",
    )
    add("--quick", action="store_true", help="few samples: figures to glance at")
    add("--op", nargs="+", choices=OPS, metavar="OP", help=", ".join(OPS))
    names = (*MATRICES, *GROUPS)
    add("--matrix", nargs="+", choices=names, metavar="NAME", help=", ".join(MATRICES))
    add("--k", nargs="+", type=count, metavar="K", help="columns of the dense operands")
    add("--threads", choices=("1", "all", "both"), help="default: 1; with --full: both")
    add("--peer", nargs="+", choices=peers, metavar="PEER", help=", ".join(peers))
    add("--dtype", nargs="+", choices=DTYPES, metavar="DTYPE", help=", ".join(DTYPES))
    add("--layout", choices=("csr", "csc", "coo"), default="csr", help="of spgrad's operand")
    add("--index", nargs="+", choices=_INDICES, metavar="INDEX", help="int32, int64")
    add("--repeats", type=count, metavar="N", help="samples of each contender (default: 15)")
    limit = "of a process, default: 4, or half of what is free if that is more"
    add("--memory-limit", type=_at_least(float, 0.1), metavar="GB", help=limit)
    add("--no-memory", action="store_true", help="time only")
    add("--out", type=Path, default=_DEFAULT_OUT, metavar="DIR", help="default: build/benchmarks")
    add("--against", type=_file, metavar="FILE", help="compare with an earlier results.json")
    add("--markdown", action="store_true", help="print Markdown for the README")
    return parser


def _options(args: argparse.Namespace) -> Options:
    threads = args.threads or ("both" if args.full else "1")
    counts = {"1": (1,), "all": (all_threads(),), "both": tuple({1: 0, all_threads(): 0})}
    matrices = [m for name in args.matrix or () for m in GROUPS.get(name, (name,))]
    limit = args.memory_limit * 1e9 if args.memory_limit else _memory_limit()
    return Options(
        ops=tuple(args.op or (OPS if args.full else ("spmm", "step"))),
        matrices=tuple(dict.fromkeys(matrices))
        or ((*ALL_KINDS, *GROWTH, *SMALL) if args.full else REAL),
        columns=tuple(args.k or ((1, 8, 32, 128, 512) if args.full else (32, 128))),
        threads=counts[threads],
        dtypes=tuple(args.dtype or (DTYPES if args.full else DTYPES[:1])),
        layout=args.layout,
        indices=tuple(args.index or (_INDICES if args.full else _INDICES[:1])),
        rounds=args.repeats or (3 if args.quick else 15),
        seconds=0.1 if args.quick else 0.5 if args.full else 0.8,
        limit=limit,
        memory=not args.no_memory,
        full=args.full,
    )


def _memory_limit() -> float:
    free = available_memory()
    return max(4e9, free / 2) if free < float("inf") else 4e9


def _progress(total: int, what: str) -> Callable[[Result], None]:
    start, done = time.monotonic(), 0

    def show_progress(result: Result) -> None:
        nonlocal done
        done += 1
        found = ", ".join(
            f"{name} {_brief(figures)}" for name, figures in result["contenders"].items()
        )
        kind = f"{result['dtype']} {result['index']} threads={result['threads']}"
        where = f"{result['op']} {result['matrix']} k={result['k']} {kind}"
        seconds = time.monotonic() - start
        left = _duration(seconds / done * (total - done))
        at = f"{what} {done}/{total}, {_duration(seconds)}, {left} left"
        print(f"[{at}] {where}: {found}", file=sys.stderr, flush=True)

    return show_progress


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _brief(figures: dict[str, Any]) -> str:
    if "error" in figures:
        return figures["error"]
    if "seconds" in figures:
        return f"{report.milliseconds(figures['seconds']['median'])} ms"
    return f"{report.megabytes(figures['growth'])} MB"


def run(options: Options, names: list[str]) -> dict[str, Any]:
    """Measures, and gives what results.json holds."""
    machine = describe()  # imports spgrad, which warns here if its kernels are not compiled
    if machine["load"] > _BUSY:
        busy = f"this machine is busy (load {machine['load']:.1f}): with more than one thread, and"
        print(f"benchmarks: {busy} in short calls, figures say little.", file=sys.stderr)
    machine["bandwidth"] = measure_bandwidth(options)
    timed = time_all(options, names, _progress(len(list(options.cells())), "time"))
    steps = len(memory_cells(options))
    memory = measure_all_memory(options, names, _progress(steps, "memory"))
    return {"machine": machine, "times": timed, "memory": memory}


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {args.out} can't be made ({error.strerror})")
    peers = args.peer or [peer.name for peer in PEERS]
    wanted = [OWN, *peers, *(limit.name for limit in LIMITS)]
    found = run(_options(args), [name for name in wanted if CONTENDERS[name].installed])
    (args.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "results.md").write_text(report.markdown(found, args.against))
    drawn = draw(found, args.out)
    print(f"Plots: {', '.join(drawn) or 'none, matplotlib is not installed'}.", file=sys.stderr)
    if args.markdown:
        print(report.markdown(found, args.against))
    else:
        report.show(found, args.against, print)
    return 0


if __name__ == "__main__":
    sys.exit(main())
