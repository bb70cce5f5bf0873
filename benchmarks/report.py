"""Tables as text: of rich in a terminal, plain without it, Markdown for the README."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.machine import in_words
from benchmarks.summary import OWN, best_peer, best_ratio, kind, median
from benchmarks.tables import (
    NONE,
    TIMES,
    WHERE,
    Behind,
    Run,
    Table,
    compared,
    memory_cell,
    milliseconds,
    share_cell,
    short_table,
    tables,
    target_table,
    where_cells,
)

_RED, _PLAIN = "\033[31m", "\033[0m"


def failures(run: Run) -> list[str]:
    """One line for each contender that gave no figure, and why."""
    return [
        f"{' '.join(where_cells(result)[:2])}, k = {result['k']}, {kind}: {name}: {found['error']}"
        for kind in ("times", "memory")
        for result in run[kind]
        for name, found in result["contenders"].items()
        if "error" in found
    ]


def show(run: Run, against: Run | None, write: Callable[[str], Any]) -> None:
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
    if run.get("left"):
        write(f"Not complete: {run['left']} cells are not measured.")
    write(in_words(run["machine"]))


def _plain(table: Table, write: Callable[[str], Any]) -> None:
    lines = (table.header, *table.rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    red = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    write(f"{table.title}\n")
    for line in lines:
        cells = []
        for i, (text, width) in enumerate(zip(line, widths, strict=True)):
            padded = text.ljust(width) if i < table.names else text.rjust(width)
            marked = red and isinstance(text, Behind)
            cells.append(f"{_RED}{padded}{_PLAIN}" if marked else padded)
        write("  ".join(cells).rstrip())
    write("")


def _rich(table: Table, write: Callable[[str], Any]) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(title=table.title, title_justify="left")
    for i, name in enumerate(table.header):
        drawn.add_column(name, justify="left" if i < table.names else "right")
    for row in table.rows:
        drawn.add_row(*(Text(t, "red" if isinstance(t, Behind) else "") for t in row))
    console = Console()
    if not console.is_terminal:
        console.width = 200
    with console.capture() as capture:
        console.print(drawn)
    write(capture.get())


def readme(run: Run) -> str:
    """The tables for the README: means and worst cells, and the targets."""
    found = [table for table in (short_table(run), target_table(run)) if table.rows]
    return "\n\n".join([in_words(run["machine"]), *map(_markdown, found)]) + "\n"


def markdown(run: Run, against: Run | None = None) -> str:
    """Every table; of times spgrad's and the best peer's."""
    rows = []
    memory = {(r["op"], r["matrix"], r["k"], kind(r)): r for r in run["memory"]}
    for r in run["times"]:
        best = best_peer(r)
        alike = (r["op"], r["matrix"], r["k"], kind(r))
        held = memory.get(alike) if r["threads"] == 1 else None
        rows.append(
            (
                *where_cells(r),
                milliseconds(median(r, OWN)),
                f"{milliseconds(median(r, best))} ({best})" if best else NONE,
                compared(best_ratio(r)),
                share_cell(r),
                memory_cell(held, OWN) if held else NONE,
                memory_cell(held, best) if held and best else NONE,
            )
        )
    header = (*WHERE, "spgrad ms", "best peer ms", "ratio", "of the limit", "spgrad MB", "its MB")
    title = (
        "Times are medians; a ratio is peer / spgrad, so above 1 spgrad is faster. Memory is the "
        "peak above the inputs, and in brackets, with A and x, the multiple of (operands + result "
        "+ gradients)."
    )
    first = Table(title, header, tuple(rows))
    others = (short_table(run), *tables(run, against))
    ordered = [first if t.title == TIMES else t for t in others if t.rows]
    parts = [in_words(run["machine"]), *map(_markdown, ordered)]
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    rule = ("---" if i < table.names else "---:" for i in range(len(table.header)))
    rows = (tuple(f"**{t}**" if isinstance(t, Behind) else t for t in row) for row in table.rows)
    lines = [table.header, tuple(rule), *rows]
    return "\n".join([f"{table.title}\n", *(f"| {' | '.join(line)} |" for line in lines)])
