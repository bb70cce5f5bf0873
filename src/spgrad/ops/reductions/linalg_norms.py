"""Norms of matrices, torch.linalg.norm, and tensors divided by their norms."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.slots import above
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.operands import call, sparse_operand
from spgrad.ops.reductions.axes import Dims, converted, reduction, require_dtype, wide
from spgrad.ops.reductions.norms import Order, dense_only, norm_over, norms_of_segments
from spgrad.ops.reductions.reduce import amax, amin
from spgrad.public import public_op

_NAMES = ("A", "ord")


@public_op
def matrix_norm(
    A: torch.Tensor,
    ord: Order = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Norm of a matrix or of each of a batch, as `torch.linalg.matrix_norm`.

    Args:
        A: Sparse tensor of any layout with two or more dimensions.
        ord: "fro" (the square root of the sum of squares), 1 or -1 (largest or smallest sum of
            absolute values in a column), inf or -inf (the same in a row), 2 or -2 (largest or
            smallest singular value).
        dim: The dimensions of rows and columns.
        keepdim: Whether these stay, with size 1.
        dtype: The dtype to convert to first.

    Returns:
        Real; dense or sparse as the result of `spgrad.sum`.

    Gradient:
        That of the dense function, at the elements of `A`; for order 2 or -2, that of the singular
        value. 0 where the norm is 0.

    Cost:
        O(nse + size of the result + columns or rows). For order 2 or -2, that of
        `spgrad.linalg.svds` with k=1 for each item of a batch, which needs SciPy for more than 32
        rows and columns.

    Raises:
        TypeError: `A` is not sparse, or `dim` is not a pair.
        ValueError: `dim` or `ord` is none of these, or the dtype is not real or complex.
        NotImplementedError: `ord` is "nuc", which takes all singular values.
        ConvergenceError: ARPACK ended before its tolerance.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
        >>> spgrad.matrix_norm(A, 1), spgrad.matrix_norm(A, float("inf"))
        (tensor(6.), tensor(7.))
    """
    return _matrix_norm(A, ord, dim, keepdim, dtype)


