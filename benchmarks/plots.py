"""Pictures of a run: ratios to the best peer, time over entries, shares of the limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.matrices import GROWTH, MATRICES
from benchmarks.operations import OPS
from benchmarks.summary import FEWEST, OWN, Result, best_ratio, kind, median, peers, share

_LONG = 10  # ratios from which on decimals say nothing
_MOST = 120  # % of a limit, above which it is noise
_SIZE = {"dpi": 150, "bbox_inches": "tight"}


def draw(run: dict[str, Any], out: Path) -> list[str]:
    """Writes the plots that the run has figures for; gives the names of the files."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    every: tuple[tuple[str, Callable[[list[Result]], Any]], ...] = (
        ("ratio.png", _ratios),
        ("widths.png", _widths),
        ("growth.png", _growth),
        ("limit.png", _shares),
    )
    written = []
    for name, picture in every:
        figure = picture(run["times"])
        if figure is not None:
            figure.savefig(out / name, **_SIZE)
            written.append(name)
    return written


def _ratios(results: list[Result]) -> Any:
    found = [(r, value) for r in results if (value := best_ratio(r)) is not None]
    figure = _points(found, "best peer's time / spgrad's time (above 1: spgrad is faster)")
    if figure is not None:
        axes = figure.axes[0]
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: _factor(value))
        axes.axvline(1, color="black", linewidth=1)
    return figure


def _factor(value: float) -> str:
    return f"{value:g}x" if value >= 1 else f"1/{1 / value:g}x"


def _shares(results: list[Result]) -> Any:
    found = [(r, min(100 * v[0], _MOST)) for r in results if (v := share(r)) is not None]
    figure = _points(found, f"time of the limit / spgrad's time, in % (at most {_MOST})")
    if figure is not None:
        axes = figure.axes[0]
        axes.set_xlim(0, _MOST + 5)
        axes.axvline(100, color="black", linewidth=1)
    return figure


def _points(found: list[tuple[Result, float]], label: str) -> Any:
    """A line for each operation and matrix; a point for each k, number of threads and type."""
    from matplotlib.figure import Figure

    if not found:
        return None
    lines = list(dict.fromkeys((r["op"], r["matrix"]) for r, _ in found))
    lines.sort(key=lambda line: list(OPS).index(line[0]))
    series = list(dict.fromkeys(_series(r) for r, _ in found))
    figure = Figure(figsize=(8, 1.4 + 0.2 * len(lines)))
    axes = figure.add_subplot()
    marks = "os^vDP*Xdp<>h"
    for i, name in enumerate(series):
        mine = [(lines.index((r["op"], r["matrix"])), v) for r, v in found if _series(r) == name]
        places, values = zip(*mine, strict=True)
        offset = (i - (len(series) - 1) / 2) * min(0.12, 0.7 / len(series))
        axes.plot(
            values,
            np.array(places) + offset,
            marks[i % len(marks)],
            color=f"C{i % 10}",
            markersize=4,
            label=name,
        )
    _name_lines(axes, lines)
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.4)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, frameon=False)
    return figure


