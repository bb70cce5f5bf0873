"""Dense operands at the elements of a pattern, with torch's broadcasting."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, plain, stored_values
from spgrad.lowering.operands import call
from spgrad.lowering.products import spmm
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.segments import for_each
from spgrad.lowering.views import cols, positions_among, rows
from spgrad.torch_protocol.func_transforms import Function


def dense_at_elements(x: torch.Tensor, pattern: Pattern, arg: str = "other") -> torch.Tensor:
    """x at every stored element of a pattern, in a shape that broadcasts with its values.

    Args:
        x: Dense; broadcasts to the shape of the pattern.
        pattern: A pattern of any layout.
        arg: The name of `x` in an error.

    Returns:
        (nse, *blocksize, *dense), where x has size 1 in a dense dimension 1; differentiable.
    """
    sizes = _padded(x, pattern, arg)
    sparse = len(sizes) - pattern.dense_dim
    dense = sizes[sparse:]
    if all(size == 1 for size in sizes[:sparse]):
        if wants_grad(x):
            return for_each(x.reshape(dense), pattern)
        return x.reshape((1,) * len(pattern.values_shape[: -len(dense) or None]) + dense)
    kept_dims = tuple(i for i in range(sparse) if sizes[i] == pattern.shape[i])
    at = positions_among(pattern, kept_dims)
    flat = x.reshape(math.prod(sizes[:sparse]), *dense)
    found = call(torch.index_select, flat, 0, at)
    return found.view(*pattern.values_shape[: 1 + _block_dims(pattern)], *dense)


def _block_dims(pattern: Pattern) -> int:
    return len(pattern.blocksize or ())


def _padded(x: torch.Tensor, pattern: Pattern, arg: str) -> tuple[int, ...]:
    """The shape of x with as many dimensions as the pattern has; raises if x does not broadcast."""
    sizes = (1,) * (len(pattern.shape) - x.dim()) + tuple(x.shape)
    fits = len(sizes) == len(pattern.shape) and all(
        own in (1, full) for own, full in zip(sizes, pattern.shape, strict=True)
    )
    if not fits:
        accepted = f"what broadcasts to {tuple(pattern.shape)}, the shape of the sparse operand,"
        hint = "The sparse operand itself does not broadcast; repeat it first."
        raise checks.bad_shape(arg, tuple(x.shape), accepted, hint)
    return sizes


def times_vector(A: SparseTensor, x: torch.Tensor) -> SparseTensor | None:
    """A with its rows, or columns, scaled by the vector x; None if x is not such a vector."""
    pattern = A._pattern
    shape = tuple(pattern.shape)
    if pattern.dense_dim or len(shape) < 2 or x.dtype != A._vals.dtype or not x.dim():
        return None
    sizes = (1,) * (len(shape) - x.dim()) + tuple(x.shape)
    by_row = sizes == (*shape[:-1], 1)
    if not by_row and sizes != (*shape[:-2], 1, shape[-1]):
        return None
    if A._vals.dtype == torch.bool:
        return None
    vals = stored_values(A)
    row, col = (x.reshape(-1), None) if by_row else (None, x.reshape(-1))
    return on_pattern(scaled_lines(vals.reshape(-1), row, col, pattern).view(vals.shape), pattern)


def scaled_lines(
    vals: torch.Tensor, row: torch.Tensor | None, col: torch.Tensor | None, pattern: Pattern
) -> torch.Tensor:
    """v_ij r_i c_j for flat values v; a factor that is None is 1.

    Gradient: of v, g_ij r_i c_j; of r, sum_j g_ij v_ij c_j (SpMV); of c, sum_i g_ij v_ij r_i.
    """
    if wants_grad(*(t for t in (vals, row, col) if t is not None)):
        return _Scale.apply(vals, row, col, pattern)  # type: ignore[return-value]
    return _scaled(vals, row, col, pattern)


def _scaled(
    vals: torch.Tensor, row: torch.Tensor | None, col: torch.Tensor | None, pattern: Pattern
) -> torch.Tensor:
    by_line, by_index = (None if t is None else plain(t) for t in (row, col))
    view = rows(pattern)
    if not pattern.is_coo and not pattern.compressed_by_rows:
        view, by_line, by_index = cols(pattern), by_index, by_line
    return kernels.scale(view.ptr, view.idx, view.perm, plain(vals), by_line, by_index)


def _conj(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else t.conj()


class _Scale(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        vals: torch.Tensor,
        row: torch.Tensor | None,
        col: torch.Tensor | None,
        pattern: Pattern,
    ) -> torch.Tensor:
        ctx.save_for_backward(vals, row, col)
        ctx.pattern = pattern
        return _scaled(vals, row, col, pattern)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, row, col = ctx.saved_tensors
        grad_vals = grad_row = grad_col = None
        if ctx.needs_input_grad[0]:
            grad_vals = scaled_lines(g, _conj(row), _conj(col), ctx.pattern)
        if ctx.needs_input_grad[1]:
            grad_row = _line_sums(g * vals.conj(), _conj(col), ctx.pattern, transpose=False)
        if ctx.needs_input_grad[2]:
            grad_col = _line_sums(g * vals.conj(), _conj(row), ctx.pattern, transpose=True)
        return grad_vals, grad_row, grad_col, None


def _line_sums(
    vals: torch.Tensor, factor: torch.Tensor | None, pattern: Pattern, *, transpose: bool
) -> torch.Tensor:
    """Sums by row, or by column, of flat values times a factor for each column, or row."""
    if factor is None:
        view = rows(pattern) if transpose else cols(pattern)
        factor = vals.new_ones(view.ptr.shape[0] - 1)
    return spmm.spmm(vals, factor[:, None], pattern, transpose)[:, 0]
