"""Substitution with a triangular matrix, and its derivative."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern, View
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError, PivotError
from spgrad.lowering import align
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import dense_operand, matrix_operand
from spgrad.lowering.products.diagonals import SOON
from spgrad.lowering.products.spmm import sddmm, wants_grad
from spgrad.lowering.views import Valued, cols, rows
from spgrad.ops.products.broadcast import flat, in_columns
from spgrad.ops.solves.diagonals import Triangle, TriangleByDiagonals, triangle_by_diagonals
from spgrad.public import public_op
from spgrad.torch_protocol.compile import is_real
from spgrad.torch_protocol.func_transforms import Function

SOLVE_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


_FEW = 16
"""Columns up to which a transpose is solved by the lines that a pattern stores. With more, updates
of x cost more than putting the values into the order of the other lines."""


@public_op
def solve_triangular(
    A: torch.Tensor,
    B: torch.Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> torch.Tensor:
    """X with A X = B, or X A = B, for a triangular A, by substitution.

    Args:
        A: Sparse (*b, m, m), float32, float64, complex64 or complex128. The elements of the other
            triangle are ignored, as torch.linalg.solve_triangular does.
        B: Dense (*b, m, n), or a vector (m,); (*b, n, m) with ``left=False``. Batch dimensions
            broadcast.
        upper: True for the upper triangle of `A`, False for the lower one.
        left: False solves X A = B.
        unitriangular: True takes the diagonal as ones; elements that `A` has on the diagonal are
            ignored.

    Returns:
        Dense X, of the shape of `B` with the batch dimensions of both. For the transpose of `A`
        pass ``A.mT`` or ``A.mH`` with the other `upper`.

    Gradient:
        Of `B`: the solution L of A^H L = g. Of `A`: -L X^H at those of its elements that count, 0
        at the others, on its own pattern.

    Cost:
        O(nse n) time. The first solve with the transpose for more than 16 columns, and so the
        first gradient, sorts the pattern by columns, once. If threads share the columns of B, the
        solve takes as much memory again as X, and otherwise none.

    Raises:
        TypeError: `A` is not sparse or `B` not dense.
        ValueError: `A` is not square, or sizes, dtypes or devices don't fit.
        NotImplementedError: `A` has dense dimensions.
        PivotError: The diagonal has a zero or no element in some row; the error names the row.
            Compiled code gives infinities and NaN instead, as torch does. So does a GPU, because
            each solve would have to wait for the GPU to report a zero.

    Example:
        >>> L = spgrad.from_dense(torch.tensor([[2.0, 0.0], [1.0, 4.0]]))
        >>> spgrad.solve_triangular(L, torch.tensor([[2.0], [5.0]]), upper=False)
        tensor([[1.],
                [1.]])
    """
    T, b = _operands(("A", "B"), A, B)
    if b.dim() == 1:
        return _solved(("A", "B"), T, b[:, None], upper, unitriangular, not left).squeeze(-1)
    if left:
        return _solved(("A", "B"), T, b, upper, unitriangular, False)
    return _solved(("A", "B"), T, b.mT, upper, unitriangular, True).mT.contiguous()


@public_op
def triangular_solve(
    b: torch.Tensor,
    A: torch.Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    """X with A X = b, or A^T X = b, for a triangular A, as torch.triangular_solve.

    Args:
        b: Dense (*b, m, n).
        A: Sparse (*b, m, m).
        upper: True for the upper triangle of `A`, also with ``transpose=True``.
        transpose: True solves A^T X = b.
        unitriangular: True takes the diagonal of `A` for ones.

    Returns:
        torch.return_types.triangular_solve: X, and `A`.

    Gradient:
        As `spgrad.solve_triangular`.

    Cost:
        As `spgrad.solve_triangular`.

    Raises:
        TypeError: `A` is not sparse or `b` not dense.
        ValueError: `A` is not square, `b` has no two dimensions, or sizes, dtypes or devices don't
            fit.
        PivotError: The diagonal has a zero or no element in some row; as `spgrad.solve_triangular`.

    Example:
        >>> L = spgrad.from_dense(torch.tensor([[2.0, 0.0], [1.0, 4.0]]))
        >>> torch.triangular_solve(torch.tensor([[2.0], [5.0]]), L, upper=False).solution
        tensor([[1.],
                [1.]])
    """
    T, right = _operands(("A", "b"), A, b)
    if right.dim() < 2:
        hint = "Use spgrad.solve_triangular for a vector."
        raise checks.bad_shape("b", tuple(right.shape), "a matrix or batch of matrices", hint)
    x = _solved(("A", "b"), T, right, upper, unitriangular, transpose)
    return torch.return_types.triangular_solve((x, T))


def square_operand(arg: str, A: Any) -> SparseTensor:
    """`A` without repeated elements, if it is square and of a dtype that solves are defined for."""
    T = without_repeats(matrix_operand(arg, A))
    m, k = T._pattern.matrix
    if m != k:
        hint = "For other matrices there are spgrad.linalg.lstsq and spgrad.linalg.svds."
        raise checks.bad_shape(arg, tuple(T._pattern.shape), "a square matrix or batch", hint)
    dtype = T._vals.dtype
    if dtype not in SOLVE_DTYPES:
        accepted = ", ".join(map(checks.short, SOLVE_DTYPES))
        raise ArgumentValueError(
            f"`{arg}` has dtype {checks.short(dtype)}; {accepted} are accepted. Convert it with "
            f"{arg}.to(torch.float32)."
        )
    return T


def _operands(names: tuple[str, str], A: Any, b: Any) -> tuple[SparseTensor, torch.Tensor]:
    T, right = square_operand(names[0], A), dense_operand(names[1], b)
    checks.require_same_dtype(**{names[0]: T._vals, names[1]: right})
    checks.require_same_device(**{names[0]: T._vals, names[1]: right})
    if right.dim() == 0:
        hint = "Divide by a number with B / number."
        raise checks.bad_shape(names[1], (), "a vector, matrix or batch of matrices", hint)
    return T, right


def _solved(
    names: tuple[str, str],
    A: SparseTensor,
    b: torch.Tensor,
    upper: bool,
    unit: bool,
    transpose: bool,
) -> torch.Tensor:
    """The solution (*batch, m, n) for the right-hand sides b (*batch, m, n)."""
    pattern = A._pattern
    m = pattern.matrix[0]
    if b.shape[-2] != m:
        hint = "The sizes of the two operands agree."
        accepted = f"{m} equations (from `{names[0]}` of shape {tuple(pattern.shape)})"
        raise checks.bad_shape(names[1], tuple(b.shape), accepted, hint)
    try:
        checks.broadcast_shapes(pattern.batch, b.shape[:-2])
    except RuntimeError:
        hint = "Batch sizes are equal, or one of them is 1 or missing."
        accepted = f"a batch that broadcasts with {pattern.batch}"
        raise checks.bad_shape(names[1], tuple(b.shape), accepted, hint) from None
    triangle = Triangle(pattern, bool(upper), bool(unit))
    if b.dim() == 2 and not pattern.batch:
        return substitute(flat(A), b, triangle, transpose)
    columns, unfold = in_columns(pattern, b, m)
    return unfold(substitute(flat(A), columns, triangle, transpose), m)


def substitute(
    vals: torch.Tensor, b: torch.Tensor, triangle: Triangle, transpose: bool
) -> torch.Tensor:
    """x = T^-1 b, or T^-T b, for the triangle T with these flat values; b is 2-D.

    Gradient: T x = b gives dT x + T dx = db, so <g, dx> = <T^-H g, db - dT x>. With l = T^-H g, the
    gradient of b is l, and that of T is -l x^H at its elements (SDDMM).
    """
    if wants_grad(vals, b):
        return _Substitution.apply(vals, b, triangle, transpose)  # type: ignore[return-value]
    return _substitute(vals, b, triangle, transpose)


def _substitute(
    vals: torch.Tensor, b: torch.Tensor, triangle: Triangle, transpose: bool
) -> torch.Tensor:
    by_columns = _stored_by_columns(triangle.pattern) if b.shape[1] <= _FEW else transpose
    view = cols(triangle.pattern) if by_columns else rows(triangle.pattern)
    return _solved_by(view, by_columns, vals, b, triangle, transpose)


class KeptTriangle:
    """A triangle that many right-hand sides meet, without gradients.

    After a few solves with one column, a triangle of a few diagonals is copied into an order that
    needs no indices. Its solves then take a third of the time.
    """

    def __init__(self, vals: torch.Tensor, triangle: Triangle) -> None:
        vals = plain(vals)
        self.triangle = triangle
        self.own = Valued(vals, triangle.pattern)
        self.conj = Valued(plain(vals.conj()), triangle.pattern) if vals.is_complex() else self.own
        self._solves = 0
        self._copy: TriangleByDiagonals | None = None

    def solve(self, b: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """T^-1 b, or T^-H b, for b 2-D."""
        pattern, one = self.triangle.pattern, b.shape[1] == 1
        if one and (found := self._by_diagonals()) is not None:
            return found.solve(b, adjoint)
        by_columns = _stored_by_columns(pattern) if one else adjoint
        view, vals = (self.conj if adjoint else self.own).lines(by_columns)
        return _solved_by(view, by_columns, vals, b, self.triangle, adjoint)

    def _by_diagonals(self) -> TriangleByDiagonals | None:
        self._solves += 1
        if self._solves == SOON + 1:  # so the pivots are known to be no zeros
            self._copy = triangle_by_diagonals(self.own, self.triangle)
        return self._copy


def _stored_by_columns(pattern: Pattern) -> bool:
    """Whether the column view takes no sort, and the row view does."""
    return not (pattern.is_coo or pattern.compressed_by_rows)


def _solved_by(
    view: View,
    by_columns: bool,
    vals: torch.Tensor,
    b: torch.Tensor,
    triangle: Triangle,
    transpose: bool,
) -> torch.Tensor:
    """T^-1 b or T^-T b, by a view of the pattern of T, which is by columns or by rows."""
    pattern, upper, unit = triangle
    operands = plain(vals), plain(b), upper != by_columns, unit, by_columns != transpose
    x, failed = kernels.solve_triangular(view.ptr, view.idx, view.perm, *operands)
    if not unit and align.readable(failed):
        _require_pivots(int(failed), pattern)
    return x


def _require_pivots(row: int, pattern: Pattern) -> None:
    if row >= 0:
        raise PivotError(
            f"`A` has a zero or no element on the diagonal in row {place(row, pattern)}; a "
            "diagonal without zeros is accepted. If it stands for ones, call "
            "spgrad.solve_triangular with unitriangular=True."
        )


def place(row: int, pattern: Pattern) -> str:
    """A row of the block-diagonal matrix, in the words of an error."""
    m = pattern.matrix[0]
    return str(row) if not pattern.batch else f"{row % m} of batch item {row // m}"


class _Substitution(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, b: torch.Tensor, triangle: Triangle, transpose: bool
    ) -> torch.Tensor:
        x = _substitute(vals, b, triangle, transpose)
        ctx.save_for_backward(vals, x)
        ctx.triangle, ctx.transpose = triangle, transpose
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, x = ctx.saved_tensors
        adjoint = substitute(vals.conj(), g, ctx.triangle, not ctx.transpose)
        if not ctx.needs_input_grad[0]:
            return None, adjoint, None, None
        # T^T x = b makes x the row operand and l the column operand of T's gradient
        left, right = (x.conj(), adjoint) if ctx.transpose else (adjoint, x.conj())
        grad_vals = sddmm(-left, right, ctx.triangle.pattern)
        ignored = _ignored(ctx.triangle)
        if ignored is not None:
            grad_vals = grad_vals.masked_fill(ignored, 0)
        return grad_vals, adjoint if ctx.needs_input_grad[1] else None, None, None


def _ignored(triangle: Triangle) -> torch.Tensor | None:
    """True for the elements that a solve ignores; None if there are none. Kept on the pattern."""
    pattern, upper, unit = triangle

    def find(pattern: Pattern) -> torch.Tensor | None:
        view = rows(pattern)
        row = kernels.expand(view.ptr, view.idx.shape[0])
        low, high = (view.idx, row) if upper else (row, view.idx)
        found = low <= high if unit else low < high
        if view.perm is not None:
            found = torch.empty_like(found).index_copy_(0, view.perm.long(), found)
        return found if not is_real(found) or bool(found.any()) else None

    return pattern.derive(kept.IGNORED.of(upper, unit), find)