def _matrix_norm(
    A: Any, ord: Any, dim: Any, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    if not isinstance(ord, (*checks.REAL, str)):
        raise ArgumentKindError(
            f"`ord` is {checks.describe_kind(ord)}; a number or 'fro' is accepted. For example 1."
        )
    if ord == "nuc":
        raise dense_only("ord", ord)
    if not isinstance(dim, (tuple, list)) or len(dim) != 2:
        raise ArgumentKindError(
            f"`dim` is {dim!r}; a pair of ints is accepted. For example (-2, -1)."
        )
    if ord == "fro":
        return norm_over(_NAMES, A, 2, dim, keepdim, dtype, False)
    if ord in (2, -2):
        return _spectral(A, ord, dim, keepdim, dtype)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentValueError(
            f"`ord` is {ord!r}; 'fro', 1, -1, 2, -2, inf and -inf are accepted. Use "
            "spgrad.vector_norm for other orders."
        )
    ndim = len(reduction(A, dim, keepdim, arg="A").A._pattern.shape)
    summed, chosen = (d % ndim for d in (dim if abs(ord) == 1 else reversed(dim)))
    sums = norm_over(_NAMES, A, 1, summed, keepdim, dtype, False)
    if chosen > summed and not keepdim:
        chosen -= 1
    if ord > 0 and sums.shape[chosen] == 0:
        return sums.sum(chosen, keepdim)  # the largest of no norms is 0
    sparse, dense = (amax, torch.amax) if ord > 0 else (amin, torch.amin)
    choose = sparse if isinstance(sums, SparseTensor) else dense
    return call(choose, sums, chosen, keepdim)


def _spectral(
    A: Any, ord: float, dim: Any, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    """By singular values, which those of the transpose are too."""
    T = reduction(A, dim, keepdim, arg="A").A
    ndim = len(T._pattern.shape)
    if {d % ndim for d in dim} != {ndim - 2, ndim - 1}:
        raise ArgumentValueError(
            f"`dim` is {tuple(dim)} and `ord` is {ord}; the two last dimensions are accepted for "
            "this order. Take spgrad.movedim(A, dim, (-2, -1)) first."
        )
    vals = converted(stored_values(T), dtype)
    require_dtype(vals.dtype, arg="dtype" if dtype else "A", accepted="real complex")
    y = above.spectral_norm(from_values(wide(vals), T._pattern), ord > 0)
    y = y.to(vals.dtype.to_real())
    return y[..., None, None] if keepdim else y


@public_op
def linalg_norm(
    A: torch.Tensor,
    ord: Order | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Norm of vectors or matrices, as `torch.linalg.norm`.

    Args:
        A: Sparse tensor of any layout.
        ord: The order of `spgrad.vector_norm` where `dim` is one dimension, of `spgrad.matrix_norm`
            where it is two. None is 2 and "fro".
        dim: One dimension or two. None takes all dimensions: any number without `ord`, one or two
            with it.
        keepdim: Whether reduced dimensions stay, with size 1.
        dtype: The dtype to convert to first.

    Returns:
        Real; dense or sparse as the result of `spgrad.sum`.

    Gradient:
        That of the dense function, at the elements of `A`.

    Cost:
        That of `spgrad.vector_norm` or `spgrad.matrix_norm`.

    Raises:
        TypeError: `A` is not sparse, or `ord` or `dim` is of another kind.
        ValueError: `dim` or `ord` is none of these, or the dtype is not real or complex.
        NotImplementedError: `ord` is "nuc", which takes all singular values.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
        >>> spgrad.linalg_norm(A, dim=1), spgrad.linalg_norm(A, 1)
        (tensor([5., 2.]), tensor(6.))
    """
    A = sparse_operand("A", A)
    if not (dim is None or isinstance(dim, (int, tuple, list))):
        raise ArgumentKindError(
            f"`dim` is {dim!r}; an int, a pair of ints or None is accepted. For example (-2, -1)."
        )
    dims = (dim,) if isinstance(dim, int) else dim
    if dims is None and ord is not None:
        dims = tuple(range(len(A._pattern.shape)))
    if dims is not None and len(dims) not in (1, 2):
        raise ArgumentValueError(
            f"`dim` is {dim} of a tensor of {A.dim()} dimension(s); one dimension or two are "
            "accepted. Use spgrad.vector_norm for more."
        )
    if ord is None:
        return norm_over(_NAMES, A, 2, dims, keepdim, dtype, False)
    if len(dims) == 1:  # type: ignore[arg-type]
        return norm_over(_NAMES, A, ord, dims, keepdim, dtype, False)
    return _matrix_norm(A, ord, dims, keepdim, dtype)


@public_op
def normalize(
    input: torch.Tensor, p: float = 2.0, dim: Dims = 1, eps: float = 1e-12
) -> SparseTensor:
    """input / max(norm over `dim`, eps), as `torch.nn.functional.normalize`.

    Args:
        input: Sparse tensor of any layout; repeated COO indices are added first.
        p: The order of the norm, as in `spgrad.vector_norm`.
        dim: The dimensions that a norm is taken over: rows of a matrix by default, 0 for columns.
        eps: The least number to divide by.

    Returns:
        SparseTensor on the pattern of `input`.

    Gradient:
        That of the dense function, at the elements of `input`.

    Cost:
        O(nse); for the first norm of columns or batches also a sort of the pattern, which is kept.

    Raises:
        TypeError: `input` is not sparse, or `p` or `dim` is of another kind.
        ValueError: `dim` is outside the tensor, or the dtype is not real or complex.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
        >>> spgrad.normalize(A).to_dense()
        tensor([[ 0.6000,  0.8000],
                [ 0.0000, -1.0000]])
    """
    for name, number in (("p", p), ("eps", eps)):
        if not isinstance(number, checks.REAL):
            raise ArgumentKindError(
                f"`{name}` is {number!r}; a number is accepted. For example 1.0."
            )
    call = reduction(input, dim, True)
    require_dtype(call.stored.dtype, accepted="real complex")
    vals = wide(call.vals)
    size = norms_of_segments(call, vals, float(p), False).clamp_min(eps)
    return call.on_elements((vals / call.expanded(size)).to(call.stored.dtype))
