"""What is measured: the operations, their operands, and what SciPy in float64 makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks import formulas
from benchmarks.matrices import MATRICES
from benchmarks.problems import Problem
from benchmarks.selection import columns_slice, row, rows_listed, rows_slice

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
        fixed: Operands without a gradient.
        square: True where the matrix has to be.
        full: True where it has to be small enough to be dense.
        blocked: True where the matrix has to be made of dense blocks.
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
        return small and blocks and (rows == columns or not self.square)


_A, _AB, _AX = ("S",), ("S", "B"), ("S", "x")
_ATTENTION = ("mask", "query", "x", "value")
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
    )
}
"""Name -> operation."""
