"""Products with an added term, and products with a sparse result."""

from __future__ import annotations

import torch

from spgrad import checks
from spgrad.errors import ArgumentKindError
from spgrad.ops import lowering, products
from spgrad.ops.convert import convert, to_dense
from spgrad.ops.matmul import product
from spgrad.ops.operands import (
    dense_operand,
    is_sparse,
    matrix_operand,
    require_rank,
    sparse_operand,
)
from spgrad.ops.structure import add_coo
from spgrad.pattern import Pattern
from spgrad.tensor import SparseTensor
from spgrad.values import on_pattern

Number = int | float | complex


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
    fn = "addmm"
    require_rank(fn, "mat1", mat1, 2)
    require_rank(fn, "mat2", mat2, 2)
    if is_sparse(input):
        return _add_sparse(fn, input, mat1, mat2, beta, alpha)
    y = product(fn, mat1, mat2)
    if isinstance(y, SparseTensor):
        y = to_dense(y)
    return _plus(fn, dense_operand(fn, "input", input), y, beta, alpha)


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
    fn = "addmv"
    A, x = matrix_operand(fn, "mat", mat), dense_operand(fn, "vec", vec)
    require_rank(fn, "mat", A, 2)
    require_rank(fn, "vec", x, 1)
    return _plus(fn, dense_operand(fn, "input", input), product(fn, A, x), beta, alpha)


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
    fn = "baddbmm"
    require_rank(fn, "batch1", batch1, 3)
    require_rank(fn, "batch2", batch2, 3)
    if batch1.shape[0] != batch2.shape[0]:
        hint = "Use spgrad.matmul to broadcast."
        shape = tuple(batch2.shape)
        raise checks.bad_shape(fn, "batch2", shape, f"a batch of {batch1.shape[0]}", hint)
    y = product(fn, batch1, batch2)
    if isinstance(y, SparseTensor):
        y = to_dense(y)
    return _plus(fn, dense_operand(fn, "input", input), y, beta, alpha)


def _plus(
    fn: str, input: torch.Tensor, y: torch.Tensor, beta: Number, alpha: Number
) -> torch.Tensor:
    """beta input + alpha y in the shape of y."""
    checks.require_same_device(fn, input=input, result=y)
    checks.require_same_dtype(fn, input=input, result=y)
    try:
        expanded = input.expand_as(y)
    except RuntimeError:
        accepted = f"what broadcasts to {tuple(y.shape)}"
        hint = "It is added to the product."
        raise checks.bad_shape(fn, "input", tuple(input.shape), accepted, hint) from None
    if alpha != 1:
        y = y * alpha
    if beta == 0:
        return y
    return y + expanded if beta == 1 else y.add(expanded, alpha=beta)


def _add_sparse(
    fn: str,
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    beta: Number,
    alpha: Number,
) -> SparseTensor:
    """beta input + alpha mat1 mat2 of sparse matrices, in the layout of input."""
    if not (is_sparse(mat1) and is_sparse(mat2)):
        raise ArgumentKindError(
            f"spgrad.{fn}: `input` is sparse and one matrix is dense; a dense input, or two sparse "
            "matrices, are accepted. Use spgrad.sspaddmm for a sparse result."
        )
    C = matrix_operand(fn, "input", input)
    return _sum(fn, C, product(fn, mat1, mat2), beta, alpha)


def _sum(
    fn: str, C: SparseTensor, P: torch.Tensor, beta: Number, alpha: Number
) -> SparseTensor:
    """beta C + alpha P on the union of the patterns, in the layout of C."""
    checks.require_same_dtype(fn, input=C, result=P)
    if C._pattern.shape != P.shape:
        hint = "It is added to the product."
        accepted = f"{tuple(P.shape)}"
        raise checks.bad_shape(fn, "input", tuple(C._pattern.shape), accepted, hint)
    layout, blocksize = C._pattern.layout, C._pattern.blocksize
    product_part = _scaled(convert(P, torch.sparse_coo), alpha)  # type: ignore[arg-type]
    if beta == 0:
        return convert(product_part, layout, blocksize)
    both = add_coo(_scaled(convert(C, torch.sparse_coo), beta), product_part)
    return convert(both, layout, blocksize)


