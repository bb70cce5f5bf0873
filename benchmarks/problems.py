"""What is measured: the operations, their operands, and what SciPy in float64 makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import formulas
from benchmarks.matrices import load, with_values
from benchmarks.selection import columns_slice, row, rows_listed, rows_slice


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
    def column(self) -> np.ndarray:
        """(n,)."""
        return np.ascontiguousarray(self.x[:, 0])

    @cached_property
    def factors(self) -> np.ndarray:
        """(m, 1), one for each row."""
        return np.ascontiguousarray(self.g[:, :1])

    @cached_property
    def B(self) -> Any:  # noqa: N802
        """csr_array (m, n): half of the elements of S, the others elsewhere in their rows."""
        rng = np.random.default_rng(4)
        row, col = self.S.tocoo().coords
        elsewhere = rng.integers(0, self.S.shape[1], len(col))
        pairs = row, np.where(rng.random(len(col)) < 0.5, col, elsewhere)
        B = sp.coo_array((np.ones(len(row)), pairs), shape=self.S.shape).tocsr()
        return with_values(B, rng, self.dtype)

    @cached_property
    def shuffled(self) -> sp.coo_array:
        """S in random order, every other entry as two that add."""
        S = self.S.tocoo()
        again = np.arange(0, S.nnz, 2)
        order = np.random.default_rng(3).permutation(np.concatenate([np.arange(S.nnz), again]))
        return sp.coo_array((S.data[order], (S.row[order], S.col[order])), shape=S.shape)

    @cached_property
    def C(self) -> sp.coo_array:  # noqa: N802
        """S in COO, in order."""
        C = self.S.tocoo()
        C.has_canonical_format = True
        return C

    @cached_property
    def blocks(self) -> sp.bsr_array:
        """S in blocks of 2 x 2, one row or column larger if it has to be."""
        S = self.S.copy()
        m, n = self.S.shape
        S.resize(m + m % 2, n + n % 2)
        blocks = S.tobsr((2, 2))
        blocks.sort_indices()
        return blocks

    @cached_property
    def even(self) -> Any:
        """S, as large as `blocks`."""
        S: Any = self.S.copy()
        m, n = self.S.shape
        S.resize(m + m % 2, n + n % 2)
        return S

    @cached_property
    def full(self) -> np.ndarray:
        """S as a dense array."""
        return self.S.toarray()

    @cached_property
    def small(self) -> Any:
        """csr_array (3, 3) of four elements."""
        val = np.array([2, -1, 3, 1], dtype=self.dtype)
        return sp.csr_array((val, ([0, 0, 1, 2], [0, 2, 1, 0])), shape=(3, 3))

    @cached_property
    def chosen(self) -> np.ndarray:
        """Numbers of rows, in any order, some of them twice: a quarter as many as there are."""
        m = self.S.shape[0]
        return np.random.default_rng(5).integers(0, m, m // 4)

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


Formula = Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
        name: What the command line calls it.
        title: What it computes.
        row: The row of spgrad's support table that answers.
        operands: Names of those that a contender is given, as attributes of a problem.
        formula: Its results from a problem in float64; also from the absolute values, which bounds
            the rounding error where `sizes` does not.
        sizes: What the rounding error of each result is in proportion to.
        function: The operation that a contender has to offer for it, if it is not this one.
        new: True if the sparse operands of each call have a pattern not seen before.
        cotangent: "g" if gradients of the operands belong to it, or "y" if they do and the
            result is its own cotangent.
        square: True where the matrix has to be.
        full: True where it has to be small enough to be dense.
    """

    name: str
    title: str
    row: str
    operands: tuple[str, ...]
    formula: Formula
    sizes: Formula | None = None
    function: str = ""
    new: bool = False
    cotangent: str = ""
    square: bool = False
    full: bool = False

    @property
    def dense(self) -> bool:
        """False where k means nothing, for lack of an operand with k columns."""
        return not {"x", "g"}.isdisjoint(self.operands)

    @property
    def asks_for(self) -> str:
        """The operation that a contender has to offer."""
        return self.function or self.name

    def applies(self, problem: Problem) -> bool:
        rows, columns = problem.S.shape
        small = rows * columns <= _MOST or not self.full
        return small and (rows == columns or not self.square)