def _name_lines(axes: Any, lines: list[tuple[str, str]]) -> None:
    axes.set_yticks(range(len(lines)), [f"{op}  {matrix}" for op, matrix in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    for i in range(1, len(lines)):
        if lines[i][0] != lines[i - 1][0]:
            axes.axhline(i - 0.5, color="gray", linewidth=0.6)


def _series(result: Result) -> str:
    k = f"k = {result['k']}, " if OPS[result["op"]].dense else ""
    threads = result["threads"]
    return f"{k}{threads} thread{'s' * (threads > 1)}, {kind(result)}"


def _widths(results: list[Result]) -> Any:
    """A x on each matrix with each k: a heat map for each type and number of threads."""
    from matplotlib.figure import Figure

    ratios = {
        (kind(r), r["threads"], r["matrix"], r["k"]): value
        for r in results
        if r["op"] == "spmm" and (value := best_ratio(r)) is not None
    }
    columns = sorted({k for *_, k in ratios})
    if len(columns) < FEWEST:
        return None
    matrices = sorted({m for *_, m, _ in ratios}, key=list(MATRICES).index)
    panels = list(dict.fromkeys(place[:2] for place in ratios))
    width = max(5.0, 1.6 + (0.6 * len(columns) + 0.4) * len(panels))
    size = width, 1.4 + 0.26 * len(matrices)
    figure = Figure(figsize=size, layout="constrained")
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1)
        values = [[ratios.get((*panel, m, k), np.nan) for k in columns] for m in matrices]
        _field(axes, np.array(values))
        axes.set_xticks(range(len(columns)), columns, fontsize=8)
        axes.set_yticks(range(len(matrices)), [] if i else matrices, fontsize=8)
        axes.set_xlabel("k", fontsize=8)
        axes.set_title(f"{panel[0]}, {panel[1]} thread{'s' * (panel[1] > 1)}", fontsize=9)
    figure.suptitle("A x: best peer's time / spgrad's time (red: spgrad is behind)", fontsize=9)
    return figure


def _field(axes: Any, ratios: np.ndarray) -> None:
    axes.imshow(np.log2(ratios), cmap="RdBu", vmin=-1.5, vmax=1.5, aspect="auto")
    for (row, column), value in np.ndenumerate(ratios):
        if not np.isnan(value):
            weight = "bold" if value < 1 else "normal"
            color = "white" if abs(np.log2(value)) > 1 else "black"  # on a dark field
            text = f"{value:.2f}" if value < _LONG else f"{value:.0f}"
            style = {"ha": "center", "va": "center", "fontsize": 7, "weight": weight}
            axes.text(column, row, text, color=color, **style)


def _growth(results: list[Result]) -> Any:
    """Time over the number of entries for each operation, with the line of linear growth."""
    from matplotlib.figure import Figure

    grown = [r for r in results if r["matrix"] in GROWTH and median(r, OWN) is not None]
    settings = {(r["k"] if OPS[r["op"]].dense else None, kind(r), r["threads"]) for r in grown}
    chosen = {s for s in settings if s[2] == min(t for *_, t in settings)} if settings else set()
    panels = list(dict.fromkeys(r["op"] for r in grown))
    if not panels:
        return None
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(1.2 + 4.2 * across, 0.6 + 3.4 * down), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    names = [OWN, *dict.fromkeys(name for r in grown for name in peers(r))]
    for i, op in enumerate(panels):
        cells = [r for r in grown if r["op"] == op and _setting(r) in chosen]
        _growth_panel(figure.add_subplot(down, across, i + 1), op, cells, names)
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside right upper", fontsize=8, frameon=False
    )
    return figure


def _setting(result: Result) -> tuple[Any, ...]:
    k = result["k"] if OPS[result["op"]].dense else None
    return k, kind(result), result["threads"]


def _growth_panel(axes: Any, op: str, cells: list[Result], names: list[str]) -> None:
    first = _setting(cells[0])
    cells = [r for r in cells if _setting(r) == first]
    for i, name in enumerate(names):
        points = [(MATRICES[r["matrix"]].entries, median(r, name)) for r in cells]
        known = [(nse, 1e3 * seconds) for nse, seconds in points if seconds is not None]
        if known:
            own = name == OWN
            style = {"linewidth": 2.2 if own else 1, "color": "black" if own else f"C{i - 1}"}
            axes.plot(*zip(*known, strict=True), "o-", markersize=3.5, label=name, **style)
    entries = np.array(sorted(MATRICES[r["matrix"]].entries for r in cells), dtype=float)
    last = max(cells, key=lambda r: MATRICES[r["matrix"]].entries)
    end = 1e3 * (median(last, OWN) or 1)
    axes.plot(entries, end * entries / entries[-1], "k:", linewidth=1, label="linear growth")
    axes.set_xscale("log")
    axes.set_yscale("log")
    k, types, threads = first
    of_k = f", k = {k}" if k else ""
    title = f"{OPS[op].title}{of_k}, {types}, {threads} thread{'s' * (threads > 1)}"
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("entries")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.3)