def _scaled(A: SparseTensor, factor: Number) -> SparseTensor:
    return A if factor == 1 else on_pattern(lowering.flat(A) * factor, A._pattern)


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
    fn = "sspaddmm"
    C = matrix_operand(fn, "input", input)
    require_rank(fn, "input", C, 2)
    P = _rows_of_product(fn, mat1, mat2, hybrid=False)
    return _sum(fn, convert(C, torch.sparse_coo), P, beta, alpha)


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
    return _rows_of_product("smm", input, mat, hybrid=False)


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
    return _rows_of_product("hspmm", mat1, mat2, hybrid=True)


def _rows_of_product(fn: str, A: torch.Tensor, x: torch.Tensor, *, hybrid: bool) -> SparseTensor:
    """The rows of A x in which A has an element, as a COO tensor."""
    names = ("mat1", "mat2") if fn != "smm" else ("input", "mat")
    A = matrix_operand(fn, names[0], A)
    x = dense_operand(fn, names[1], x)
    require_rank(fn, names[0], A, 2)
    require_rank(fn, names[1], x, 2)
    y = product(fn, A, x)
    row = A._pattern.derive("nonempty_rows", _nonempty_rows)
    vals = y.index_select(0, row)
    m, n = y.shape
    if hybrid:
        pattern = Pattern(torch.sparse_coo, (m, n), (row[None],), dense_dim=1)
        return on_pattern(vals, pattern)
    col = torch.arange(n, device=row.device)
    indices = torch.stack([row.repeat_interleave(n), col.repeat(row.numel())])
    return on_pattern(vals.reshape(-1), Pattern(torch.sparse_coo, (m, n), (indices,)))


def _nonempty_rows(pattern: Pattern) -> torch.Tensor:
    return lowering.rows(pattern).ptr.diff().nonzero().view(-1)


def sampled_addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> SparseTensor:
    """beta input + alpha (mat1 mat2 at the elements of input): the product where it is asked for.

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
    fn = "sampled_addmm"
    C = matrix_operand(fn, "input", sparse_operand(fn, "input", input))
    if not C._pattern.coalesced:
        C = convert(C, torch.sparse_coo)
    pattern = C._pattern
    g, x = dense_operand(fn, "mat1", mat1), dense_operand(fn, "mat2", mat2)
    checks.require_same_device(fn, input=C, mat1=g, mat2=x)
    checks.require_same_dtype(fn, input=C, mat1=g, mat2=x)
    k = g.shape[-1] if g.dim() else 0
    m, n = pattern.matrix
    for name, operand, wanted in (
        ("mat1", g, (*pattern.batch, m, k)),
        ("mat2", x, (*pattern.batch, k, n)),
    ):
        if tuple(operand.shape) != wanted:
            hint = f"It follows from input of shape {tuple(pattern.shape)}."
            raise checks.bad_shape(fn, name, tuple(operand.shape), f"{wanted}", hint)
    left = g.reshape(-1, k) if g.numel() else g.new_zeros(_lines(pattern, 0), k)
    right = x.mT.reshape(-1, k) if x.numel() else x.new_zeros(_lines(pattern, 1), k)
    found = products.sddmm(left, right, pattern)
    if alpha != 1:
        found = found * alpha
    if beta != 0:
        old = lowering.flat(C)
        found = found + (old if beta == 1 else old * beta)
    return on_pattern(found.view(pattern.values_shape), pattern)


def _lines(pattern: Pattern, side: int) -> int:
    view = (lowering.rows if side == 0 else lowering.cols)(pattern)
    return view.ptr.numel() - 1
