"""Tables: of rich in a terminal, plain text without it, Markdown for the README."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.machine import in_words
from benchmarks.operations import OPS
from benchmarks.summary import (
    LIMITS,
    OWN,
    best_peer,
    best_ratio,
    changes,
    kind,
    means,
    median,
    share,
)
from benchmarks.targets import findings

Result = dict[str, Any]
NONE = "-"


@dataclass(frozen=True)
class Table:
    """A title, a header and rows of text; the first `names` columns are aligned left."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 2


def milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{1e3 * seconds:.3g}"


def times(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.2f}x"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.3g}"


def _where(result: Result) -> tuple[str, ...]:
    op = OPS[result["op"]]
    return (
        op.title,
        result["matrix"],
        str(result["k"]) if op.dense else NONE,
        str(result["threads"]),
        kind(result),
    )


_WHERE = ("", "matrix", "k", "threads", "types")


def percent(part: float | None) -> str:
    return NONE if part is None else f"{100 * part:.0f} %"


def _share_cell(result: Result) -> str:
    found = share(result)
    return f"{percent(found[0])} {found[1].split()[0]}" if found else NONE


def _named(results: list[Result]) -> list[str]:
    names = dict.fromkeys(name for result in results for name in result["contenders"])
    return [name for name in names if name not in LIMITS]


def _time_cell(result: Result, name: str) -> str:
    """Median and half the interquartile range, in milliseconds."""
    found = result["contenders"].get(name)
    if found is None:
        return NONE
    if "error" in found:
        return "failed" if found["error"] != "out of memory" else found["error"]
    taken = found["seconds"]
    return f"{milliseconds(taken['median'])} ±{milliseconds((taken['q3'] - taken['q1']) / 2)}"


def time_table(results: list[Result]) -> Table:
    names = _named(results)
    rows = []
    for result in results:
        best = best_peer(result)
        last = f"{times(best_ratio(result))} {best}" if best else NONE
        cells = (_time_cell(result, name) for name in names)
        rows.append((*_where(result), *cells, last, _share_cell(result)))
    header = (*_WHERE, *names, "best peer / spgrad", "of the limit")
    title = "Milliseconds: median ± half the interquartile range; ratios above 1: spgrad is faster"
    return Table(title, header, tuple(rows))


def mean_table(results: list[Result]) -> Table:
    peers = [name for name in _named(results) if name != OWN]
    rows = []
    for op, threads, types, found in means(results):
        cells = [found.get(name) for name in ("best", *peers)]
        texts = (NONE if c is None else f"{times(c[0])} ({c[1]})" for c in cells)
        part = percent(found["share"][0]) if "share" in found else NONE
        rows.append((OPS[op].title, types, str(threads), *texts, part))
    title = "Geometric means of peer / spgrad, and of how many cells"
    header = ("", "types", "threads", "best peer", *peers, "of the limit")
    return Table(title, header, tuple(rows))


def _memory_cell(result: Result, name: str) -> str:
    found = result["contenders"].get(name)
    if found is None:
        return NONE
    if "error" in found:
        return found["error"][:24]
    return f"{megabytes(found['growth'])} ({found['multiple']:.2f}x)"


def memory_table(results: list[Result]) -> Table:
    names = _named(results)
    rows = [(*_where(r), *(_memory_cell(r, name) for name in names)) for r in results]
    title = (
        "Peak memory of the step: MB above its inputs, and with A and x as a multiple of "
        "(operands + result + gradients)"
    )
    return Table(title, (*_WHERE, *names), tuple(rows))


def target_table(results: list[Result], memory: list[Result]) -> Table:
    rows = [
        (
            found.target.title,
            str(found.threads),
            times(found.target.bound),
            times(found.mean),
            times(found.worst),
            found.where,
            str(found.cells),
            "yes" if found.met else "NO",
        )
        for found in findings(results, memory)
    ]
    title = "Targets: float32, k of 32 and 128; means are geometric"
    header = ("", "threads", "bound", "mean", "worst", "where", "cells", "met")
    return Table(title, header, tuple(rows), 1)


