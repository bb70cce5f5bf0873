"""Matrix products: mv, mm, bmm, matmul, linear."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.interop import as_operand
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.operands import (
    dense_operand,
    is_sparse,
    matrix_operand,
    require_rank,
    shape_of,
)
from spgrad.ops.layouts.structure import t
from spgrad.ops.products import broadcast
from spgrad.ops.products.spmm_reduce import reduced_product
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import in_its_dtype, lowered


def product(names: tuple[str, str], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b with at least one sparse operand, broadcasting as `torch.matmul`.

    Under autocast, the operands are converted to its dtype.
    """
    if torch._C._is_any_autocast_enabled():
        a, b = in_its_dtype(a), in_its_dtype(b)
    if isinstance(a, SparseTensor) and broadcast.fits_at_once(a, b):
        return broadcast.sparse_dense(a, b)
    a_sparse, b_sparse = is_sparse(a), is_sparse(b)
    if not (a_sparse or b_sparse):
        raise ArgumentKindError(
            f"`{names[0]}` and `{names[1]}` are dense ({checks.describe_kind(a)} and "
            f"{checks.describe_kind(b)}); at least one sparse operand is accepted. Use "
            "torch.matmul, or convert one with spgrad.from_dense."
        )
    try:
        left = matrix_operand(names[0], a) if a_sparse else dense_operand(names[0], a)
        right = matrix_operand(names[1], b) if b_sparse else dense_operand(names[1], b)
    except (ArgumentKindError, ArgumentValueError) as error:
        return _of_others(error, names, a, b)
    _require_fit(names, left, right)
    if not isinstance(left, SparseTensor):
        assert isinstance(right, SparseTensor)
        return broadcast.dense_sparse(left, right)
    if isinstance(right, SparseTensor):
        return broadcast.sparse_sparse(left, right)
    return broadcast.sparse_dense(left, right)


def _of_others(error: Exception, names: tuple[str, str], a: Any, b: Any) -> torch.Tensor:
    """The product where `error` says that an operand is no tensor of numbers, if there is one."""
    if broadcast.are_bools(a, b):
        return broadcast.as_truth(product(names, *map(broadcast.as_counts, names, (a, b))))
    left, right = as_operand(a), as_operand(b)
    if left is a and right is b:
        for name, x in zip(names, (a, b), strict=True):
            if isinstance(x, numbers.Number):
                raise ArgumentKindError(
                    f"`{name}` is {checks.describe_kind(x)}; a vector, matrix or batch of matrices "
                    "is accepted. Multiply by a number with A * number."
                ) from None
        raise error
    return product(names, left, right)


def _require_fit(names: tuple[str, str], left: torch.Tensor, right: torch.Tensor) -> None:
    """Refuses operands whose sizes, dtypes or devices don't fit each other."""
    a, a_shape = checks.values_of(left), shape_of(left)
    b, b_shape = checks.values_of(right), shape_of(right)
    if a.dtype != b.dtype:
        checks.require_same_dtype(**{names[0]: a, names[1]: b})
    if a.device != b.device:
        checks.require_same_device(**{names[0]: a, names[1]: b})
    if not a_shape or not b_shape:
        name = names[1] if a_shape else names[0]
        hint = "Multiply by a number with A * number."
        raise checks.bad_shape(name, (), "a vector, matrix or batch of matrices", hint)
    inner = b_shape[-2] if len(b_shape) > 1 else b_shape[0]
    if a_shape[-1] != inner:
        side = "rows" if len(b_shape) > 1 else "elements"
        accepted = f"{a_shape[-1]} {side} (from `{names[0]}` of shape {tuple(a_shape)})"
        hint = "The inner sizes of the two operands have to agree."
        raise checks.bad_shape(names[1], tuple(b_shape), accepted, hint)
    if len(a_shape) > 2 and len(b_shape) > 2:
        try:
            checks.broadcast_shapes(a_shape[:-2], b_shape[:-2])
        except RuntimeError:
            hint = "Batch sizes are equal, or one of them is 1 or missing."
            accepted = f"a batch that broadcasts with {tuple(a_shape[:-2])}"
            raise checks.bad_shape(names[1], tuple(b_shape), accepted, hint) from None


