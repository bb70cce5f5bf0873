"""Products of dense matrices, or of a sparse and a dense one, with a sparse result."""

from __future__ import annotations

import math

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import dense_operand, matrix_operand, require_factors, require_rank
from spgrad.lowering.products import spmm
from spgrad.lowering.products.row_spmm import transposed_copy
from spgrad.lowering.views import rows
from spgrad.ops.products import broadcast
from spgrad.ops.products.addmm import Number, require_summand, weighted_sum
from spgrad.ops.products.matmul import product
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import lowered


@public_op
@lowered
def sspaddmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> SparseTensor:
    """beta input + alpha mat1 mat2 as a sparse tensor, for sparse input and mat1, dense mat2.

    Args:
        input: Sparse (m, n).
        mat1: Sparse (m, k).
        mat2: Dense (k, n).
        beta: Factor of `input`.
        alpha: Factor of the product.

    Returns:
        Coalesced COO tensor; rows where mat1 has an element are specified wholly.

    Gradient:
        Of each operand; of sparse ones on their own patterns.

    Cost:
        O(nse n) time, O(nse of the result) memory.

    Raises:
        TypeError: `input` or `mat1` is not sparse, or `mat2` not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0], [1]], [2.0], (2, 2))
        >>> spgrad.sspaddmm(A, A, torch.eye(2)).to_dense()
        tensor([[0., 4.],
                [0., 0.]])
    """
    C = matrix_operand("input", input)
    require_rank("input", C, 2)
    require_factors(C._vals.dtype, beta=beta, alpha=alpha)
    require_rank("mat1", mat1, 2)
    require_rank("mat2", mat2, 2)
    require_summand(C, (mat1.shape[0], mat2.shape[1]), mat1=mat1)
    P = _rows_of_product(("mat1", "mat2"), mat1, mat2, hybrid=False)
    return weighted_sum(convert(C, torch.sparse_coo), P, beta, alpha)


@public_op
@lowered
def smm(input: torch.Tensor, mat: torch.Tensor) -> SparseTensor:
    """Product of a sparse and a dense matrix as a sparse tensor.

    Args:
        input: Sparse (m, k).
        mat: Dense (k, n).

    Returns:
        Coalesced COO tensor (m, n); rows where `input` has an element are specified wholly.

    Gradient:
        Of `input` on its own pattern, of `mat` dense.

    Cost:
        O(nse n) time, O(rows with an element x n) memory.

    Raises:
        TypeError: `input` is not sparse or `mat` not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0], [1]], [2.0], (2, 2))
        >>> spgrad.smm(A, torch.eye(2)).indices()
        tensor([[0, 0],
                [0, 1]])
    """
    return _rows_of_product(("input", "mat"), input, mat, hybrid=False)


@public_op
@lowered
def hspmm(mat1: torch.Tensor, mat2: torch.Tensor) -> SparseTensor:
    """Product of a sparse and a dense matrix as a hybrid tensor of its rows.

    Args:
        mat1: Sparse (m, k).
        mat2: Dense (k, n).

    Returns:
        Coalesced COO tensor (m, n) with one sparse and one dense dimension: one row of values for
        each row where `mat1` has an element.

    Gradient:
        Of `mat1` on its own pattern, of `mat2` dense.

    Cost:
        O(nse n) time, O(rows with an element x n) memory.

    Raises:
        TypeError: `mat1` is not sparse or `mat2` not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[1], [1]], [2.0], (2, 2))
        >>> H = spgrad.hspmm(A, torch.eye(2))
        >>> H.indices(), H.values()
        (tensor([[1]]), tensor([[0., 2.]]))
    """
    return _rows_of_product(("mat1", "mat2"), mat1, mat2, hybrid=True)


def _rows_of_product(
    names: tuple[str, str], A: torch.Tensor, x: torch.Tensor, *, hybrid: bool
) -> SparseTensor:
    """The rows of A x in which A has an element, as a COO tensor."""
    A = matrix_operand(names[0], A)
    x = dense_operand(names[1], x)
    require_rank(names[0], A, 2)
    require_rank(names[1], x, 2)
    y = product(names, A, x)
    row = A._pattern.derive(kept.NONEMPTY_ROWS, _nonempty_rows)
    vals = y.index_select(0, row)
    m, n = y.shape
    if hybrid:
        pattern = Pattern(torch.sparse_coo, (m, n), (row[None],), dense_dim=1)
        return on_pattern(vals, pattern)
    col = torch.arange(n, device=row.device)
    indices = torch.stack([row.repeat_interleave(n), col.repeat(row.numel())])
    return on_pattern(vals.reshape(-1), Pattern(torch.sparse_coo, (m, n), (indices,)))


def _nonempty_rows(pattern: Pattern) -> torch.Tensor:
    return rows(pattern).ptr.diff().nonzero().view(-1)


@public_op
@lowered
def sampled_addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> SparseTensor:
    """beta input + alpha mat1 mat2, with the product computed at the elements of input alone.

    Args:
        input: Sparse (*b, m, n).
        mat1: Dense (*b, m, k).
        mat2: Dense (*b, k, n).
        beta: Factor of `input`; with 0 only its pattern is used.
        alpha: Factor of the product.

    Returns:
        SparseTensor on the pattern of `input` (coalesced first if it is not).

    Gradient:
        Of `input`: beta g, on its pattern. Of the matrices: the SpMM products G mat2^T, mat1^T G.

    Cost:
        O(nse k) time, O(nse) memory and a transposed copy of `mat2`.

    Raises:
        TypeError: `input` is not sparse, or a matrix not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 1, 1], [1], [1.0], (2, 2))
        >>> spgrad.sampled_addmm(A, torch.ones(2, 3), torch.ones(3, 2)).to_dense()
        tensor([[0., 4.],
                [0., 0.]])
    """
    C = matrix_operand("input", input)
    require_factors(C._vals.dtype, beta=beta, alpha=alpha)
    g, x = dense_operand("mat1", mat1), dense_operand("mat2", mat2)
    checks.require_same_device(input=C._vals, mat1=g, mat2=x)
    checks.require_same_dtype(input=C._vals, mat1=g, mat2=x)
    pattern = C._pattern
    k = g.shape[-1] if g.dim() else 0
    m, n = pattern.matrix
    for name, operand, wanted in (
        ("mat1", g, (*pattern.batch, m, k)),
        ("mat2", x, (*pattern.batch, k, n)),
    ):
        if tuple(operand.shape) != wanted:
            hint = f"It follows from input of shape {tuple(pattern.shape)}."
            raise checks.bad_shape(name, tuple(operand.shape), f"{wanted}", hint)
    if not pattern.coalesced:
        C = convert(C, torch.sparse_coo)
        pattern = C._pattern
    items = math.prod(pattern.batch)
    left = g.reshape(items * m, k)
    right = transposed_copy(x) if x.dim() == 2 else x.mT.reshape(items * n, k)
    found = spmm.sddmm(left, right, pattern)
    if alpha != 1:
        found = found * alpha
    if beta != 0:
        old = broadcast.flat(C)
        found = found + (old if beta == 1 else old * beta)
    return on_pattern(found.view(pattern.values_shape), pattern)
