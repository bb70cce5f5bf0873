"""The differentiable products on values with a dense operand: SpMM and SDDMM.

The family is closed under differentiation, so gradients of any order come from the same kernels.
"""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern, View
from spgrad.core.refusals import refuse_tracers
from spgrad.core.tensor import SparseTensor, any_requires_grad, requires_grad
from spgrad.core.values import (
    as_result,
    operand_gradient,
    plain,
    record_operand,
    saved_values,
    stored_values,
)
from spgrad.lowering.products.diagonals import Repeated
from spgrad.lowering.views import block_cols, block_rows, cols, rows
from spgrad.torch_protocol.func_transforms import Function, transforming

LINE = 64
"""Bytes of a cache line."""

_BY_DOT = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of Triton's products of blocks."""

_LONG_ROW = 16
"""Entries of a row from which on a kernel spends its time on them, and not on the row itself."""

_SMALL = 1 << 13
"""Elements of a matrix up to which one call saves more time than the better order of two."""


def wants_grad(*tensors: torch.Tensor) -> bool:
    """True where autograd, or a transform of torch.func, has to record an operation on these."""
    if torch.is_grad_enabled():
        for t in tensors:  # a loop, because a generator takes as long as the rest of a small call
            if t.requires_grad:
                return True
    return transforming()


def spmm(
    vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, transpose: bool = False
) -> torch.Tensor:
    """y = A x, or A^T x, for the (block-diagonal) matrix with these flat values; x is 2-D.

    With values (elements, h) and x (k, h, n), each of the h heads is a matrix on the same pattern:
    y[:, c] = A_c x[:, c].

    Gradient: of `vals`, g x^T at the pattern (SDDMM); of x, A^T g (SpMM).
    """
    if vals.dim() == 2 and vals.shape[1] == 1:
        return spmm(vals.squeeze(1), x.squeeze(1), pattern, transpose).unsqueeze(1)
    if wants_grad(vals, x):
        return _SpMM.apply(vals, x, pattern, transpose)  # type: ignore[return-value]
    return _spmm(vals, x, pattern, transpose)


def spmm_of(A: SparseTensor, x: torch.Tensor, transpose: bool = False) -> torch.Tensor:
    """`spmm` with the values of A, whose gradient then is that of A."""
    pattern, stored = A._pattern, A._vals
    if not _recorded(A, x):
        return _spmm(one_by_one(stored), x, pattern, transpose)
    if torch.is_grad_enabled() and requires_grad(A):
        if not transforming():
            return _SpMM.apply(A, x, pattern, transpose)  # type: ignore[return-value]
        stored = stored_values(A)
    return spmm(one_by_one(stored), x, pattern, transpose)


def spmv_of(A: SparseTensor, x: torch.Tensor, transpose: bool = False) -> torch.Tensor | None:
    """y = A x, or A^T x, for a vector; None where a gradient is recorded, of batches and blocks.

    A product with a matrix of one column takes 1.5 us more, for two views.
    """
    pattern = A._pattern
    if len(pattern.shape) > 2 or pattern.blocksize is not None or _recorded(A, x):
        return None
    view = cols(pattern) if transpose else rows(pattern)
    return _of_view(view, A._vals, x)


def _recorded(A: SparseTensor, x: torch.Tensor) -> bool:
    """`wants_grad` of A, its values and x, by one call of torch."""
    return (torch.is_grad_enabled() and any_requires_grad(A, A._vals, x)) or transforming()


def one_by_one(stored: torch.Tensor) -> torch.Tensor:
    """Stored values of a matrix or batch, one by one, as the views of its pattern count them."""
    return stored if stored.dim() == 1 else stored.reshape(-1)


def repeated_spmm(A: Repeated, x: torch.Tensor, transpose: bool = False) -> torch.Tensor:
    """y = A x, or A^T x, as `spmm` but without gradients, for a matrix with many products."""
    if uses_blocks(A.pattern, x):
        return block_spmm(A.vals, x, A.pattern, transpose)
    if x.shape[1] == 1 and (found := A.diagonals(transpose)) is not None:
        y, _ = found.times_and_dot(plain(x).view(1, -1, 1))
        return y.view(x.shape)
    view, vals = A.lines(transpose)
    return kernels.spmm(view.ptr, view.idx, None, plain(vals), plain(x))