@public_op
def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """input @ other with one or both operands sparse, broadcasting as `torch.matmul`.

    Args:
        input: Sparse or dense: (*b, m, k), or a dense vector (k,).
        other: Sparse or dense: (*b, k, n), or a dense vector (k,). Batch dimensions broadcast.
            Either operand may also be an array of NumPy or a sparse array of SciPy.

    Returns:
        Dense (*b, m, n) if one operand is dense; a SparseTensor in the layout of `input` if both
        are sparse (blocks of BSR and BSC take their rows from `input`, their columns from
        `other`). For bool operands, an element says whether any of its products is True.

    Gradient:
        Of a sparse operand A in A x: g x^T at the pattern of A, by SDDMM. Of x: A^T g. Of both in
        A B: g B^T and A^T g at their own patterns.

    Cost:
        O(nse n) time for dense `other`; no memory beyond result and gradients, except where a
        batch dimension is broadcast (O(size of the result)). The first gradient of x also sorts the
        pattern by columns, once. Sparse products: O(multiplications) (Gustavson, 1978).

    Raises:
        TypeError: Neither operand is sparse, or one is not a tensor.
        ValueError: Sizes, dtypes or devices don't fit.
        NotImplementedError: A sparse operand has dense dimensions.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
        >>> A @ torch.arange(6.0).view(3, 2)
        tensor([[ 8., 11.],
                [ 6.,  9.]])
    """
    return product(("input", "other"), input, other)


@public_op
@lowered
def mm(input: torch.Tensor, mat2: torch.Tensor, reduce: str | None = None) -> torch.Tensor:
    """Matrix product of two matrices of which at least one is sparse.

    Args:
        input: Sparse or dense (m, k).
        mat2: Sparse or dense (k, n).
        reduce: "sum" or None for the matrix product; any reduction of `spgrad.spmm`, for a
            sparse input and a dense mat2. "max" and "min" are "amax" and "amin", as in torch.

    Returns:
        As `spgrad.matmul`: dense (m, n), or sparse in the layout of `input` if both are sparse.

    Gradient:
        As `spgrad.matmul`: that of a sparse operand on its own pattern.

    Cost:
        O(nse n), as `spgrad.matmul`.

    Raises:
        TypeError: Neither operand is sparse, or one is not a tensor.
        ValueError: An operand is not a matrix, sizes, dtypes or devices don't fit, or `reduce` is
            none of these.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0])
        >>> spgrad.mm(A, torch.eye(2))
        tensor([[0., 2.],
                [3., 0.]])
    """
    names = ("input", "mat2")
    _require_ranks(2, input=input, mat2=mat2)
    if reduce in (None, "sum"):
        return product(names, input, mat2)
    return reducing(names, input, mat2, f"a{reduce}" if reduce in ("max", "min") else reduce)


def reducing(names: tuple[str, str], a: Any, b: Any, reduce: str) -> torch.Tensor:
    """The matrix product of a sparse and a dense operand over any reduction."""
    A, x = matrix_operand(names[0], a), dense_operand(names[1], b)
    _require_fit(names, A, x)
    if reduce == "sum":
        return broadcast.sparse_dense(A, x)
    return reduced_product(A, x, reduce)


