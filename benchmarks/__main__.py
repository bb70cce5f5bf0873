"""Runs the benchmarks: ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import report
from benchmarks.contender import DTYPES
from benchmarks.machine import describe
from benchmarks.matrices import ALL_KINDS, BLOCKED, GROUPS, GROWTH, MATRICES, REAL, SMALL, SOLVES
from benchmarks.measure import available_memory
from benchmarks.operations import OPS, SOLVERS
from benchmarks.peers import CONTENDERS, PEERS
from benchmarks.plan import (
    FULL_COLUMNS,
    PRODUCTS,
    ROOT,
    SYSTEMS,
    WIDTHS,
    Options,
    Result,
    all_threads,
    known,
    measure_all,
    measure_bandwidth,
    tasks,
)
from benchmarks.plots import draw
from benchmarks.record import OtherRunError, Record, about
from benchmarks.summary import LIMITS, OWN, PARTS
from benchmarks.tables import megabytes, milliseconds

_BUSY = 0.5  # load above which others are at work
_INDICES = ("int32", "int64")
_DEFAULT_OUT = ROOT / "build" / "benchmarks"
_NOT_DONE = 3  # exit status of a run that has cells left


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
        "Without options: A x and A x with both gradients, on the real matrices, with 1, 32 and "
        "128 columns, on one thread. Solvers have matrices of their own, and float64.",
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
    add(
        "--widths",
        action="store_true",
        help="A x and its step with 1, 2, 4, ... 256 columns, on all matrices, in float32 and "
        "float64; time only",
    )
    add("--solves", action="store_true", help="the solvers, on systems, in float64; minutes")
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
    add("--resume", action="store_true", help="go on with the run whose results are in --out")
    add("--minutes", type=_at_least(float, 0), metavar="M", help="stop then; see --resume")
    add("--against", type=_file, metavar="FILE", help="compare with an earlier results.json")
    add("--markdown", action="store_true", help="print Markdown for the README")
    return parser


def _options(args: argparse.Namespace) -> Options:
    threads = args.threads or ("both" if args.full else "1")
    counts = {"1": (1,), "all": (all_threads(),), "both": tuple({1: 0, all_threads(): 0})}
    named = [m for name in args.matrix or () for m in GROUPS.get(name, (name,))]
    ops, matrices, columns, dtypes = _usual(args)
    limit = args.memory_limit * 1e9 if args.memory_limit else _memory_limit()
    return Options(
        ops=tuple(args.op or ops),
        matrices=tuple(dict.fromkeys(named or matrices)),
        columns=tuple(dict.fromkeys(args.k or columns)),
        threads=counts[threads],
        dtypes=tuple(args.dtype or dtypes),
        layout=args.layout,
        indices=tuple(args.index or (_INDICES if args.full else _INDICES[:1])),
        rounds=args.repeats or (3 if args.quick else 15),
        seconds=0.1 if args.quick else 0.5 if args.full or args.widths else 0.8,
        limit=limit,
        memory=not args.no_memory and not args.widths,
        full=args.full,
    )


def _usual(args: argparse.Namespace) -> tuple[Sequence[Any], ...]:
    """Operations, matrices, values of k and dtypes of a run that names none."""
    if args.full:
        matrices = *ALL_KINDS, *GROWTH, *SMALL, *BLOCKED, *SOLVES
        return tuple(OPS), matrices, sorted({*FULL_COLUMNS, *WIDTHS}), DTYPES
    if args.widths:
        return PRODUCTS, ALL_KINDS, WIDTHS, DTYPES[:2]
    ops = SOLVERS if args.solves else PRODUCTS
    solves = [bool(OPS[op].assume) for op in args.op or ops]
    matrices = (*(() if all(solves) else REAL), *(SOLVES if any(solves) else ()))
    dtypes = (*(() if all(solves) else ("float32",)), *(("float64",) if any(solves) else ()))
    return ops, matrices, SYSTEMS if all(solves) else (1, 32, 128), dtypes


def _memory_limit() -> float:
    free = available_memory()
    return max(4e9, free / 2) if free < float("inf") else 4e9


def _progress(total: int) -> Callable[[str, Result], None]:
    start, done = time.monotonic(), 0

    def show_progress(what: str, result: Result) -> None:
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
        return f"{milliseconds(figures['seconds']['median'])} ms"
    return f"{megabytes(figures['growth'])} MB"


def run(options: Options, names: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Measures, and gives what results.json holds.

    Raises:
        OtherRunError: There is nothing to resume that this run could go on with.
    """
    deadline = time.monotonic() + 60 * args.minutes if args.minutes is not None else float("inf")
    machine = describe()  # imports spgrad, which warns here if its kernels are not compiled
    settings = {"contenders": names, "rounds": options.rounds, "seconds": options.seconds}
    begin = Record.resume if args.resume else Record.begin
    record = begin(args.out / "cells.jsonl", about(machine, settings))
    if machine["load"] > _BUSY:
        busy = f"this machine is busy (load {machine['load']:.1f}): with more than one thread, and"
        print(f"benchmarks: {busy} in short calls, figures say little.", file=sys.stderr)
    machine["bandwidth"] = measure_bandwidth(options)
    wanted = tasks(options)
    missing = sum(known(options, record, task) is None for task in wanted)
    try:
        measure_all(options, names, record, _progress(missing), deadline)
    except KeyboardInterrupt:
        print("benchmarks: interrupted.", file=sys.stderr)
    found: dict[str, list[Result]] = {"time": [], "memory": []}
    for task in wanted:
        result = known(options, record, task)
        if result is not None:
            found[task[0]].append(result)
    left = len(wanted) - len(found["time"]) - len(found["memory"])
    return {"machine": machine, "times": found["time"], "memory": found["memory"], "left": left}


def _how_to_go_on(found: dict[str, Any], arguments: list[str]) -> str:
    done = len(found["times"]) + len(found["memory"])
    again = [*arguments, *(() if "--resume" in arguments else ("--resume",))]
    return (
        f"benchmarks: {done} of {done + found['left']} cells are measured. To go on: "
        f"python -m benchmarks {shlex.join(again)}"
    )


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {args.out} can't be made ({error.strerror})")
    peers = args.peer or [peer.name for peer in PEERS]
    wanted = [OWN, *PARTS, *peers, *LIMITS]
    names = [name for name in wanted if CONTENDERS[name].installed]
    try:
        found = run(_options(args), names, args)
    except OtherRunError as error:
        parser.error(f"--resume: {error}; leave out --resume to begin anew, or name another --out")
    (args.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "results.md").write_text(report.markdown(found, args.against))
    drawn = draw(found, args.out)
    print(f"Plots: {', '.join(drawn) or 'none, matplotlib is not installed'}.", file=sys.stderr)
    if args.markdown:
        print(report.readme(found))
    else:
        report.show(found, args.against, print)
    if found["left"]:
        print(_how_to_go_on(found, arguments), file=sys.stderr)
    return _NOT_DONE if found["left"] else 0


if __name__ == "__main__":
    sys.exit(main())
