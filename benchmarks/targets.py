"""The targets of spgrad, and whether a run meets them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.matrices import ALL_KINDS, BLOCKED, LOCAL, MATRICES, SOLVES
from benchmarks.operations import OPS
from benchmarks.plan import SYSTEMS, WIDTHS
from benchmarks.summary import (
    ALONE,
    ENGINE,
    EXPANDED,
    FACTOR,
    FORWARD,
    OWN,
    PLAIN,
    Result,
    best_ratio,
    kind,
    median,
    over,
    over_forward,
    ratio,
)

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
        title: The target in words.
        op: The operation.
        bound: The least figure that meets it, or the greatest.
        figure: Computes the figure from a result.
        each: True where every cell has to meet it; else the mean does.
        most: True where the bound is the greatest figure.
        memory: Whether it is about memory.
        matrices: The matrices that it is about.
        columns: The values of k, if the operation has one.
        types: The types of values and indices.
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
        return self.margin >= 1

    @property
    def margin(self) -> float:
        """Where the figure stands to its bound; below 1 the target is missed."""
        figure = self.worst if self.target.each else self.mean
        if not self.target.most:
            return figure / self.target.bound
        return self.target.bound / figure if figure > 0 else float("inf")


def _against(name: str) -> Figure:
    return lambda result: ratio(result, name)


def _over(name: str) -> Figure:
    return lambda result: over(result, name)


def _backward(result: Result) -> float | None:
    """What a step takes besides its forward, over that."""
    found = over(result, ALONE)
    return None if found is None else found - 1


def _vectors(result: Result) -> float | None:
    """Growth of the process in a step above that in its forward, in vectors of float64."""
    found = result["contenders"]
    both = [found.get(name, {}).get("growth") for name in (OWN, ALONE)]
    if None in both:
        return None
    return (both[0] - both[1]) / (8 * MATRICES[result["matrix"]].shape[0])


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


def _system(title: str, op: str, bound: float, figure: Figure, **more: Any) -> Target:
    """One that every system has to meet, in float64."""
    types, columns = ("float64",), more.pop("columns", SYSTEMS)
    given = {"each": True, "matrices": SOLVES, "types": types, "columns": columns, **more}
    return Target(title, op, bound, figure, **given)


def _of_solves() -> Iterator[Target]:
    for name, bound in (("SciPy", 2.5), ("torch-sla", 5), ("torchsparsegradutils", 4)):
        yield _system(f"CG {bound} times as fast as {name}", "cg", bound, _against(name))
    for op, what, bound in (("cg_ic0", "incomplete Cholesky", 2), ("cg_amg", "multigrid", 6)):
        title = f"CG with {what} {bound} times as fast as plain CG"
        yield _system(title, op, bound, _against(PLAIN))
    title = "a step of CG over A p and moving its vectors once"
    yield _system(title, "cg_50", 1.25, _over("step limit"), most=True)
    title = "backward of CG above its forward, in vectors of memory"
    yield _system(title, "cg_50_step", 6, _vectors, most=True, memory=True)
    title = "triangular substitution over A x"
    yield _system(title, "triangular", 1.6, _over(FORWARD), most=True)
    for name, bound in (("torch CSR", 8), ("SciPy", 5)):
        title = f"triangular substitution {bound} times as fast as {name}"
        yield _system(title, "triangular", bound, _against(name), columns=SYSTEMS[:1])
    title = "factor, solve and gradients over the engine's factor and two solves"
    yield _system(title, "solve_step", 1.15, _over(ENGINE), most=True)
    title = "factor again and solve over a first factor and solve"
    yield _system(title, "refactor", 1, _over(FACTOR), most=True)
    yield _system("backward of logdet over its forward", "logdet_step", 3, _backward, most=True)


TARGETS = (
    *_of_products(),
    *_of_steps(),
    *_of_blocks(),
    *_of_solves(),
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
    """The largest time of a step over that of its own A x that meets the target."""
    size = {"bfloat16": 2, "float32": 4, "float64": 8}[result["dtype"]]
    x = MATRICES[result["matrix"]].shape[1] * result["k"] * size
    return NEAR if result["matrix"] in LOCAL or x <= cache else AFAR


def _of_own_forward(times: list[Result], cache: int) -> Iterator[Finding]:
    """Targets of steps: for x in the cache, and for x so large that gathering it dominates."""
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
