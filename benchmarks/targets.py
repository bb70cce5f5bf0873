"""What spgrad sets itself, and whether a run meets it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.matrices import ALL_KINDS, BLOCKED, LOCAL, MATRICES
from benchmarks.operations import OPS
from benchmarks.plan import WIDTHS
from benchmarks.summary import EXPANDED, OWN, Result, best_ratio, kind, median, over_forward, ratio

Figure = Callable[[Result], "float | None"]

COLUMNS = (32, 128)
AFAR, NEAR = 2.5, 3.4
"""A step over its own A x, at most: where rows of x come from afar, and where a cache has them."""
_LIMITED = ("social", "bipartite", "power-law-2m")
_USUAL = "float32"


@dataclass(frozen=True)
class Target:
    """A bound for a figure of every cell, or for the geometric mean of them.

    Attributes:
        title: What is asked.
        op: Of which operation.
        bound: The least figure, or the greatest one.
        figure: From a result.
        each: True where every cell has to meet it; else the mean does.
        most: True where the bound is the greatest figure.
        memory: Whether it is about memory.
        matrices: About which it is.
        columns: For which k, where the operation has one.
        types: Of which types of values and indices.
    """

    title: str
    op: str
    bound: float
    figure: Figure
    each: bool = False
    most: bool = False
    memory: bool = False
    matrices: tuple[str, ...] = ALL_KINDS
    columns: tuple[int, ...] = COLUMNS
    types: tuple[str, ...] = (_USUAL,)

    @property
    def widths(self) -> str:
        """The values of k in short."""
        if not OPS[self.op].dense:
            return "-"
        few = len(self.columns) < 3
        ends = f"{self.columns[0]} to {self.columns[-1]}"
        return ", ".join(map(str, self.columns)) if few else ends


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
        figure = self.worst if self.target.each else self.mean
        return figure <= self.target.bound if self.target.most else figure >= self.target.bound


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
_GROWING = {"uniform-1e7": 1.6, "uniform-4e7": 1.7}
_OF_BLOCKS = {"spmm_bsr": ("A x", 2, 1.2), "step_bsr": ("A x with gradients", 3, 1.8)}


def _of_products() -> Iterator[Target]:
    yield Target(
        "A x nowhere slower than the best peer, float32 and float64",
        "spmm",
        1.0,
        best_ratio,
        each=True,
        columns=WIDTHS,
        types=("float32", "float64"),
    )
    for bound, columns in ((1.2, (1, 2, 4)), (1.3, (8, 16)), (1.5, (32, 64, 128, 256))):
        title = f"A x {bound} times as fast as the best peer"
        yield Target(title, "spmm", bound, best_ratio, columns=columns)
    yield Target(
        "A x 1.15 times as fast as oneMKL on local matrices",
        "spmm",
        1.15,
        _against("sparse_dot_mkl"),
        matrices=LOCAL,
        columns=(64, 128, 256),
    )
    for name, bound in _GROWING.items():
        title = f"A x {bound} times as fast as the best peer on {name}"
        yield Target(title, "spmm", bound, best_ratio, matrices=(name,), columns=COLUMNS[:1])
    yield Target(
        "A x at 80 % of the gather limit",
        "spmm",
        0.8,
        _against("gather limit"),
        each=True,
        matrices=_LIMITED,
    )


def _of_steps() -> Iterator[Target]:
    for k, bound in zip(COLUMNS, (8, 5.5), strict=True):
        title = f"A x with gradients {bound} times as fast as the best peer"
        yield Target(title, "step", bound, best_ratio, columns=(k,))
    yield Target(
        "and 15 times as fast as torchsparsegradutils",
        "step",
        15,
        _against("torchsparsegradutils"),
    )
    yield Target(
        "its memory 1.2 x (operands + result + gradients)",
        "step",
        1.2,
        _multiple,
        most=True,
        memory=True,
    )


def _of_blocks() -> Iterator[Target]:
    for op, (what, over_torch, over_csr) in _OF_BLOCKS.items():
        for name, words, bound in (
            ("torch BSR", "torch BSR", over_torch),
            (EXPANDED, "A in CSR", over_csr),
        ):
            title = f"{what}, A in BSR, {bound} times as fast as {words}"
            yield Target(title, op, bound, _against(name), matrices=BLOCKED)


TARGETS = (
    *_of_products(),
    *_of_steps(),
    *_of_blocks(),
    *(
        Target(f"{title} 1.5 times as fast as the best peer", op, 1.5, best_ratio)
        for op, title in _OTHERS.items()
    ),
)


def findings(times: list[Result], memory: list[Result], cache: int = 0) -> Iterator[Finding]:
    """Of the targets that the run has figures for.

    Args:
        times: Its results.
        memory: The same.
        cache: Bytes of the cache that a core has to itself.
    """
    for target in TARGETS:
        given = memory if target.memory else times
        for threads, cells in _by_threads([r for r in given if _counts(r, target)]):
            yield from _found(target, threads, ((r, target.figure(r)) for r in cells))
    yield from _of_own_forward(times, cache)
    yield from _of_other_types(times)


def _counts(result: Result, target: Target) -> bool:
    wanted = result["op"] == target.op and result["matrix"] in target.matrices
    columns = result["k"] in target.columns or not OPS[result["op"]].dense
    return wanted and columns and kind(result) in target.types


def step_bound(result: Result, cache: int) -> float:
    """What a step may take over its own A x at most."""
    size = {"bfloat16": 2, "float32": 4, "float64": 8}[result["dtype"]]
    x = MATRICES[result["matrix"]].shape[1] * result["k"] * size
    return NEAR if result["matrix"] in LOCAL or x <= cache else AFAR


def _of_own_forward(times: list[Result], cache: int) -> Iterator[Finding]:
    """Of steps, by where x is: in the cache, or so far away that to gather it is most of A x."""
    steps = [(r, v) for r, v in over_forward(times) if r["matrix"] in ALL_KINDS]
    steps = [(r, v) for r, v in steps if kind(r) == _USUAL and r["k"] in COLUMNS]
    for bound, where in ((AFAR, "comes from afar"), (NEAR, "lies in the cache")):
        mine = {id(r): v for r, v in steps if step_bound(r, cache) == bound}
        title = f"A x with gradients over A x alone where x {where}"
        target = Target(title, "step", bound, lambda r: None, each=True, most=True)
        for threads, cells in _by_threads([r for r, _ in steps if id(r) in mine]):
            yield from _found(target, threads, ((r, mine[id(r)]) for r in cells))


def _by_threads(results: list[Result]) -> Iterator[tuple[int, list[Result]]]:
    for threads in dict.fromkeys(r["threads"] for r in results):
        yield threads, [r for r in results if r["threads"] == threads]


def _found(
    target: Target, threads: int, figures: Iterable[tuple[Result, float | None]]
) -> Iterator[Finding]:
    more = len(target.types) > 1
    known = [(value, _place(r, more)) for r, value in figures if value is not None]
    if known:
        worst, where = max(known) if target.most else min(known)
        mean = statistics.geometric_mean(value for value, _ in known)
        yield Finding(target, threads, mean, worst, where, len(known))


def _place(result: Result, types: bool) -> str:
    k = f", k = {result['k']}" if OPS[result["op"]].dense else ""
    return f"{result['matrix']}{k}{f', {kind(result)}' if types else ''}"


def _of_other_types(times: list[Result]) -> Iterator[Finding]:
    """Ratios of other types to those of float32 and int32, and the time of bfloat16."""
    usual = {_cell(r): r for r in times if kind(r) == _USUAL}
    for op in ("spmm", "step", *_OTHERS):
        mine = [r for r in times if r["op"] == op and kind(r) != _USUAL and _cell(r) in usual]
        mine = [r for r in mine if r["k"] in COLUMNS or not OPS[op].dense]
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