_A, _AB, _AX = ("S",), ("S", "B"), ("S", "x")
_MOST = 50_000_000  # elements of a dense matrix

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("spmm", "A x", "mm", _AX, lambda p: (p.S @ p.x,)),
        Op("spmv", "A x, one column", "mv", ("S", "column"), lambda p: (p.S @ p.column,)),
        Op("transposed", "Aᵀ g", "matmul", ("S", "g"), lambda p: (p.S.T @ p.g,), function="spmm"),
        Op("step", "A x, dA and dx", "mm", _AX, formulas.step, function="spmm", cotangent="g"),
        Op(
            "first",
            "A x, dA and dx, new pattern",
            "mm",
            _AX,
            formulas.step,
            function="spmm",
            new=True,
            cotangent="g",
        ),
        Op(
            "sddmm",
            "g xᵀ on the pattern",
            "sampled_addmm",
            ("S", "g", "x"),
            lambda p: (formulas.sampled(p.S, p.x, p.g),),
        ),
        Op("spgemm", "A A", "matmul", ("S", "S"), lambda p: (p.S @ p.S,), new=True, square=True),
        Op("coalesce", "coalesce A", "coalesce", ("shuffled",), lambda p: (p.shuffled.tocsr(),)),
        Op("to_csc", "CSR to CSC", "to_sparse_csc", _A, lambda p: (p.S,), new=True),
        Op("to_coo", "CSR to COO", "to_sparse_coo", _A, lambda p: (p.S,), new=True),
        Op("from_coo", "COO to CSR", "to_sparse_csr", ("C",), lambda p: (p.S,), new=True),
        Op("to_bsr", "CSR to BSR", "to_sparse_bsr", ("even",), lambda p: (p.even,), new=True),
        Op("from_bsr", "BSR to CSR", "to_sparse_csr", ("blocks",), lambda p: (p.even,), new=True),
        Op("to_dense", "CSR to dense", "to_dense", _A, lambda p: (p.full,), new=True, full=True),
        Op("from_dense", "dense to CSR", "to_sparse_csr", ("full",), lambda p: (p.S,), full=True),
        Op("transpose", "CSR of Aᵀ", "to_sparse_csr", _A, lambda p: (p.S.T,), new=True),
        Op("transpose_coo", "COO of Aᵀ", "t", ("C",), lambda p: (p.S.T,), new=True),
        Op("cat_rows", "A above B", "cat", _AB, lambda p: (sp.vstack([p.S, p.B]),), new=True),
        Op("cat_columns", "A beside B", "cat", _AB, lambda p: (sp.hstack([p.S, p.B]),), new=True),
        Op("tril", "lower triangle", "tril", _A, lambda p: (sp.tril(p.S, format="csr"),), new=True),
        Op("flip_rows", "rows reversed", "flip", _A, lambda p: (p.S[::-1],), new=True),
        Op("flip_columns", "columns reversed", "flip", _A, lambda p: (p.S[:, ::-1],), new=True),
        Op("kron", "A ⊗ B, B 3 x 3", "kron", ("S", "small"), formulas.kron, new=True),
        Op("row", "one row", "getitem", _A, lambda p: (row(p.S).toarray(),), new=True),
        Op("rows_slice", "a slice of rows", "getitem", _A, lambda p: (rows_slice(p.S),), new=True),
        Op(
            "columns_slice",
            "a slice of columns",
            "getitem",
            _A,
            lambda p: (columns_slice(p.S),),
            new=True,
        ),
        Op(
            "rows_listed",
            "rows in a list",
            "index_select",
            ("S", "chosen"),
            lambda p: (rows_listed(p.S, p.chosen.astype(np.int64)),),
            new=True,
        ),
        Op("sin", "sin(A)", "sin", _A, lambda p: (p.S.sin(),)),
        Op("add", "A + B, new patterns", "add", _AB, lambda p: (p.S + p.B,), new=True),
        Op("add_kept", "A + B", "add", _AB, lambda p: (p.S + p.B,), function="add"),
        Op(
            "times",
            "A * B, new patterns",
            "mul",
            _AB,
            lambda p: (p.S.multiply(p.B).tocsr(),),
            new=True,
        ),
        Op(
            "scale",
            "A * v, v one column",
            "mul",
            ("S", "factors"),
            lambda p: (p.S.multiply(p.factors).tocsr(),),
        ),
        Op("sum_rows", "sums of rows", "sum", _A, lambda p: (p.S.sum(axis=1),)),
        Op("sum_columns", "sums of columns", "sum", _A, lambda p: (p.S.sum(axis=0),)),
        Op("amax_rows", "maxima of rows", "amax", _A, lambda p: (p.S.max(axis=1).toarray(),)),
        Op(
            "amax_specified",
            "maxima of rows, specified elements",
            "amax",
            _A,
            formulas.amax_specified,
        ),
        Op(
            "softmax",
            "softmax of rows",
            "softmax",
            _A,
            formulas.softmax,
            formulas.softmax_sizes,
        ),
        Op(
            "softmax_step",
            "softmax of rows, and dA",
            "softmax",
            _A,
            formulas.softmax_step,
            formulas.softmax_step_sizes,
            function="softmax",
            cotangent="y",
        ),
        Op("mm_mean", "A x, mean", "mm", _AX, formulas.mm_mean),
        Op("mm_amax", "A x, maximum", "mm", _AX, formulas.mm_amax),
        Op(
            "mm_amax_step",
            "A x, maximum, dA and dx",
            "mm",
            _AX,
            formulas.mm_amax_step,
            formulas.mm_amax_step_sizes,
            function="mm_amax",
            cotangent="g",
        ),
    )
}
"""Name -> operation."""


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
    """The results of an operation in float64, and how far rounding may be from each."""

    results: tuple[Any, ...]
    bounds: tuple[Any, ...]

    @classmethod
    def of(cls, op: Op, problem: Problem) -> Expected:
        """A sum of n products has an error of at most (n + 2) eps times that of their sizes."""
        wide = _Wide(problem, lambda a: a)
        sizes = op.sizes(wide) if op.sizes else op.formula(_Wide(problem, abs))
        S = problem.S
        terms = max(np.diff(S.indptr).max(), np.bincount(S.indices).max(), problem.k)
        unit = float((terms + 2) * np.finfo(problem.dtype).eps)
        return cls(op.formula(wide), tuple(abs(size) * unit for size in sizes))

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
