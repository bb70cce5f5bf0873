"""Products of a dense matrix and a sparse one from the right: y = x A^T, or x A.

The product of `lowering.products.spmm` reads and writes rows of x^T and y^T. The kernels of these
products transpose x and y themselves, so that a small layer is one call and one node of the graph.
Graphs of torch.compile call them on CPUs too: loops of the compiler that transpose store what an
activation saves for its gradient across the order of the data, which takes longer than the product.
"""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.values import plain
from spgrad.lowering.products.spmm import (
    LINE,
    block_sddmm,
    block_spmm,
    in_one_pass,
    sddmm,
    spmm,
    uses_blocks,
    view_of_values,
    wants_grad,
)
from spgrad.lowering.views import cols, rows
from spgrad.torch_protocol.func_transforms import Function, transforming


def row_spmm(
    vals: torch.Tensor,
    x: torch.Tensor,
    pattern: Pattern,
    transpose: bool = False,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """y = x A^T + bias, or x A + bias, for the matrix with these flat values; x is 2-D.

    Gradient: of `vals`, g^T x at the pattern (SDDMM); of x, g A (SpMM); of `bias`, the sum of g.
    """
    if transforming() or (torch.compiler.is_compiling() and x.device.type != "cpu"):
        y = transposed_copy(spmm(vals, transposed_copy(x), pattern, transpose))
        return y if bias is None else y + bias
    if wants_grad(vals, x) or (bias is not None and wants_grad(bias)):
        return _RowSpMM.apply(vals, x, bias, pattern, transpose)  # type: ignore[return-value]
    return _row_spmm(vals, x, pattern, transpose, bias)


def _row_spmm(
    vals: torch.Tensor,
    x: torch.Tensor,
    pattern: Pattern,
    transpose: bool,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    if uses_blocks(pattern, x):
        y = _turned(block_spmm(vals, _turned(x), pattern, transpose))
    else:
        view = cols(pattern) if transpose else rows(pattern)
        y = kernels.row_spmm(view.ptr, view.idx, view.perm, plain(vals), plain(x))
    return y if bias is None else y.add_(bias)


def _row_sddmm(g: torch.Tensor, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    if uses_blocks(pattern, x, sampled=True):
        return block_sddmm(_turned(g), _turned(x), pattern)
    view, left, right = view_of_values(pattern, g, x)
    return kernels.row_sddmm(view.ptr, view.idx, view.perm, plain(left), plain(right))


def _both(
    vals: torch.Tensor, x: torch.Tensor, g: torch.Tensor, pattern: Pattern, transpose: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the values and of x for a cotangent g, outside of graphs."""
    vals, x = vals.conj(), x.conj()
    line = LINE // x.element_size()
    columns = -(-x.shape[0] // line) * line  # the kernels fill up lines
    if uses_blocks(pattern, x) or not in_one_pass(columns, x, pattern):
        left, right = (x, g) if transpose else (g, x)
        grad_x = _row_spmm(vals, g, pattern, not transpose)
        return _row_sddmm(left, right, pattern), grad_x
    view = rows(pattern) if transpose else cols(pattern)
    operands = plain(vals), plain(x), plain(g)
    grad_x, grad_vals = kernels.row_spmm_sddmm(view.ptr, view.idx, view.perm, *operands)
    return grad_vals, grad_x


class _RowSpMM(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        vals: torch.Tensor,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        pattern: Pattern,
        transpose: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(vals, x)
        ctx.pattern, ctx.transpose = pattern, transpose
        return _row_spmm(vals, x, pattern, transpose, bias)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, x = ctx.saved_tensors
        pattern, transpose = ctx.pattern, ctx.transpose
        of_vals, of_x, of_bias = ctx.needs_input_grad[:3]
        grad_vals = grad_x = None
        if torch.is_grad_enabled():
            if of_vals:
                left, right = transposed_copy(g), transposed_copy(x.conj())
                operands = (right, left) if transpose else (left, right)
                grad_vals = sddmm(*operands, pattern)
            if of_x:
                grad_x = row_spmm(vals.conj(), g, pattern, not transpose)
        elif of_vals and of_x:
            grad_vals, grad_x = _both(vals, x, g, pattern, transpose)
        elif of_vals:
            left, right = (x.conj(), g) if transpose else (g, x.conj())
            grad_vals = _row_sddmm(left, right, pattern)
        elif of_x:
            grad_x = _row_spmm(vals.conj(), g, pattern, not transpose)
        return grad_vals, grad_x, g.sum(0) if of_bias else None, None, None


def _turned(x: torch.Tensor) -> torch.Tensor:
    """x^T of a dense matrix outside of graphs, a new tensor."""
    return kernels.transpose_dense(plain(x))


def transposed_copy(x: torch.Tensor) -> torch.Tensor:
    """x^T of a dense matrix, contiguous; the gradient of x is then contiguous as well.

    A product reads and writes rows. The gradient of `x.mT.contiguous()` is a transposed view. In
    the backward, torch's elementwise operations would read that view across the cache lines.
    """
    turned = x.mT
    if x.device.type != "cpu" or torch.compiler.is_compiling() or transforming():
        return turned.contiguous()
    if turned.is_contiguous():
        return turned
    if x.requires_grad and torch.is_grad_enabled():
        return _Transposed.apply(x)  # type: ignore[return-value]
    return _turned(x)


class _Transposed(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return _turned(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return transposed_copy(g)
