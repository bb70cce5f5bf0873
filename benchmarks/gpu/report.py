"""Tables of what was measured: the worst ratio first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.gpu.contenders import OWN

Found = dict[str, Any]


def table(head: str, rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of Markdown: names of columns, split at |, of which the first one is text."""
    names = head.split("|")
    lines = [f"| {' | '.join(name.strip() for name in names)} |"]
    lines.append("|---|" + "--:|" * (len(names) - 1))
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def best(row: Found) -> str | None:
    """The peer whose time over spgrad's is least."""
    ratios = {name: f["ratio"]["median"] for name, f in row["found"].items() if "ratio" in f}
    return min(ratios, key=lambda name: ratios[name], default=None)


def _in_microseconds(seconds: dict[str, float]) -> str:
    low, middle, high = (f"{1e6 * seconds[name]:.4g}" for name in ("q1", "median", "q3"))
    return f"{middle} ({low} to {high})"


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.4g}"


def _cell(row: Found) -> str:
    return f"{row['kernel']}, {row['matrix']}, {row['columns']}, {row['dtype']}"


def _line(row: Found, rate: float) -> list[str]:
    own, peer = row["found"][OWN], best(row)
    shares = (100 * row[name] / own["seconds"]["median"] / rate for name in ("near", "far"))
    figures = [_in_microseconds(own["seconds"]), " to ".join(f"{s:.3g}" for s in shares)]
    memory = _megabytes(own["peak"])
    if peer is None:
        return [_cell(row), "-", "-", *figures, memory, "none", "-", "-"]
    other = row["found"][peer]
    ratio = other["ratio"]
    spread = f"{ratio['median']:.2f} ({ratio['q1']:.2f} to {ratio['q3']:.2f})"
    shown = f"**{spread}**" if ratio["median"] < 1 else spread
    alone = f"{other['device ratio']['median']:.2f}"
    return [
        _cell(row),
        shown,
        alone,
        *figures,
        memory,
        peer,
        _in_microseconds(other["seconds"]),
        _megabytes(other["peak"]),
    ]


def _order(row: Found) -> float:
    peer = best(row)
    return row["found"][peer]["ratio"]["median"] if peer else float("inf")


def markdown(machine: str, rate: float, rows: list[Found]) -> str:
    """All of it: what is wrong first, then cells with the worst ratio first, then who is absent."""
    wrong, absent, timed = [], {}, []
    for row in rows:
        if "broke" in row:
            wrong.append(f"* {_cell(row)}: the process ended: {row['broke']}")
            continue
        for name, found in row["found"].items():
            if "wrong" in found:
                wrong.append(f"* {_cell(row)}, {name}: {found['wrong']}")
            elif "absent" in found:
                absent.setdefault((name, found["absent"]), []).append(_cell(row))
        if "seconds" in row["found"].get(OWN, {}):
            timed.append(row)
    lines = [f"{machine}; copies on the device move {rate / 1e9:.0f} GB/s", ""]
    lines += ["**Wrong, and not timed**", "", *wrong, ""] if wrong else []
    head = (
        "kernel, matrix, columns, dtype | ratio | of the device alone | µs | % of the copy rate, "
        "rows of x once to each time | MB | best peer | its µs | its MB"
    )
    lines += table(head, (_line(row, rate) for row in sorted(timed, key=_order)))
    if absent:
        lines += ["", "**Absent**", ""]
        lines += [
            f"* {name}, {why}: {places[0]}{f' and {len(places) - 1} more' * (len(places) > 1)}"
            for (name, why), places in absent.items()
        ]
    return "\n".join(lines) + "\n"
