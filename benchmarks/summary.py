"""Summaries of the figures: best peers, means, shares of the limit, changes to another run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.record import FIELDS, Result

OWN = "spgrad"
EXPANDED = "spgrad CSR"
FORWARD = "spgrad A x"
FEWEST = 3
"""Values of k from which on they make a table and a picture of their own."""
LIMITS = ("gather limit", "stream limit", "step limit")
PLAIN, ENGINE, FACTOR, ALONE = "spgrad CG", "engine alone", "spgrad factor", "spgrad forward"
PARTS = (EXPANDED, FORWARD, PLAIN, ENGINE, FACTOR, ALONE)
"""No peers: spgrad without what an operation is about, or a part of its work."""


def median(result: Result, name: str) -> float | None:
    """Seconds of a contender; None where it has none."""
    return result["contenders"].get(name, {}).get("seconds", {}).get("median")


def ratio(result: Result, name: str) -> float | None:
    """How many times longer a peer takes than spgrad: the median over rounds."""
    return result["contenders"].get(name, {}).get("ratio", {}).get("median")


def peers(result: Result) -> list[str]:
    """The others that are compared."""
    return [name for name in result["contenders"] if name not in (OWN, *PARTS, *LIMITS)]


def best_peer(result: Result) -> str | None:
    """The fastest of the others in the same rounds; by its time where spgrad has none."""
    for figure in (ratio, median):
        found = {name: figure(result, name) for name in peers(result)}
        known = {name: value for name, value in found.items() if value is not None}
        if known:
            return min(known, key=lambda name: known[name])
    return None


def best_ratio(result: Result) -> float | None:
    best = best_peer(result)
    return ratio(result, best) if best else None


def share(result: Result) -> tuple[float, str] | None:
    """The time of the limit over spgrad's, and the name of the limit."""
    for name in LIMITS:
        found = ratio(result, name)
        if found is not None:
            return found, name
    return None


def kind(result: Result) -> str:
    """The types of values and indices, in short."""
    index = result.get("index", "int32")
    return result["dtype"] if index == "int32" else f"{result['dtype']}, {index}"


def means(results: list[Result]) -> Iterator[tuple[str, int, str, dict[str, tuple[float, int]]]]:
    """(op, threads, types, {peer or "best" or "share": (geometric mean of ratios, cells)})."""
    groups = dict.fromkeys((r["op"], r["threads"], kind(r)) for r in results)
    for group in groups:
        cells = [r for r in results if (r["op"], r["threads"], kind(r)) == group]
        names = dict.fromkeys(name for r in cells for name in peers(r))
        found = {name: [ratio(r, name) for r in cells] for name in names}
        found["best"] = [best_ratio(r) for r in cells]
        found["share"] = [known[0] for r in cells if (known := share(r))]
        known = {name: [v for v in values if v is not None] for name, values in found.items()}
        yield (
            *group,
            {
                name: (statistics.geometric_mean(values), len(values))
                for name, values in known.items()
                if values
            },
        )


def behind(results: list[Result]) -> list[tuple[float, Result]]:
    """(peer / spgrad, result) of the cells in which a peer is faster, the worst first."""
    found = [(value, r) for r in results if (value := best_ratio(r)) is not None and value < 1]
    return sorted(found, key=lambda pair: pair[0])


def over(result: Result, name: str) -> float | None:
    """How many times longer spgrad takes than one of the others: the median over rounds."""
    part = ratio(result, name)
    return 1 / part if part else None


def over_forward(results: list[Result]) -> Iterator[tuple[Result, float]]:
    """(result, time over that of A x alone) of spgrad's steps: the median over rounds."""
    for result in results:
        found = over(result, FORWARD)
        if result["op"] == "step" and found is not None:
            yield result, found


def key(result: Result, *without: str) -> tuple[Any, ...]:
    """What identifies a cell among runs; without some fields, a group of cells."""
    return tuple(result.get(field) for field in FIELDS if field not in without)


def changes(old: list[Result], new: list[Result]) -> Iterator[tuple[Result, float, float]]:
    """(result, seconds before, seconds now) of spgrad, for cells of both runs."""
    before = {key(result): median(result, OWN) for result in old}
    for result in new:
        was, now = before.get(key(result)), median(result, OWN)
        if was is not None and now is not None:
            yield result, was, now
