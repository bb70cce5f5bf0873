"""Tables of what a run has found: titles, headers and rows of text."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from benchmarks.machine import cache, in_words, processor
from benchmarks.operations import OPS
from benchmarks.record import Result
from benchmarks.summary import (
    FEWEST,
    LIMITS,
    OWN,
    PARTS,
    behind,
    best_peer,
    best_ratio,
    changes,
    key,
    kind,
    means,
    median,
    over_forward,
    share,
)
from benchmarks.targets import findings, step_bound

Run = dict[str, Any]
NONE = "-"
TIMES = "Milliseconds: median ± half the interquartile range; ratios above 1: spgrad is faster"


class Behind(str):
    """Text that tables show in red: spgrad is behind a peer there, or misses a target."""

    __slots__ = ()


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


def compared(ratio: float | None, more: str = "") -> str:
    """A ratio to a peer, and perhaps which."""
    text = f"{times(ratio)}{more}"
    return Behind(text) if ratio is not None and ratio < 1 else text


def megabytes(size: float) -> str:
    return f"{size / 1e6:.3g}"


def where_cells(result: Result) -> tuple[str, ...]:
    op = OPS[result["op"]]
    return (
        op.title,
        result["matrix"],
        str(result["k"]) if op.dense else NONE,
        str(result["threads"]),
        kind(result),
    )


WHERE = ("", "matrix", "k", "threads", "types")


def percent(part: float | None) -> str:
    return NONE if part is None else f"{100 * part:.0f} %"


def share_cell(result: Result) -> str:
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
        last = compared(best_ratio(result), f" {best}") if best else NONE
        cells = (_time_cell(result, name) for name in names)
        rows.append((*where_cells(result), *cells, last, share_cell(result)))
    header = (*WHERE, *names, "best peer / spgrad", "of the limit")
    return Table(TIMES, header, tuple(rows))


def mean_table(results: list[Result]) -> Table:
    peers = [name for name in _named(results) if name not in (OWN, *PARTS)]
    rows = []
    for op, threads, types, found in means(results):
        cells = [found.get(name) for name in ("best", *peers)]
        texts = (NONE if c is None else compared(c[0], f" ({c[1]})") for c in cells)
        part = percent(found["share"][0]) if "share" in found else NONE
        rows.append((OPS[op].title, types, str(threads), *texts, part))
    title = "Geometric means of peer / spgrad, and of how many cells"
    header = ("", "types", "threads", "best peer", *peers, "of the limit")
    return Table(title, header, tuple(rows))


def memory_cell(result: Result, name: str) -> str:
    found = result["contenders"].get(name)
    if found is None:
        return NONE
    if "error" in found:
        return found["error"][:24]
    return f"{megabytes(found['growth'])} ({found['multiple']:.2f}x)"


def memory_table(results: list[Result]) -> Table:
    names = _named(results)
    rows = [(*where_cells(r), *(memory_cell(r, name) for name in names)) for r in results]
    title = (
        "Peak memory of the step: MB above its inputs, and with A and x as a multiple of "
        "(operands + result + gradients)"
    )
    return Table(title, (*WHERE, *names), tuple(rows))


def target_table(run: Run) -> Table:
    """Those that are missed first, and of these the one furthest from its bound."""
    found = findings(run["times"], run["memory"], cache(run["machine"], "L2"))
    rows = [
        (
            found.target.title,
            found.target.widths,
            str(found.threads),
            f"{'at most ' * found.target.most}{times(found.target.bound)}",
            times(found.mean),
            times(found.worst),
            found.where,
            str(found.cells),
            "yes" if found.met else Behind("NO"),
        )
        for found in sorted(found, key=lambda found: (found.met, found.margin))
    ]
    title = "Targets; means are geometric, and float32 where no type is named"
    header = ("", "k", "threads", "bound", "mean", "worst", "where", "cells", "met")
    return Table(title, header, tuple(rows), 1)


def behind_table(results: list[Result]) -> Table:
    rows = []
    for value, result in behind(results):
        best = best_peer(result) or NONE
        taken = (milliseconds(median(result, name)) for name in (OWN, best))
        rows.append((*where_cells(result), best, *taken, compared(value)))
    title = "Where spgrad is behind a peer, the worst first"
    header = (*WHERE, "best peer", "spgrad ms", "its ms", "peer / spgrad")
    return Table(title, header, tuple(rows))


def width_table(run: Run) -> Table:
    """A x on every matrix with every k; the matrix with the worst cell first."""
    cells = [r for r in run["times"] if r["op"] == "spmm" and best_ratio(r) is not None]
    columns = sorted({r["k"] for r in cells})
    if len(columns) < FEWEST:
        return Table("", (), ())
    steps = list(over_forward(run["times"]))
    lines: dict[tuple[Any, ...], dict[int, float]] = {}
    for r in cells:
        lines.setdefault(key(r, "k", "op"), {})[r["k"]] = best_ratio(r) or 0
    first = {key(r, "k", "op"): r for r in cells}
    rows = []
    for line in sorted(lines, key=lambda line: min(lines[line].values())):
        found, mine = lines[line], [(v, r["k"]) for r, v in steps if key(r, "k", "op") == line]
        ratios = (compared(found.get(k)) for k in columns)
        step = "{:.2f}x (k = {})".format(*max(mine)) if mine else NONE
        private = cache(run["machine"], "L2")
        if any(v > step_bound({**first[line], "k": k}, private) for v, k in mine):
            step = Behind(step)
        names = (first[line]["matrix"], kind(first[line]), str(first[line]["threads"]))
        rows.append((*names, *ratios, compared(min(found.values())), step))
    for group in dict.fromkeys((kind(r), r["threads"]) for r in cells):
        mine = [lines[line] for line in lines if _group(first[line]) == group]
        by_k = [[found[k] for found in mine if k in found] for k in columns]
        means = (compared(geometric_mean(values)) if values else NONE for values in by_k)
        every = [value for values in by_k for value in values]
        after = [v for r, v in steps if _group(r) == group]
        step = f"{times(geometric_mean(after))} (mean)" if after else NONE
        rows.append(("geometric mean", group[0], str(group[1]), *means, compared(min(every)), step))
    title = f"A x, best peer / spgrad, by k: {processor(run['machine'])}"
    header = ("matrix", "types", "threads", *map(str, columns), "worst", "step / A x, worst")
    return Table(title, header, tuple(rows), 3)


def _group(result: Result) -> tuple[str, int]:
    return kind(result), result["threads"]


def short_table(run: Run) -> Table:
    """For the README: a line for each operation, with the mean and the worst cell of every k."""
    steps = {key(r): value for r, value in over_forward(run["times"])}
    known = [(value, r) for r in run["times"] if (value := best_ratio(r)) is not None]
    columns = sorted({r["k"] for _, r in known})
    groups: dict[tuple[str, ...], list[tuple[float, Result]]] = {}
    for value, r in known:
        groups.setdefault((r["op"], kind(r), str(r["threads"])), []).append((value, r))
    rows = []
    for (op, *names), cells in groups.items():
        by_k = ([value for value, r in cells if r["k"] == k] for k in columns)
        texts = [
            compared(min(values), f" / {times(geometric_mean(values))}") if values else NONE
            for values in by_k
        ]
        worst, where = min(cells, key=lambda cell: cell[0])
        behind = sum(value < 1 for value, _ in cells)
        after = [steps[key(r)] for _, r in cells if key(r) in steps]
        rows.append(
            (
                OPS[op].title,
                *names,
                *texts,
                compared(worst, f" {_place(where)}, {best_peer(where)}"),
                f"{behind} of {len(cells)}",
                times(geometric_mean(after)) if after else NONE,
            )
        )
    title = (
        "The best peer's time over spgrad's, by k: worst matrix / geometric mean of all; above 1, "
        "spgrad is faster. The last column: time over that of A x alone"
    )
    header = ("", "types", "threads", *(f"k = {k}" for k in columns), "worst", "behind in", "/ A x")
    return Table(title, header, tuple(rows), 2)


def _place(result: Result) -> str:
    return f"{result['matrix']}, k = {result['k']}" if OPS[result["op"]].dense else result["matrix"]


def change_table(old: Run, new: Run) -> Table:
    found = list(changes(old["times"], new["times"]))
    rows = [
        (*where_cells(r), milliseconds(was), milliseconds(now), times(was / now))
        for r, was, now in found
    ]
    for op in dict.fromkeys(r["op"] for r, _, _ in found):
        mean = geometric_mean(was / now for r, was, now in found if r["op"] == op)
        empty = (NONE,) * (len(WHERE) - 2)
        rows.append((OPS[op].title, "geometric mean", *empty, NONE, NONE, times(mean)))
    title = f"spgrad against {old['machine']['date'][:10]}; above 1 it has become faster"
    if any(old["machine"].get(f) != new["machine"].get(f) for f in ("cpu", "cores", "compiled")):
        title += f" (ANOTHER MACHINE OR BUILD: {in_words(old['machine'])})"
    return Table(title, (*WHERE, "ms before", "ms now", "before / now"), tuple(rows))


def tables(run: Run, against: Run | None = None) -> list[Table]:
    """Every table that has rows."""
    found = [
        behind_table(run["times"]),
        width_table(run),
        time_table(run["times"]),
        mean_table(run["times"]),
        memory_table(run["memory"]),
        target_table(run),
    ]
    if against is not None:
        found.append(change_table(against, run))
    return [table for table in found if table.rows]