@public_op
def mv(input: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
    """Product of a sparse matrix and a dense vector.

    Args:
        input: Sparse (m, k).
        vec: Dense (k,).

    Returns:
        Dense (m,).

    Gradient:
        Of `input`: g_i vec_j at each of its elements. Of `vec`: input^T g.

    Cost:
        O(nse) time, no memory beyond the result.

    Raises:
        TypeError: `input` is not sparse or `vec` not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0])
        >>> spgrad.mv(A, torch.tensor([1.0, 10.0]))
        tensor([20.,  3.])
    """
    A = matrix_operand("input", input, bools=True)
    x = dense_operand("vec", vec)
    require_rank("input", A, 2)
    require_rank("vec", x, 1)
    return product(("input", "vec"), A, x)


@public_op
def bmm(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """Batched product of two 3-d tensors of which at least one is sparse.

    Args:
        input: Sparse or dense (b, m, k); the items of a sparse batch may differ in their nse.
        mat2: Sparse or dense (b, k, n).

    Returns:
        As `spgrad.matmul`: dense (b, m, n), or sparse if both are sparse.

    Gradient:
        As `spgrad.matmul`.

    Cost:
        One product with the block-diagonal matrix of the batch: O(nse n).

    Raises:
        TypeError: Neither operand is sparse, or one is not a tensor.
        ValueError: An operand is not 3-d, or sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.from_dense(torch.eye(2).expand(3, 2, 2).clone())
        >>> spgrad.bmm(A, torch.ones(3, 2, 1)).shape
        torch.Size([3, 2, 1])
    """
    _require_ranks(3, input=input, mat2=mat2)
    items, others = shape_of(input)[0], shape_of(mat2)
    if items != others[0]:
        hint = "Use spgrad.matmul to broadcast."
        raise checks.bad_shape("mat2", others, f"a batch of {items}", hint)
    return product(("input", "mat2"), input, mat2)


@public_op
def sparse_mm(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B for a sparse A and dense B, 2-d or batched 3-d, as torchsparsegradutils names it.

    Args:
        A: Sparse (n, m) or (b, n, m), of any layout.
        B: Dense (m, p) or (b, m, p), with as many dimensions as `A`.

    Returns:
        Dense (n, p) or (b, n, p).

    Gradient:
        Of `A`: row-wise dot products of g and B at the elements of A, on its pattern. Of `B`:
        A^T g.

    Cost:
        O(nse p) time; no memory beyond result and gradients.

    Raises:
        ValueError: An operand is not a tensor, `A` is not sparse, `B` not dense, or ranks, sizes,
            dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0])
        >>> spgrad.sparse_mm(A, torch.ones(2, 1))
        tensor([[2.],
                [3.]])
    """
    for name, operand, sparse in (("A", A, True), ("B", B, False)):
        if not isinstance(operand, torch.Tensor) or is_sparse(operand) is not sparse:
            kind = "sparse" if sparse else "dense"
            raise ArgumentValueError(
                f"`{name}` is {checks.describe_kind(operand)}; a {kind} tensor is accepted. Use "
                "spgrad.matmul for other operands."
            )
    shape, ndim = shape_of(A), len(shape_of(A))
    if ndim not in (2, 3):
        raise checks.bad_shape("A", shape, "2-d or 3-d", "Use spgrad.matmul.")
    require_rank("B", B, ndim)
    if ndim == 3 and shape[0] != B.shape[0]:
        hint = "Use spgrad.matmul to broadcast."
        raise checks.bad_shape("B", tuple(B.shape), f"a batch of {shape[0]}", hint)
    return product(("A", "B"), A, B)


@public_op
@lowered
def linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """input weight^T + bias with a sparse weight, a sparse input, or both.

    Args:
        input: Sparse or dense (*b, k); sparse input is (n, k).
        weight: Sparse or dense (m, k).
        bias: Dense (m,) or None.

    Returns:
        Dense (*b, m); sparse in the layout of `input` if both are sparse, and then without bias.

    Gradient:
        Of a sparse operand on its own pattern, of dense operands and bias dense.

    Cost:
        O(nse times the rows of the dense operand).

    Raises:
        TypeError: Neither input nor weight is sparse, `weight` is not a matrix, or both are sparse
            and a bias is given.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> W = spgrad.sparse_csr_tensor([0, 1, 2], [2, 0], [2.0, 3.0], (2, 3))
        >>> spgrad.linear(torch.ones(1, 3), W, torch.tensor([0.5, 0.5]))
        tensor([[2.5000, 3.5000]])
    """
    sparse_weight = is_sparse(weight)
    if sparse_weight and weight.dim() == 2 and not is_sparse(input):
        W = matrix_operand("weight", weight, bools=True)
        if W._vals.dtype != torch.bool:
            return linear_of_values(input, broadcast.flat(W), W._pattern, bias)
    if bias is not None and sparse_weight and is_sparse(input):
        raise ArgumentKindError(
            f"`bias` is {checks.describe_kind(bias)}; None is accepted where input and weight are "
            "sparse, as the result is. Add it to the dense result."
        )
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        raise ArgumentKindError(
            f"`weight` is {checks.describe_kind(weight)}; a sparse or dense matrix is accepted. "
            "Its shape is (output size, input size)."
        )
    _require_linear(input, weight, weight.shape, bias)
    W = t(matrix_operand("weight", weight, bools=True)) if sparse_weight else weight.mT
    y = product(("input", "weight"), input, W)
    return y if bias is None else y + bias


def linear_of_values(
    input: torch.Tensor, vals: torch.Tensor, pattern: Pattern, bias: torch.Tensor | None
) -> torch.Tensor:
    """`linear` of a dense input, with the flat values of a weight on a pattern."""
    _require_linear(input, vals, pattern.shape, bias)
    if input.dtype != vals.dtype:
        checks.require_same_dtype(input=input, weight=vals)
    return broadcast.rows_by_matrix(input, vals, pattern, bias=bias)


def _require_linear(
    input: torch.Tensor, weight: torch.Tensor, shape: Sequence[int], bias: torch.Tensor | None
) -> None:
    """Refuses what does not fit a weight of this shape; `weight` has its dtype and device."""
    if not is_sparse(input):
        dense_operand("input", input)
    if bias is not None:
        dense_operand("bias", bias)
        checks.require_same_dtype(weight=weight, bias=bias)
        checks.require_same_device(weight=weight, bias=bias)
        if tuple(bias.shape) != (shape[0],):
            hint = "It has one number for each row of `weight`."
            raise checks.bad_shape("bias", tuple(bias.shape), f"({shape[0]},)", hint)
    given = shape_of(input)
    if not given or given[-1] != shape[1]:
        accepted = f"(..., {shape[1]}) (from `weight` of shape {tuple(shape)})"
        hint = "The last sizes of the two agree."
        raise checks.bad_shape("input", given, accepted, hint)
    checks.require_same_device(input=input, weight=weight)


def _require_ranks(ndim: int, **operands: torch.Tensor) -> None:
    for name, operand in operands.items():
        require_rank(name, operand, ndim)
