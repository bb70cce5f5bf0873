"""Incomplete factorisations, on the pattern of the matrix."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern, View
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentKindError, PivotError
from spgrad.lowering.views import cols, item_offsets, rows
from spgrad.ops.solves.triangular import place, square_operand
from spgrad.public import public_op


class _Part(NamedTuple):
    """One triangle of a matrix, with its diagonal."""

    pattern: Pattern  # CSR
    source: torch.Tensor  # where each of its values stands among those of the row view
    diagonal: torch.Tensor  # whether each is on the diagonal


@public_op
def incomplete_cholesky(
    A: torch.Tensor, *, shift: float = 0.0, relaxation: float = 0.0
) -> SparseTensor:
    """L with L L^H = A at the elements of the lower triangle of A, and none elsewhere: IC(0).

    A preconditioner of conjugate gradients (Meijerink and van der Vorst, 1977). Apply it with two
    solves, ``solve_triangular(L, r, upper=False)`` and ``solve_triangular(L.mH, y, upper=True)``.

    Args:
        A: Sparse (*b, m, m), Hermitian and positive definite, float32, float64, complex64 or
            complex128. Its upper triangle is not read.
        shift: The diagonal is multiplied by 1 + shift, for matrices whose factorisation breaks down
            (Manteuffel, 1980).
        relaxation: From 0 to 1. What L L^H has where A has no element is subtracted, times this
            number, from the diagonal elements of its row and its column (Gustafsson, 1978; Axelsson
            and Lindskog, 1986). With 1, a real L L^H has the row sums of A. For discretised
            elliptic equations, 0.99 saves more steps the finer the mesh is. For other matrices it
            may take more steps than 0, or a pivot may not be positive.

    Returns:
        CSR SparseTensor L on the lower triangle of `A`, which requires no gradient. Matrices that
        share their pattern get the same pattern.

    Gradient:
        None; `A` counts as constant.

    Cost:
        For each element (i, j), the length of row j; with a relaxation, for each column the square
        of its length. On one thread, O(m) memory. Indices are computed once for each pattern.

    Raises:
        TypeError: `A` is not sparse, or an option is not a number.
        ValueError: `A` is not square or has another dtype, or `relaxation` is not in [0, 1].
        PivotError: A pivot is missing or not positive; the error names its row.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
        >>> spgrad.incomplete_cholesky(A).to_dense()
        tensor([[2., 0.],
                [1., 2.]])
    """
    T = square_operand("A", A)
    if not isinstance(shift, (int, float)) or not math.isfinite(shift):
        raise ArgumentKindError(
            f"`shift` is {shift!r}; a finite number is accepted. Begin with 0.01 where a pivot is "
            "not positive."
        )
    _require_relaxation(relaxation)
    lower = _side(T._pattern, upper=False)
    vals = _in_rows(T)[lower.source]
    if shift:
        vals = torch.where(lower.diagonal, (1 + shift) * vals, vals)
    hint = "Give a larger `shift`."
    if relaxation:
        hint = "Give a smaller `relaxation`, or a larger `shift`."
        ptr, idx, order = cols(lower.pattern)[:3]
        assert order is not None
        by_columns, failed = kernels.relaxed_cholesky(ptr, idx, vals[order], relaxation)
        found = torch.empty_like(by_columns)
        found[order] = by_columns
    else:
        view = rows(lower.pattern)
        found, failed = kernels.incomplete_cholesky(view.ptr, view.idx, vals)
    _require_pivot(int(failed), T._pattern, "no positive pivot", hint)
    return SparseTensor(found, lower.pattern)


@public_op
def incomplete_lu(A: torch.Tensor, *, relaxation: float = 0.0) -> tuple[SparseTensor, SparseTensor]:
    """L and U with L U = A at the elements of A, and none elsewhere: ILU(0).

    A preconditioner (Saad, 2003, section 10.3). Apply it with two solves:
    ``solve_triangular(L, r, upper=False, unitriangular=True)``, then
    ``solve_triangular(U, y, upper=True)``.

    Args:
        A: Sparse (*b, m, m), float32, float64, complex64 or complex128, with all of its diagonal.
        relaxation: From 0 to 1. What L U has where a row of A has no element is subtracted, times
            this number, from the diagonal element of the row, as in
            `spgrad.incomplete_cholesky`. With 1, L U has the row sums of A.

    Returns:
        CSR SparseTensors L, with a diagonal of ones, and U, which require no gradient. Matrices
        that share their pattern get the same two patterns.

    Gradient:
        None; `A` counts as constant.

    Cost:
        For each element (i, j) left of the diagonal, the length of row j; on one thread.
        O(m + nse) memory. Indices are computed once for each pattern.

    Raises:
        TypeError: `A` is not sparse, or `relaxation` is not a number.
        ValueError: `A` is not square or has another dtype, or `relaxation` is not in [0, 1].
        PivotError: A pivot is missing or zero; the error names its row.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
        >>> L, U = spgrad.incomplete_lu(A)
        >>> L.to_dense(), U.to_dense()
        (tensor([[1.0000, 0.0000],
                [0.5000, 1.0000]]), tensor([[4., 2.],
                [0., 4.]]))
    """
    T = square_operand("A", A)
    _require_relaxation(relaxation)
    view = rows(T._pattern)
    found, failed = kernels.incomplete_lu(view.ptr, view.idx, _in_rows(T), relaxation)
    hint = "Add a multiple of the identity matrix, or reorder the rows."
    _require_pivot(int(failed), T._pattern, "a zero or missing pivot", hint)
    lower, upper = (_side(T._pattern, upper=side) for side in (False, True))
    left = found[lower.source].masked_fill_(lower.diagonal, 1)
    return SparseTensor(left, lower.pattern), SparseTensor(found[upper.source], upper.pattern)


def _require_relaxation(relaxation: float) -> None:
    checks.require_number("relaxation", relaxation, "Begin with 0.99.", least=0, most=1)


def _in_rows(A: SparseTensor) -> torch.Tensor:
    """The values of a matrix or batch in the order of its row view, as constants."""
    vals, view = plain(A._vals.detach()).reshape(-1), rows(A._pattern)
    return vals if view.perm is None else vals.index_select(0, view.perm)


def _require_pivot(row: int, pattern: Pattern, what: str, hint: str) -> None:
    if row >= 0:
        raise PivotError(
            f"`A` gives {what} in row {place(row, pattern)}; pivots that can be divided by are "
            f"accepted. {hint}"
        )


def _side(pattern: Pattern, *, upper: bool) -> _Part:
    """A triangle of a matrix; the index work is done once, and kept on the pattern."""

    def find(pattern: Pattern) -> _Part:
        view = rows(pattern)
        row = kernels.expand(view.ptr, view.idx.shape[0])
        inside = view.idx >= row if upper else view.idx <= row
        source = inside.nonzero().squeeze(1)
        row, column = row[source], view.idx[source]
        ptr = kernels.compress(row.contiguous(), pattern.extent[0])
        dtype = pattern.indices[0].dtype
        found = Pattern(torch.sparse_csr, tuple(pattern.shape), (ptr.to(dtype), column.to(dtype)))
        offsets = item_offsets(found, pattern.matrix[1])
        if isinstance(offsets, torch.Tensor):
            own = found.indices[1] - offsets.to(dtype)
            found = Pattern(torch.sparse_csr, tuple(pattern.shape), (found.indices[0], own))
        found.keep(kept.ROWS, View(ptr, column, None, pattern.extent[1]))
        return _Part(found, source, row == column)

    return pattern.derive(kept.TRIANGLE.of(upper), find)
