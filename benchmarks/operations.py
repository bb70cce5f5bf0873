"""What is measured: the operations, their operands, and what SciPy in float64 makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import formulas
from benchmarks.matrices import MATRICES, SMALLEST
from benchmarks.problems import Problem
from benchmarks.selection import columns_slice, row, rows_listed, rows_slice
from benchmarks.solves import formulas as systems

Formula = Callable[[Any], tuple[Any, ...]]
Given = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]


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
        fixed: Operands without a gradient.
        square: True where the matrix has to be.
        full: True where it has to be small enough to be dense.
        blocked: True where the matrix has to be made of dense blocks.
        assume: What has to be known of the matrix, as `Matrix.assume` says it; "" for nothing.
        most: Rows that the matrix may have; 0 for any number.
        dtypes: Those that it makes sense in; empty for all.
        compared: What of its results is compared, from a problem in float64 and the results, such
            as a residual; `formula` then gives what that has to be. None for the results.
        bounds: How far each may be from the formula's, from a problem and these, where that is not
            in proportion to `sizes`.
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
    fixed: tuple[str, ...] = ()
    square: bool = False
    full: bool = False
    blocked: bool = False
    assume: str = ""
    most: int = 0
    dtypes: tuple[str, ...] = ()
    compared: Given | None = None
    bounds: Given | None = None

    @property
    def smallest(self) -> str:
        """The matrix to try it on."""
        return SMALLEST[self.assume]

    @property
    def dense(self) -> bool:
        """False where k means nothing, for lack of an operand with k columns."""
        return not {"x", "g"}.isdisjoint(self.operands)

    @property
    def asks_for(self) -> str:
        """The operation that a contender has to offer."""
        return self.function or self.name

    def applies(self, problem: Problem) -> bool:
        rows, columns = problem.shape
        small = rows * columns <= _MOST or not self.full
        blocks = MATRICES[problem.matrix].block > 0 or not self.blocked
        fits = small and blocks and (rows == columns or not self.square)
        known = MATRICES[problem.matrix].assume == self.assume or not self.assume
        number = problem.dtype in self.dtypes or not self.dtypes
        return fits and known and number and (rows <= self.most or not self.most)


def _iterative(name: str, title: str, **more: Any) -> Op:
    """A system to the same residual, which float32 does not reach on large grids."""
    given: dict[str, Any] = {
        "formula": systems.zeros(1),
        "compared": systems.residual,
        "bounds": systems.tolerated,
        **more,
    }
    return Op(name, title, "solve", _SYSTEM, dtypes=("float64",), assume=_DEFINITE, **given)


def _direct(name: str, title: str, row: str, **more: Any) -> Op:
    types = ("float64", "float32")
    return Op(name, title, row, dtypes=types, assume=_DEFINITE, most=_MOST_ROWS, **more)


_A, _AB, _AX = ("S",), ("S", "B"), ("S", "x")
_ATTENTION = ("mask", "query", "x", "value")
_SYSTEM, _DEFINITE = ("S", "column"), "positive definite"
_MOST = 50_000_000  # elements of a dense matrix
_MOST_ROWS = 200_000  # of a matrix that is factored

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
            "spmm_bsr",
            "A x, A in BSR",
            "mm",
            ("stored", "x"),
            lambda p: (p.filled @ p.x,),
            blocked=True,
        ),
        Op(
            "step_bsr",
            "A x, dA and dx, A in BSR",
            "mm",
            ("stored", "x"),
            formulas.step_bsr,
            function="spmm_bsr",
            cotangent="g",
            blocked=True,
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
        Op("from_dense", "dense to CSR", "from_dense", ("full",), lambda p: (p.S,), full=True),
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
        Op(
            "attention",
            "sparse attention",
            "scaled_dot_product_attention",
            _ATTENTION,
            formulas.attention,
            formulas.attention_sizes,
        ),
        Op(
            "attention_step",
            "sparse attention, dQ, dK, dV",
            "scaled_dot_product_attention",
            _ATTENTION,
            formulas.attention_step,
            formulas.attention_step_sizes,
            function="attention",
            cotangent="g",
            fixed=("mask",),
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
        _iterative("cg", "CG to 1e-6"),
        _iterative("cg_ic0", "CG with incomplete Cholesky, to 1e-6"),
        _iterative("cg_amg", "CG with multigrid, to 1e-6"),
        _iterative(
            "cg_50",
            "50 steps of CG",
            formula=systems.steps,
            compared=None,
            bounds=systems.steps_bounds,
        ),
        _iterative(
            "cg_50_step",
            "50 steps of CG, dA and db",
            formula=systems.steps_and_gradients,
            compared=None,
            bounds=systems.steps_bounds,
            function="cg_50",
            cotangent="covector",
        ),
        Op(
            "triangular",
            "x with L x = b",
            "solve_triangular",
            ("S", "g"),
            systems.zeros(1),
            assume="triangular",
            dtypes=("float64", "float32"),
            compared=systems.substitution_error,
            bounds=systems.substitution_bound,
        ),
        _direct(
            "solve_step",
            "factor and solve, dA and db, new pattern",
            "solve",
            operands=_SYSTEM,
            formula=systems.zeros(3),
            compared=systems.backward_errors,
            bounds=systems.DIRECT_STEP,
            function="solve",
            cotangent="covector",
            new=True,
        ),
        _direct(
            "refactor",
            "factor again and solve",
            "factor",
            operands=_SYSTEM,
            formula=systems.zeros(1),
            compared=systems.backward_error,
            bounds=systems.DIRECT,
        ),
        _direct(
            "logdet_step",
            "log |A| and dA, new pattern",
            "logdet",
            operands=_A,
            formula=systems.logdet,
            compared=systems.logdet_compared,
            bounds=systems.logdet_bounds,
            function="logdet",
            cotangent="y",
            new=True,
        ),
    )
}
"""Name -> operation."""

SOLVERS = tuple(name for name, op in OPS.items() if op.assume)
"""Those that only make sense for matrices of which something is known."""
