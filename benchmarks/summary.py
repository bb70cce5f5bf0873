"""What the figures say: best peers, means, targets, and changes since an earlier run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.matrices import REAL

Result = dict[str, Any]

OWN = "spgrad"


def median(result: Result, name: str) -> float | None:
    """Seconds of a contender; None where it has none."""
    return result["contenders"].get(name, {}).get("seconds", {}).get("median")


def ratio(result: Result, name: str) -> float | None:
    """How many times longer a peer takes than spgrad: the median over rounds."""
    return result["contenders"].get(name, {}).get("ratio", {}).get("median")


def best_peer(result: Result) -> str | None:
    """The fastest of the others."""
    times = {name: median(result, name) for name in result["contenders"] if name != OWN}
    known = {name: found for name, found in times.items() if found is not None}
    return min(known, key=lambda name: known[name]) if known else None


def means(results: list[Result]) -> Iterator[tuple[str, int, dict[str, tuple[float, int]]]]:
    """(op, threads, {peer or "best": (geometric mean of ratios, cells)})."""
    groups = dict.fromkeys((result["op"], result["threads"]) for result in results)
    for op, threads in groups:
        cells = [r for r in results if (r["op"], r["threads"]) == (op, threads)]
        names = dict.fromkeys(name for r in cells for name in r["contenders"] if name != OWN)
        found = {name: [ratio(r, name) for r in cells] for name in names}
        found["best"] = [ratio(r, best) for r in cells if (best := best_peer(r))]
        known = {name: [v for v in values if v is not None] for name, values in found.items()}
        yield (
            op,
            threads,
            {
                name: (statistics.geometric_mean(values), len(values))
                for name, values in known.items()
                if values
            },
        )


@dataclass(frozen=True)
class Target:
    """What spgrad sets itself: a least ratio to a peer, or a greatest multiple of memory."""

    title: str
    op: str
    peer: str  # "" for memory
    bound: float

    def values(self, times: list[Result], memory: list[Result]) -> list[tuple[float, str]]:
        """The figure of each cell that the target is about, and which cell it is."""
        if self.peer:
            found = ((r, ratio(r, self.peer)) for r in _targeted(times, self.op))
        else:
            found = (
                (r, r["contenders"].get(OWN, {}).get("multiple"))
                for r in _targeted(memory, self.op)
            )
        return [(value, f"{r['matrix']}, k = {r['k']}") for r, value in found if value is not None]


TARGETS = (
    Target("A x at least as fast as torch CSR", "spmm", "torch CSR", 1.0),
    Target("A x at least as fast as torch CSR sum", "spmm", "torch CSR sum", 1.0),
    Target("A x with both gradients 3 times as fast as torch CSR", "step", "torch CSR", 3.0),
    Target(
        "A x with both gradients 3 times as fast as torch CSR sum", "step", "torch CSR sum", 3.0
    ),
    Target("its memory at most 2 x (operands + result + gradients)", "step", "", 2.0),
)


def _targeted(results: Iterable[Result], op: str) -> Iterator[Result]:
    """Real matrices on one thread in float32 with 32 columns or more."""
    wanted = (op, 1, "float32")
    for r in results:
        given = (r["op"], r["threads"], r["dtype"])
        if given == wanted and r["matrix"] in REAL and r["k"] >= 32:
            yield r


def targets(
    times: list[Result], memory: list[Result]
) -> Iterator[tuple[str, float, float, str, bool]]:
    """(title, bound, worst figure, its cell, whether it is met), for targets with figures."""
    for target in TARGETS:
        found = target.values(times, memory)
        if found:
            worst, cell = min(found) if target.peer else max(found)
            met = worst >= target.bound if target.peer else worst <= target.bound
            yield target.title, target.bound, worst, cell, met


def key(result: Result) -> tuple[Any, ...]:
    """What a cell of one run shares with the same cell of another."""
    fields = ("op", "matrix", "k", "threads", "dtype", "layout", "index")
    return tuple(result.get(field) for field in fields)


def changes(old: list[Result], new: list[Result]) -> Iterator[tuple[Result, float, float]]:
    """(result, seconds before, seconds now) of spgrad, for cells of both runs."""
    before = {key(result): median(result, OWN) for result in old}
    for result in new:
        was, now = before.get(key(result)), median(result, OWN)
        if was is not None and now is not None:
            yield result, was, now
