"""What is measured: the operations, their operands, and what SciPy in float64 makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.matrices import load


@dataclass(frozen=True)
class Problem:
    """One matrix with the dense operands that belong to it.

    Attributes:
        matrix: Its name.
        k: Columns of the dense operands.
        dtype: "float32" or "float64".
        layout: That of spgrad's sparse operand: "csr", "csc" or "coo".
        index: "int32" or "int64", for the libraries that take either.
    """

    matrix: str
    k: int = 32
    dtype: str = "float32"
    layout: str = "csr"
    index: str = "int32"

    @cached_property
    def S(self) -> Any:  # noqa: N802
        """csr_array (m, n)."""
        return load(self.matrix, self.dtype)

    @cached_property
    def x(self) -> np.ndarray:
        """(n, k)."""
        return self._normal(self.S.shape[1], 1)

    @cached_property
    def g(self) -> np.ndarray:
        """(m, k), the cotangent of A x."""
        return self._normal(self.S.shape[0], 2)

    @cached_property
    def shuffled(self) -> sp.coo_array:
        """S in random order, every other entry as two that add."""
        S = self.S.tocoo()
        again = np.arange(0, S.nnz, 2)
        order = np.random.default_rng(3).permutation(np.concatenate([np.arange(S.nnz), again]))
        return sp.coo_array((S.data[order], (S.row[order], S.col[order])), shape=S.shape)

    @property
    def needed(self) -> int:
        """Bytes of operands, result and gradients of a step, A in CSR with int32 indices."""
        A = self.S.data.nbytes + self.S.indices.nbytes + self.S.indptr.nbytes
        return A + self.S.data.nbytes + 2 * self.x.nbytes + self.g.nbytes

    @property
    def operands(self) -> int:
        """The part of `needed` that is there before the step."""
        return self.needed - self.S.data.nbytes - self.x.nbytes - self.g.nbytes

    def _normal(self, rows: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal((rows, self.k)).astype(self.dtype)


Formula = Callable[[Any, Any, Any, Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
        name: What the command line calls it.
        title: What it computes.
        row: The row of spgrad's support table that answers.
        formula: Its results from S, x, g and the shuffled S; also on their absolute values,
            which bounds the rounding error.
        dense: False where there is no dense operand, so that k means nothing.
        square: True where the matrix has to be.
    """

    name: str
    title: str
    row: str
    formula: Formula
    dense: bool = True
    square: bool = False

    def applies(self, problem: Problem) -> bool:
        rows, columns = problem.S.shape
        return rows == columns or not self.square


def _sampled(S: Any, x: np.ndarray, g: np.ndarray) -> sp.csr_array:
    """g x^T at the elements of S, a block of elements at a time."""
    row, col = S.tocoo().coords
    val = np.empty(S.nnz)
    for at in range(0, S.nnz, 65_536):
        part = slice(at, at + 65_536)
        val[part] = np.einsum("ij,ij->i", g[row[part]], x[col[part]])
    return sp.csr_array((val, S.indices, S.indptr), shape=S.shape)


def _step(S: Any, x: Any, g: Any, shuffled: Any) -> tuple[Any, ...]:
    return S @ x, _sampled(S, x, g), S.T @ g


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("spmm", "A x", "mm", lambda S, x, g, _: (S @ x,)),
        Op("spmv", "A x, one column", "mv", lambda S, x, g, _: (S @ x[:, 0],), dense=False),
        Op("transposed", "Aᵀ g", "matmul", lambda S, x, g, _: (S.T @ g,)),
        Op("step", "A x, dA and dx", "mm", _step),
        Op("first", "A x, dA and dx, new pattern", "mm", _step),
        Op(
            "sddmm", "g xᵀ on the pattern", "sampled_addmm", lambda S, x, g, _: (_sampled(S, x, g),)
        ),
        Op("spgemm", "A A", "matmul", lambda S, x, g, _: (S @ S,), dense=False, square=True),
        Op("coalesce", "coalesce A", "coalesce", lambda S, x, g, C: (C.tocsr(),), dense=False),
        Op("to_csc", "CSR to CSC", "to_sparse_csc", lambda S, x, g, _: (S,), dense=False),
    )
}
"""Name -> operation."""


class WrongResultError(Exception):
    """A contender's result is further from SciPy's in float64 than rounding explains."""


@dataclass(frozen=True)
class Expected:
    """The results of an operation in float64, and how far rounding may be from each."""

    results: tuple[Any, ...]
    bounds: tuple[Any, ...]

    @classmethod
    def of(cls, op: Op, problem: Problem) -> Expected:
        """A sum of n products has an error of at most (n + 2) eps times that of their sizes."""
        wide = [a.astype(np.float64) for a in (problem.S, problem.x, problem.g, problem.shuffled)]
        S = problem.S
        terms = max(np.diff(S.indptr).max(), np.bincount(S.indices).max(), problem.k)
        unit = float((terms + 2) * np.finfo(problem.dtype).eps)
        sizes = op.formula(*(abs(a) for a in wide))
        return cls(op.formula(*wide), tuple(size * unit for size in sizes))

    def check(self, found: tuple[Any, ...]) -> None:
        """Compares NumPy or SciPy results with these.

        Raises:
            WrongResultError: One differs.
        """
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
