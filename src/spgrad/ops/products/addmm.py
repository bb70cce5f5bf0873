"""Products with an added term: addmm, addmv, baddbmm."""

from __future__ import annotations

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import (
    dense_operand,
    is_sparse,
    matrix_operand,
    require_factors,
    require_rank,
    shape_of,
)
from spgrad.lowering.products.spmm import wants_grad
from spgrad.ops.elementwise.binary import Number, add, mul
from spgrad.ops.layouts.dense import to_dense
from spgrad.ops.products.matmul import product
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import lowered


@public_op
@lowered
def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    """beta input + alpha mat1 mat2, with at least one of the two matrices sparse.

    Args:
        input: Dense, broadcast to (m, n); or sparse (m, n) where both matrices are sparse.
            Ignored, NaN and all, if beta is 0.
        mat1: Sparse or dense (m, k).
        mat2: Sparse or dense (k, n).
        beta: Factor of `input`.
        alpha: Factor of the product.

    Returns:
        Dense (m, n); a SparseTensor in the layout of `input` if that is sparse.

    Gradient:
        Of each operand; of sparse ones on their own patterns.

    Cost:
        That of the product, O(nse n), plus O(size of the result).

    Raises:
        TypeError: Neither matrix is sparse, or `input` is sparse and one matrix is dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0])
        >>> spgrad.addmm(torch.ones(2, 2), A, torch.eye(2), alpha=10)
        tensor([[ 1., 21.],
                [31.,  1.]])
    """
    require_rank("mat1", mat1, 2)
    require_rank("mat2", mat2, 2)
    require_factors(checks.values_of(mat1).dtype, beta=beta, alpha=alpha)
    if is_sparse(input):
        return _add_sparse(input, mat1, mat2, beta, alpha)
    _require_addend(input, (shape_of(mat1)[0], shape_of(mat2)[1]), mat1=mat1)
    return _weighted_plus(input, product(("mat1", "mat2"), mat1, mat2), beta, alpha)


@public_op
@lowered
def addmv(
    input: torch.Tensor,
    mat: torch.Tensor,
    vec: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    """beta input + alpha mat vec for a sparse matrix and dense vectors.

    Args:
        input: Dense, broadcast to (m,). Ignored, NaN and all, if beta is 0.
        mat: Sparse (m, k).
        vec: Dense (k,).
        beta: Factor of `input`.
        alpha: Factor of the product.

    Returns:
        Dense (m,).

    Gradient:
        Of each operand; of `mat` on its own pattern.

    Cost:
        O(nse + m).

    Raises:
        TypeError: `mat` is not sparse, or a vector not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0])
        >>> spgrad.addmv(torch.ones(2), A, torch.ones(2))
        tensor([3., 4.])
    """
    A, x = matrix_operand("mat", mat), dense_operand("vec", vec)
    require_rank("mat", A, 2)
    require_rank("vec", x, 1)
    require_factors(x.dtype, beta=beta, alpha=alpha)
    _require_addend(input, (A._pattern.shape[0],), vec=x)
    return _weighted_plus(input, product(("mat", "vec"), A, x), beta, alpha)


@public_op
@lowered
def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    """beta input + alpha batch1 batch2 for 3-d operands, one of the two batches sparse.

    Args:
        input: Dense, broadcast to (b, m, n). Ignored, NaN and all, if beta is 0.
        batch1: Sparse or dense (b, m, k).
        batch2: Sparse or dense (b, k, n).
        beta: Factor of `input`.
        alpha: Factor of the product.

    Returns:
        Dense (b, m, n).

    Gradient:
        Of each operand; of the sparse one on its own pattern.

    Cost:
        That of the product, O(nse n), plus O(size of the result).

    Raises:
        TypeError: Neither batch is sparse, or `input` is not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.from_dense(torch.eye(2).expand(3, 2, 2).clone())
        >>> spgrad.baddbmm(torch.ones(3, 2, 1), A, torch.ones(3, 2, 1))[0]
        tensor([[2.],
                [2.]])
    """
    require_rank("batch1", batch1, 3)
    require_rank("batch2", batch2, 3)
    require_factors(checks.values_of(batch1).dtype, beta=beta, alpha=alpha)
    left, right = shape_of(batch1), shape_of(batch2)
    if left[0] != right[0]:
        hint = "Use spgrad.matmul to broadcast."
        raise checks.bad_shape("batch2", right, f"a batch of {left[0]}", hint)
    _require_addend(input, (*left[:2], right[2]), batch1=batch1)
    return _weighted_plus(input, product(("batch1", "batch2"), batch1, batch2), beta, alpha)


def _require_addend(input: torch.Tensor, shape: tuple[int, ...], **operand: torch.Tensor) -> None:
    """Refuses what can't be added to a product of this shape, before that is computed."""
    dense_operand("input", input)
    checks.require_numeric("input", input)
    (of,) = map(checks.values_of, operand.values())
    if input.device != of.device:
        checks.require_same_device(**operand, input=input)
    if input.dtype != of.dtype:
        checks.require_same_dtype(**operand, input=input)
    if input.shape == shape:
        return
    try:
        input.expand(shape)
    except RuntimeError:
        hint = "It is added to the product."
        accepted = f"what broadcasts to {shape}"
        raise checks.bad_shape("input", tuple(input.shape), accepted, hint) from None


def _weighted_plus(
    input: torch.Tensor, y: torch.Tensor, beta: Number, alpha: Number
) -> torch.Tensor:
    """beta input + alpha y in the shape of y, which is a new tensor."""
    if isinstance(y, SparseTensor):
        y = to_dense(y)
    if type(input) is torch.Tensor and not wants_grad(y, input):  # y becomes the result
        y = y if alpha == 1 else y.mul_(alpha)
        if beta == 0:
            return y
        return y.add_(input) if beta == 1 else y.add_(input, alpha=beta)
    if alpha != 1:
        y = y * alpha
    if beta == 0:
        return y
    return y + input if beta == 1 else y.add(input, alpha=beta)


def _add_sparse(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, beta: Number, alpha: Number
) -> SparseTensor:
    """beta input + alpha mat1 mat2 of sparse matrices, in the layout of input."""
    if not (is_sparse(mat1) and is_sparse(mat2)):
        raise ArgumentKindError(
            "`input` is sparse and one matrix is dense; a dense input, or two sparse matrices, are "
            "accepted. Use spgrad.sspaddmm for a sparse result."
        )
    C = matrix_operand("input", input)
    require_summand(C, (shape_of(mat1)[0], shape_of(mat2)[1]), mat1=mat1)
    return weighted_sum(C, product(("mat1", "mat2"), mat1, mat2), beta, alpha)


def require_summand(C: SparseTensor, shape: tuple[int, ...], **operand: torch.Tensor) -> None:
    """Refuses a sparse tensor that can't be added to a product of this shape."""
    checks.require_same_device(**operand, input=C)
    checks.require_same_dtype(**operand, input=C)
    if tuple(C._pattern.shape) != shape:
        hint = "It is added to the product."
        raise checks.bad_shape("input", tuple(C._pattern.shape), f"{shape}", hint)


def weighted_sum(C: SparseTensor, P: torch.Tensor, beta: Number, alpha: Number) -> SparseTensor:
    """beta C + alpha P on the union of the patterns, in the layout of C."""
    if beta == 0:
        P = convert(P, C._pattern.layout, C._pattern.blocksize)  # type: ignore[arg-type]
        return P if alpha == 1 else mul(P, alpha)  # type: ignore[return-value]
    return add(C if beta == 1 else mul(C, beta), P, alpha=alpha)  # type: ignore[return-value]
