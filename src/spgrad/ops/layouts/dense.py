"""Sparse to dense and back; differentiable."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern, plain
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.coalesce import adds_up_in
from spgrad.lowering.convert import convert, flat_values
from spgrad.lowering.operands import dense_operand, is_sparse, sparse_operand
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.rebuild import sparse_dims
from spgrad.lowering.views import kept_linear_positions, linear_positions, rows
from spgrad.ops.layouts.convert import require_blocksize, require_layout
from spgrad.ops.layouts.structure import coalesce
from spgrad.public import public_op
from spgrad.torch_protocol.func_transforms import Function


@public_op
def to_dense(
    A: torch.Tensor, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None
) -> torch.Tensor:
    """The dense tensor with the values of `A` at its indices and zeros elsewhere.

    Args:
        A: SparseTensor of any layout; repeated COO indices add.
        dtype: Of the result; by default that of `A`.
        masked_grad: True or None: the gradient stays on the pattern, as always here.

    Returns:
        Dense tensor of the shape of `A`.

    Gradient:
        The cotangent at the indices of `A`, on its pattern.

    Cost:
        O(size of the result).

    Raises:
        TypeError: `A` is not sparse.
        NotImplementedError: `masked_grad` is False.

    Example:
        >>> spgrad.to_dense(spgrad.sparse_coo_tensor([[1, 1]], [3.0, 4.0], (3,)))
        tensor([0., 7., 0.])
    """
    if masked_grad is False:
        raise UnsupportedError(
            "`masked_grad` is False; None and True are accepted, as gradients stay on the pattern. "
            "Start from a dense tensor if you need a dense gradient."
        )
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentKindError(
            f"`dtype` is {dtype!r}; a torch.dtype or None is accepted. For example torch.float32."
        )
    A = sparse_operand("A", A)
    pattern = A._pattern
    given = A._vals.dtype
    low = given in (torch.bfloat16, torch.float16, torch.bool)
    if not pattern.ordered and (low or not adds_up_in(given, dtype)):
        A = coalesce(A)  # adds repeated elements in float32, and rounds or converts once
        pattern = A._pattern
    vals = flat_values(A)
    if dtype is not None:
        vals = vals.to(dtype)
    if isinstance(vals.numel(), int) and vals.numel() == 0:  # a trace may not know how many
        dense = vals.new_zeros(pattern.shape)
        return dense + vals.sum() if vals.requires_grad else dense
    if not pattern.ordered or sparse_dims(pattern) < 2:
        return _added(vals, pattern)
    if wants_grad(vals):
        return _Densify.apply(vals, pattern)  # type: ignore[return-value]
    return _densify(vals, pattern)


def _added(vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The dense tensor, in which values at one place are added; differentiable."""
    if vals.is_complex():  # index_add_ would multiply by 1 + 0i, which makes NaN of infinite parts
        parts = torch.view_as_real(vals.resolve_conj())
        total = _added_rows(parts, pattern)
        return as_result(torch.view_as_complex(total), pattern.shape)
    return as_result(_added_rows(vals, pattern), pattern.shape)


def _added_rows(vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    dense = vals.new_zeros(math.prod(pattern.shape[: sparse_dims(pattern)]), *vals.shape[1:])
    return dense.index_add_(0, kept_linear_positions(pattern), vals)


def _densify(vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    view = rows(pattern)
    flat = plain(vals)
    if pattern.dense_dim:
        flat = flat.reshape(pattern.elements, math.prod(pattern.dense_shape))
    m, n = pattern.matrix
    made = kernels.densify(view.ptr, view.idx, view.perm, flat, m, n)
    return as_result(made, pattern.shape)


class _Densify(Function):
    """Gradient: the cotangent at the elements."""

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:  # type: ignore[override]
        ctx.pattern = pattern
        return _densify(vals, pattern)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        pattern = ctx.pattern
        return g.reshape(-1, *pattern.dense_shape).index_select(
            0, kept_linear_positions(pattern)
        ), None


@public_op
def from_dense(
    x: torch.Tensor,
    layout: torch.layout = torch.sparse_csr,
    *,
    blocksize: tuple[int, int] | None = None,
    dense_dim: int = 0,
) -> SparseTensor:
    """The non-zero elements of a dense tensor as a SparseTensor.

    Args:
        x: Dense tensor (*batch, m, n, *dense_shape); COO takes any number of dimensions.
        layout: The sparse layout of the result.
        blocksize: Rows and columns of a block, for BSR and BSC.
        dense_dim: Number of trailing dimensions to keep dense.

    Returns:
        SparseTensor of the shape of `x`. An element is specified where `x`, or with dense
        dimensions any part of it, is not zero.

    Gradient:
        Dense, of the shape of `x`, zero where an element is not specified.

    Cost:
        O(size of x).

    Raises:
        TypeError: `x` is not dense, or `layout` is not a sparse layout.
        ValueError: `blocksize` or `dense_dim` does not fit.

    Example:
        >>> spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]])).col_indices()
        tensor([1, 0])
    """
    other = None if isinstance(x, torch.Tensor) else checks.constructor_of(x)
    if other is not None:
        raise ArgumentKindError(
            f"`x` is {checks.describe_kind(x)}; a dense tensor is accepted. Convert it with "
            f"spgrad.{other}."
        )
    if is_sparse(x):
        raise ArgumentKindError(
            f"`x` is {checks.describe_kind(x)}; a dense tensor is accepted. Convert a sparse one "
            "with spgrad.to_sparse(x, layout=...)."
        )
    x = dense_operand("x", x)
    require_layout(layout)
    sparse_dim, least = x.dim() - dense_dim, 1 if layout == torch.sparse_coo else 2
    if x.dim() < least:
        hint = "Take layout=torch.sparse_coo for a vector." if x.dim() else "Reshape it."
        accepted = "a vector, matrix or batch" if least == 1 else "a matrix or batch of matrices"
        raise checks.bad_shape("x", tuple(x.shape), accepted, hint)
    if dense_dim < 0 or sparse_dim < least:
        raise ArgumentValueError(
            f"`dense_dim` is {dense_dim} for a tensor of shape {tuple(x.shape)}; at least "
            f"{least} leading sparse dimension(s) are accepted. Lower dense_dim or add dimensions."
        )
    checks.require_addressable(tuple(x.shape))
    specified = x.detach() != 0
    if dense_dim:
        specified = specified.flatten(sparse_dim).any(-1)
    indices = specified.nonzero().t().contiguous()
    pattern = Pattern(torch.sparse_coo, tuple(x.shape), (indices,), dense_dim=dense_dim)
    pattern.ascending()
    blocks = require_blocksize(pattern, layout, blocksize)
    flat = x.reshape(math.prod(x.shape[:sparse_dim]), *pattern.dense_shape)
    try:
        vals = flat.index_select(0, linear_positions(pattern))
    except NotImplementedError as error:  # dtypes such as uint16, which torch hardly computes with
        raise ArgumentValueError(
            f"`x` has dtype {checks.short(x.dtype)}; dtypes that torch indexes are accepted. "
            "Convert it with x.to(torch.int32)."
        ) from error
    return convert(on_pattern(vals, pattern), layout, blocks)