def multiply_and_dot(A: Repeated, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """y = A x (items, m, 1), as `repeated_spmm`, and x^T y of each item, in one pass.

    None for products that have no such kernel: of several columns, complex numbers and blocks.
    """
    if x.shape[2] != 1 or x.is_complex() or x.numel() == 0:
        return None
    if A.pattern.blocksize is not None and uses_blocks(A.pattern, x[0]):
        return None
    if (found := A.diagonals(False)) is not None:
        return found.times_and_dot(plain(x))
    view, vals = A.lines(False)
    return kernels.krylov_product(view.ptr, view.idx, plain(vals), plain(x))


def sddmm(g: torch.Tensor, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Flat values of g x^T at the pattern: element (i, j) is the dot product of g[i] and x[j].

    With g (m, h, n) and x (k, h, n), the values are (elements, h), those of each head.

    Gradient: with w on the pattern, of g, W x; of x, W^T g (SpMM both).
    """
    if x.dim() == 3 and x.shape[1] == 1:
        return sddmm(g.squeeze(1), x.squeeze(1), pattern).unsqueeze(1)
    if wants_grad(g, x):
        return _SDDMM.apply(g, x, pattern)  # type: ignore[return-value]
    return _sddmm(g, x, pattern)


def _spmm(vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, transpose: bool) -> torch.Tensor:
    if uses_blocks(pattern, x):
        return block_spmm(vals, x, pattern, transpose)
    view = cols(pattern) if transpose else rows(pattern)
    if x.dim() == 3:
        y = kernels.heads_spmm(view.ptr, view.idx, view.perm, plain(vals), plain(x).flatten(1))
        return as_result(y, (y.shape[0], *x.shape[1:]))
    return _of_view(view, vals, x)


def _of_view(view: View, vals: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """y = A x. Without `plain`: torch resolves pending conjugations before a kernel is called."""
    return kernels.spmm(view.ptr, view.idx, view.perm, vals.contiguous(), x.contiguous())


def write_sddmm(out: torch.Tensor, g: torch.Tensor, x: torch.Tensor, pattern: Pattern) -> None:
    """`sddmm` of a matrix without blocks into existing values, without gradients."""
    view, left, right = view_of_values(pattern, g, x)
    kernels.sddmm_into(out, view.ptr, view.idx, view.perm, plain(left), plain(right))


def write_gradients(
    out: torch.Tensor,
    vals: torch.Tensor,
    x: torch.Tensor,
    g: torch.Tensor,
    pattern: Pattern,
    transpose: bool,
) -> torch.Tensor:
    """Both gradients of `spmm` for a matrix without blocks; that of the values goes to `out`.

    As `spmm_gradients`, for a part of the values whose gradients stand in one tensor.
    """
    if not in_one_pass(x.shape[1], x, pattern):
        grad_x = _spmm(vals.conj(), g, pattern, not transpose)
        left, right = (x.conj(), g) if transpose else (g, x.conj())
        write_sddmm(out, left, right, pattern)
        return grad_x
    view = rows(pattern) if transpose else cols(pattern)
    operands = plain(vals.conj()), plain(x.conj()), plain(g)
    return kernels.spmm_sddmm_into(out, view.ptr, view.idx, view.perm, *operands)


def _sddmm(g: torch.Tensor, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    if uses_blocks(pattern, x, sampled=True):
        return block_sddmm(g, x, pattern)
    view, left, right = view_of_values(pattern, g, x)
    if x.dim() == 3:
        operands = plain(left).flatten(1), plain(right).flatten(1), x.shape[1]
        return kernels.heads_sddmm(view.ptr, view.idx, view.perm, *operands)
    return kernels.sddmm(view.ptr, view.idx, view.perm, plain(left), plain(right))


def view_of_values(
    pattern: Pattern, g: torch.Tensor, x: torch.Tensor
) -> tuple[View, torch.Tensor, torch.Tensor]:
    """The view that has its values in order, if one has, and the operands of SDDMM on it."""
    if pattern.is_coo or pattern.compressed_by_rows:
        return rows(pattern), g, x
    return cols(pattern), x, g


def uses_blocks(pattern: Pattern, x: torch.Tensor, *, sampled: bool = False) -> bool:
    """True where a product with x, or SDDMM if `sampled`, is made of small dense products.

    Otherwise the elements of blocks are multiplied one by one. The compiled library has the loops
    for small dense products, for float32 and float64. The rows of a block that SDDMM writes fill
    vectors if they have 8 elements or more; blocks of 4 x 4 have a separate loop. Triton's products
    of matrices have at least 16 rows and columns, of which a block of 8 x 8 fills a quarter.
    """
    blocks = pattern.blocksize
    if blocks is None or min(blocks) < 2 or x.dim() == 3:
        return False
    if x.device.type == "cuda":
        return min(blocks) >= 8 and x.dtype in _BY_DOT and "block_spmm" in kernels.by_triton()
    if not kernels.compiled():
        return False
    if sampled and blocks != (4, 4) and blocks[1] < 8:
        return False
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def block_spmm(
    vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, transpose: bool
) -> torch.Tensor:
    """y = A x, or A^T x, of a matrix that `uses_blocks`, outside of graphs."""
    assert pattern.blocksize is not None
    height, width = pattern.blocksize
    if transpose:
        height, width = width, height
    view = block_cols(pattern) if transpose else block_rows(pattern)
    operands = plain(vals), plain(x), height, width, transpose
    return kernels.block_spmm(view.ptr, view.idx, view.perm, *operands)


def block_sddmm(g: torch.Tensor, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Values of g x^T at a pattern that `uses_blocks`, outside of graphs."""
    assert pattern.blocksize is not None
    height, width = pattern.blocksize
    if pattern.compressed_by_rows:  # the view that has the values in order
        view, operands = block_rows(pattern), (plain(g), plain(x), height, width, False)
    else:
        view, operands = block_cols(pattern), (plain(x), plain(g), width, height, True)
    return kernels.block_sddmm(view.ptr, view.idx, view.perm, *operands)


class _SpMM(Function):
    """y = A x of flat values, or of the matrix itself: a node for its values would take longer."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        A: torch.Tensor,
        x: torch.Tensor,
        pattern: Pattern,
        transpose: bool,
    ) -> torch.Tensor:
        ctx.pattern, ctx.transpose = pattern, transpose
        if not isinstance(A, SparseTensor):
            ctx.save_for_backward(A, x)
            return _spmm(A, x, pattern, transpose)
        refuse_tracers()
        record_operand(ctx, A)
        ctx.save_for_backward(A, x, A._vals)  # autograd checks that these have not changed
        return _spmm(one_by_one(A._vals), x, pattern, transpose)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        A, x, *stored = ctx.saved_tensors
        sparse = isinstance(A, SparseTensor)
        vals = one_by_one(saved_values(A, *stored)) if sparse else A
        needs = ctx.needs_input_grad[:2]
        grad, grad_x = spmm_gradients(vals, x, g, ctx.pattern, ctx.transpose, needs)
        if sparse and grad is not None:
            given = grad if stored[0].dim() == 1 else grad.view(ctx.pattern.values_shape)
            grad = operand_gradient(ctx, given)
        return grad, grad_x, None, None


def spmm_gradients(
    vals: torch.Tensor,
    x: torch.Tensor,
    g: torch.Tensor,
    pattern: Pattern,
    transpose: bool,
    needs: tuple[bool, bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of the operands of `spmm` for a cotangent g, those that are needed."""
    if all(needs) and not torch.is_grad_enabled():
        return _both_gradients(vals, x, g, pattern, transpose)
    grad_vals = grad_x = None
    if needs[0]:
        # y = A^T x makes x the row operand and g the column operand of A's gradient
        left, right = (x.conj(), g) if transpose else (g, x.conj())
        grad_vals = sddmm(left, right, pattern)
    if needs[1]:
        grad_x = spmm(vals.conj(), g, pattern, not transpose)
    return grad_vals, grad_x


def _both_gradients(
    vals: torch.Tensor, x: torch.Tensor, g: torch.Tensor, pattern: Pattern, transpose: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the values and of x.

    One pass reads each row of g once for both gradients. If that is not faster, or if whole blocks
    read each row once anyway, each gradient has its own kernel and view.
    """
    g = plain(g)  # once, because a cotangent of a sum is expanded
    if uses_blocks(pattern, x) or x.dim() == 3 or not in_one_pass(x.shape[1], x, pattern):
        # first the kernel that copies values: the gradient of the values can take that memory
        grad_x = _spmm(vals.conj(), g, pattern, not transpose)
        left, right = (x.conj(), g) if transpose else (g, x.conj())
        return _sddmm(left, right, pattern), grad_x
    view = rows(pattern) if transpose else cols(pattern)
    operands = plain(vals.conj()), plain(x.conj()), g
    grad_x, grad_vals = kernels.spmm_sddmm(view.ptr, view.idx, view.perm, *operands)
    return grad_vals, grad_x


def in_one_pass(n: int, x: torch.Tensor, pattern: Pattern) -> bool:
    """Whether one pass over g (m, n), of the dtype of x, is faster than a kernel for each gradient.

    One of the views has its values in another order, so for each entry one pass reads a value and
    writes a gradient at any place, mostly in another cache line. Two kernels write the gradients in
    order, and read a row of g twice. They are faster for rows of g of one or two cache lines, if
    each row of A has so many entries that they take most of the time. Rows of g that do not fill
    cache lines have separate kernels. A small matrix takes less time than the call of a kernel.
    """
    if not isinstance(n, int):  # no guard on a size of a compiler
        return True
    row, elements = n * x.element_size(), pattern.elements
    known = isinstance(elements, int)
    if row % LINE:
        return known and elements <= _SMALL
    sizes = (elements, *pattern.extent)
    if row > 2 * LINE or not all(isinstance(size, int) for size in sizes):
        return True
    return elements <= _SMALL or elements < _LONG_ROW * max(sizes[1:])


class _SDDMM(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, g: torch.Tensor, x: torch.Tensor, pattern: Pattern
    ) -> torch.Tensor:
        ctx.save_for_backward(g, x)
        ctx.pattern = pattern
        return _sddmm(g, x, pattern)

    @staticmethod
    def backward(ctx: Any, w: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        g, x = ctx.saved_tensors
        grad_g = spmm(w, x.conj(), ctx.pattern) if ctx.needs_input_grad[0] else None
        grad_x = spmm(w, g.conj(), ctx.pattern, True) if ctx.needs_input_grad[1] else None
        return grad_g, grad_x, None