def change_table(old: dict[str, Any], new: dict[str, Any]) -> Table:
    found = list(changes(old["times"], new["times"]))
    rows = [
        (*_where(r), milliseconds(was), milliseconds(now), times(was / now))
        for r, was, now in found
    ]
    for op in dict.fromkeys(r["op"] for r, _, _ in found):
        mean = statistics.geometric_mean(was / now for r, was, now in found if r["op"] == op)
        empty = (NONE,) * (len(_WHERE) - 2)
        rows.append((OPS[op].title, "geometric mean", *empty, NONE, NONE, times(mean)))
    title = f"spgrad against {old['machine']['date'][:10]}; above 1 it has become faster"
    if any(old["machine"].get(f) != new["machine"].get(f) for f in ("cpu", "cores", "compiled")):
        title += f" (ANOTHER MACHINE OR BUILD: {in_words(old['machine'])})"
    return Table(title, (*_WHERE, "ms before", "ms now", "before / now"), tuple(rows))


def tables(run: dict[str, Any], against: dict[str, Any] | None = None) -> list[Table]:
    """Every table that has rows."""
    found = [
        time_table(run["times"]),
        mean_table(run["times"]),
        memory_table(run["memory"]),
        target_table(run["times"], run["memory"]),
    ]
    if against is not None:
        found.append(change_table(against, run))
    return [table for table in found if table.rows]


def failures(run: dict[str, Any]) -> list[str]:
    """One line for each contender that gave no figure, and why."""
    return [
        f"{' '.join(_where(result)[:2])}, k = {result['k']}, {kind}: {name}: {found['error']}"
        for kind in ("times", "memory")
        for result in run[kind]
        for name, found in result["contenders"].items()
        if "error" in found
    ]


def show(run: dict[str, Any], against: dict[str, Any] | None, write: Callable[[str], Any]) -> None:
    """Writes the tables for a reader at a terminal."""
    draw = _plain
    try:
        import rich  # noqa: F401
    except ImportError:
        pass
    else:
        draw = _rich
    for table in tables(run, against):
        draw(table, write)
    for line in failures(run):
        write(line)
    if run["machine"]["absent"]:
        write(f"Not installed, so not compared: {', '.join(run['machine']['absent'])}.")
    write(in_words(run["machine"]))


def _plain(table: Table, write: Callable[[str], Any]) -> None:
    lines = (table.header, *table.rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    write(f"{table.title}\n")
    for line in lines:
        cells = (
            text.ljust(width) if i < table.names else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        write("  ".join(cells).rstrip())
    write("")


def _rich(table: Table, write: Callable[[str], Any]) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn

    drawn = Drawn(title=table.title, title_justify="left")
    for i, name in enumerate(table.header):
        drawn.add_column(name, justify="left" if i < table.names else "right")
    for row in table.rows:
        drawn.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 200
    with console.capture() as capture:
        console.print(drawn)
    write(capture.get())


def markdown(run: dict[str, Any], against: dict[str, Any] | None = None) -> str:
    """Tables for the README: spgrad and the best peer; means; memory; targets."""
    rows = []
    memory = {(r["matrix"], r["k"], kind(r)): r for r in run["memory"]}
    for r in run["times"]:
        best = best_peer(r)
        step = r["op"] == "step" and r["threads"] == 1
        held = memory.get((r["matrix"], r["k"], kind(r))) if step else None
        rows.append(
            (
                *_where(r),
                milliseconds(median(r, OWN)),
                f"{milliseconds(median(r, best))} ({best})" if best else NONE,
                times(best_ratio(r)),
                _share_cell(r),
                _memory_cell(held, OWN) if held else NONE,
                _memory_cell(held, best) if held and best else NONE,
            )
        )
    header = (*_WHERE, "spgrad ms", "best peer ms", "ratio", "of the limit", "spgrad MB", "its MB")
    title = (
        "Times are medians; a ratio is peer / spgrad, so above 1 spgrad is faster. Memory is the "
        "peak above the inputs, and in brackets, with A and x, the multiple of (operands + result "
        "+ gradients)."
    )
    first = Table(title, header, tuple(rows))
    _, *rest = tables(run, against)
    parts = [in_words(run["machine"]), *(_markdown(table) for table in (first, *rest))]
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    rule = ("---" if i < table.names else "---:" for i in range(len(table.header)))
    lines = [table.header, tuple(rule), *table.rows]
    return "\n".join([f"{table.title}\n", *(f"| {' | '.join(line)} |" for line in lines)])
