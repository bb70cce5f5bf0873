"""The expected results of an operation, and the largest difference that rounding explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.operations import Op
from benchmarks.problems import Problem

_BFLOAT16 = 8  # units that sums of random numbers stay within, however many there are


class WrongResultError(Exception):
    """A contender's result is further from SciPy's in float64 than rounding explains."""


class _Wide:
    """The operands of a problem in float64, or their absolute values; each made when asked for."""

    def __init__(self, problem: Problem, change: Callable[[Any], Any]) -> None:
        self._problem, self._change = problem, change

    def __getattr__(self, name: str) -> Any:
        return self._change(getattr(self._problem, name).astype(np.float64))


@dataclass(frozen=True)
class Expected:
    """The results of an operation in float64, and the largest rounding error of each.

    `compared` gives the part of a contender's results that is compared; None for the results.
    """

    results: tuple[Any, ...]
    bounds: tuple[Any, ...]
    compared: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None

    @classmethod
    def of(cls, op: Op, problem: Problem) -> Expected:
        """A sum of n products has an error of at most (n + 2) eps times that of their sizes."""
        wide = _Wide(problem, lambda a: a)
        if op.bounds is not None:
            wanted = op.formula(wide)
            compared = None if op.compared is None else partial(op.compared, wide)
            return cls(wanted, op.bounds(problem, wanted), compared)
        sizes = op.sizes(wide) if op.sizes else op.formula(_Wide(problem, abs))
        S = problem.S
        terms = max(np.diff(S.indptr).max(), np.bincount(S.indices).max(), problem.k)
        if problem.dtype == "bfloat16":  # by sums in bfloat16, n eps would allow anything
            unit = _BFLOAT16 * 2.0**-7
        else:
            unit = float((terms + 2) * np.finfo(problem.dtype).eps)
        return cls(op.formula(wide), tuple(abs(size) * unit for size in sizes))

    def check(self, found: tuple[Any, ...]) -> None:
        """Compares NumPy or SciPy results with these.

        Raises:
            WrongResultError: One differs.
        """
        if self.compared is not None:
            found = self.compared(found)
        if len(found) != len(self.results):
            raise WrongResultError(f"{len(found)} results, not {len(self.results)}")
        for i, (result, wanted, bound) in enumerate(
            zip(found, self.results, self.bounds, strict=True)
        ):
            if result.shape != wanted.shape:
                raise WrongResultError(f"result {i}: shape {result.shape}, not {wanted.shape}")
            error = abs(result.astype(np.float64) - wanted)
            if not (error - bound).max() <= 0:  # NaN is wrong too
                raise WrongResultError(f"result {i}: off by up to {error.max():.2g}")
