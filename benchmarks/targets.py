"""What spgrad sets itself, and whether a run meets it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.matrices import ALL_KINDS
from benchmarks.operations import OPS
from benchmarks.summary import OWN, Result, best_ratio, kind, median, ratio

Figure = Callable[[Result], "float | None"]

COLUMNS = (32, 128)
_LIMITED = ("social", "bipartite", "power-law-2m")
_USUAL = "float32"


@dataclass(frozen=True)
class Target:
    """A bound for a figure of every cell, or for the geometric mean of them.

    Attributes:
        title: What is asked.
        op: Of which operation.
        bound: The least figure; the greatest one of memory.
        figure: From a result.
        each: True where every cell has to meet it; else the mean does.
        memory: Whether it is about memory.
        matrices: About which it is.
    """

    title: str
    op: str
    bound: float
    figure: Figure
    each: bool = False
    memory: bool = False
    matrices: tuple[str, ...] = ALL_KINDS


@dataclass(frozen=True)
class Finding:
    """A target on a number of threads: the mean of its figures, and the worst and where."""

    target: Target
    threads: int
    mean: float
    worst: float
    where: str
    cells: int

    @property
    def met(self) -> bool:
        if self.target.memory:
            return self.worst <= self.target.bound
        return (self.worst if self.target.each else self.mean) >= self.target.bound


def _against(name: str) -> Figure:
    return lambda result: ratio(result, name)


def _multiple(result: Result) -> float | None:
    return result["contenders"].get(OWN, {}).get("multiple")


_OTHERS = {
    "sddmm": "g xᵀ on the pattern",
    "spgemm": "A A",
    "softmax": "softmax of rows",
    "sum_rows": "sums of rows",
    "amax_rows": "maxima of rows",
    "coalesce": "coalesce",
    "transpose": "CSR of Aᵀ",
}

TARGETS = (
    Target("A x 1.6 times as fast as the best peer", "spmm", 1.6, best_ratio),
    Target("A x nowhere slower than the best peer", "spmm", 0.95, best_ratio, each=True),
    Target(
        "A x at 80 % of the gather limit",
        "spmm",
        0.8,
        _against("gather limit"),
        each=True,
        matrices=_LIMITED,
    ),
    Target("A x with gradients 5 times as fast as the best peer", "step", 5, best_ratio),
    Target(
        "and 15 times as fast as torchsparsegradutils",
        "step",
        15,
        _against("torchsparsegradutils"),
    ),
    Target(
        "its memory at most 1.2 x (operands + result + gradients)",
        "step",
        1.2,
        _multiple,
        each=True,
        memory=True,
    ),
    *(
        Target(f"{title} 1.5 times as fast as the best peer", op, 1.5, best_ratio)
        for op, title in _OTHERS.items()
    ),
)


def findings(times: list[Result], memory: list[Result]) -> Iterator[Finding]:
    """Of the targets that the run has figures for."""
    for target in TARGETS:
        given = memory if target.memory else times
        usual = [r for r in given if kind(r) == _USUAL and _counts(r, target)]
        for threads, cells in _by_threads(usual):
            yield from _found(target, threads, ((r, target.figure(r)) for r in cells))
    yield from _of_other_types(times)


def _counts(result: Result, target: Target) -> bool:
    wanted = result["op"] == target.op and result["matrix"] in target.matrices
    return wanted and (result["k"] in COLUMNS or not OPS[result["op"]].dense)


def _by_threads(results: list[Result]) -> Iterator[tuple[int, list[Result]]]:
    for threads in dict.fromkeys(r["threads"] for r in results):
        yield threads, [r for r in results if r["threads"] == threads]


def _found(
    target: Target, threads: int, figures: Iterable[tuple[Result, float | None]]
) -> Iterator[Finding]:
    known = [(value, _place(r)) for r, value in figures if value is not None]
    if known:
        worst, where = max(known) if target.memory else min(known)
        mean = statistics.geometric_mean(value for value, _ in known)
        yield Finding(target, threads, mean, worst, where, len(known))


def _place(result: Result) -> str:
    k = f", k = {result['k']}" if OPS[result["op"]].dense else ""
    return f"{result['matrix']}{k}"


def _of_other_types(times: list[Result]) -> Iterator[Finding]:
    """Ratios of other types to those of float32 and int32, and the time of bfloat16."""
    usual = {_cell(r): r for r in times if kind(r) == _USUAL}
    for op in ("spmm", "step", *_OTHERS):
        mine = [r for r in times if r["op"] == op and kind(r) != _USUAL and _cell(r) in usual]
        for types in dict.fromkeys(kind(r) for r in mine):
            for threads, cells in _by_threads([r for r in mine if kind(r) == types]):
                pairs = [(r, usual[_cell(r)]) for r in cells if r["matrix"] in ALL_KINDS]
                same = Target(
                    f"{op}, {types}: 0.9 of the ratio to the best peer", op, 0.9, best_ratio
                )
                yield from _found(same, threads, ((r, _part(r, was)) for r, was in pairs))
                if types == "bfloat16":
                    fast = Target(f"{op}: bfloat16 not slower than float32", op, 1.0, best_ratio)
                    yield from _found(fast, threads, ((r, _faster(r, was)) for r, was in pairs))


def _cell(result: Result) -> tuple[Any, ...]:
    return tuple(result[field] for field in ("op", "matrix", "k", "threads"))


def _part(result: Result, usual: Result) -> float | None:
    mine, other = best_ratio(result), best_ratio(usual)
    return mine / other if mine and other else None


def _faster(result: Result, usual: Result) -> float | None:
    mine, other = median(result, OWN), median(usual, OWN)
    return other / mine if mine and other else None
