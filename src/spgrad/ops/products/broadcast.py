"""Products of any two operands, batches, vectors and bools too, lowered to one matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern, stored_values
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import is_sparse, sparse_operand
from spgrad.lowering.products import spmm
from spgrad.lowering.products.row_spmm import row_spmm
from spgrad.ops.products.spgemm import spgemm

T = TypeVar("T", bound=torch.Tensor)
_DENSE = (torch.Tensor, torch.nn.Parameter)


def fits_at_once(A: SparseTensor, x: Any) -> bool:
    """Whether A is a matrix of numbers, and x a dense vector or matrix that fits it.

    These are the most frequent operands. For others, several functions find out what to convert or
    to refuse, which takes longer.
    """
    if type(x) not in _DENSE:
        return False
    pattern, vals, size = A._pattern, A._vals, x.shape
    shape, dtype = pattern.shape, vals.dtype
    return (
        len(shape) == 2
        and 0 < len(size) <= 2
        and shape[1] == size[0]
        and not pattern.dense_dim
        and x.dtype == dtype
        and dtype in checks.PRODUCT_DTYPES
        and x.layout == torch.strided
        and x.device == vals.device
    )


def flat(A: SparseTensor) -> torch.Tensor:
    """Values of a matrix or batch, one by one, as the views of its pattern count them."""
    return spmm.one_by_one(stored_values(A))


def by_head(A: SparseTensor) -> torch.Tensor:
    """Values (elements, heads) of a hybrid matrix or batch: a head for each dense index."""
    pattern = A._pattern
    return stored_values(A).reshape(pattern.elements, math.prod(pattern.dense_shape))


def sparse_dense(A: SparseTensor, x: torch.Tensor, *, transpose: bool = False) -> torch.Tensor:
    """A x, or A^T x, with the broadcasting of `torch.matmul`; x is a vector or (*batch, k, n)."""
    pattern, ndim = A._pattern, x.dim()
    if ndim == 1:
        y = spmm.spmv_of(A, x, transpose)
        if y is not None:
            return y
        return as_result(sparse_dense(A, x.unsqueeze(-1), transpose=transpose).squeeze(-1))
    if len(pattern.shape) > 2:
        return _batched_spmm(A, x, transpose)
    if ndim == 2:
        return spmm.spmm_of(A, x, transpose)
    folded = x.movedim(-2, 0)  # (k, *batch, n): the batch becomes more columns
    columns = math.prod(folded.shape[1:])
    y = spmm.spmm_of(A, folded.reshape(x.shape[-2], columns), transpose)
    return y.view(y.shape[0], *folded.shape[1:]).movedim(0, -2).contiguous()


def _batched_spmm(A: SparseTensor, x: torch.Tensor, transpose: bool) -> torch.Tensor:
    """The product of a batch of sparse matrices: one block-diagonal product.

    A batch dimension that A has is part of the block-diagonal matrix, and x is expanded along it;
    one that A lacks (or has as 1) becomes columns of x.
    """
    pattern = A._pattern
    m, k = reversed(pattern.matrix) if transpose else pattern.matrix
    columns, unfold = in_columns(pattern, x, k)
    return unfold(spmm.spmm_of(A, columns, transpose), m)


def in_columns(
    pattern: Pattern, x: torch.Tensor, k: int, heads: tuple[int, ...] = ()
) -> tuple[torch.Tensor, Callable[[torch.Tensor, int], torch.Tensor]]:
    """x (*batch, k, n) as a factor of the block-diagonal matrix, and what turns the result back.

    The second is a function of the product (items m, columns) and m, which gives (*batch, m, n).
    With `heads`, x is (*batch, k, *heads, n), and the factor (items k, *heads, columns).
    """
    n, h = x.shape[-1], len(heads)
    given = x.shape[: x.dim() - h - 2]
    if tuple(given) == pattern.batch:  # the items of x are those of A, in their order
        rows = x.reshape(math.prod(pattern.batch) * k, *heads, n)
        return rows, lambda y, m: as_result(y, (*pattern.batch, m, *y.shape[1:]))
    batch = checks.broadcast_shapes(pattern.batch, given)
    own = (1,) * (len(batch) - len(pattern.batch)) + pattern.batch
    matched = [i for i, size in enumerate(own) if size != 1 or batch[i] == 1]
    folded = [i for i in range(len(batch)) if i not in matched]
    r = len(batch)
    order = [*matched, *range(r, r + 1 + h), *folded, r + 1 + h]
    items = math.prod(batch[i] for i in matched)
    columns = math.prod(batch[i] for i in folded) * n

    def unfold(y: torch.Tensor, m: int) -> torch.Tensor:
        y = y.view(*(batch[i] for i in matched), m, *heads, *(batch[i] for i in folded), n)
        return as_result(y.permute(*(order.index(i) for i in range(r + 2 + h))).contiguous())

    x = x.expand(*batch, k, *heads, n).permute(order)
    return x.reshape(items * k, *heads, columns), unfold


def dense_sparse(x: torch.Tensor, A: SparseTensor) -> torch.Tensor:
    """x A = (A^T x^T)^T; x is a vector or (*batch, n, m)."""
    if x.dim() == 1:
        return sparse_dense(A, x, transpose=True)
    if len(A._pattern.shape) > 2:
        return sparse_dense(A, x.mT, transpose=True).mT.contiguous()
    return rows_by_matrix(x, flat(A), A._pattern, transpose=True)


def rows_by_matrix(
    x: torch.Tensor,
    vals: torch.Tensor,
    pattern: Pattern,
    *,
    transpose: bool = False,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """x A^T + bias, or x A + bias, for x (*batch, k) and a matrix with these flat values."""
    if x.dim() == 2:
        return row_spmm(vals, x, pattern, transpose, bias)
    if x.dim() == 1:
        y = as_result(spmm.spmm(vals, x.unsqueeze(1), pattern, transpose).squeeze(1))
        return y if bias is None else y + bias
    flat_x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    y = row_spmm(vals, flat_x, pattern, transpose, bias)
    return as_result(y, (*x.shape[:-1], y.shape[-1]))


def sparse_sparse(A: SparseTensor, B: SparseTensor) -> SparseTensor:
    """A B of two sparse operands, in the layout of A, batches broadcast."""
    a, b = A._pattern, B._pattern
    layout, blocksize = a.layout, None
    if a.blocksize is not None:
        blocksize = (a.blocksize[0], b.blocksize[1] if b.blocksize else 1)
    batch = tuple(checks.broadcast_shapes(a.batch, b.batch))
    A, B = _expanded(A, batch), _expanded(B, batch)
    a, b = A._pattern, B._pattern
    vals, c = spgemm(flat(A), flat(B), (a, b))
    return convert(on_pattern(vals, c), layout, blocksize)


def _expanded(A: SparseTensor, batch: tuple[int, ...]) -> SparseTensor:
    """A with its entries repeated along the batch dimensions that it lacks; CSR if it has to."""
    if A._pattern.batch == batch:
        return A
    A = convert(A, torch.sparse_csr)
    pattern, source = A._pattern.derive(kept.EXPANDED.of(batch), lambda p: _in_batch(p, batch))
    return on_pattern(stored_values(A).index_select(0, source), pattern)


def _in_batch(pattern: Pattern, batch: tuple[int, ...]) -> tuple[Pattern, torch.Tensor]:
    ptr, idx = pattern.indices[0].to(torch.int64), pattern.indices[1]
    items = math.prod(pattern.batch)
    lines = pattern.matrix[0]
    source_item = (
        torch.arange(items, device=ptr.device).view(pattern.batch).expand(batch).reshape(-1)
    )
    item_ptr = ptr[::lines] if lines else ptr.new_zeros(items + 1)
    counts = ptr.diff().view(items, lines)[source_item].reshape(-1)
    new_ptr = torch.cat([ptr[:1], counts.cumsum(0)])
    new_item_ptr = torch.cat([ptr[:1], item_ptr.diff()[source_item].cumsum(0)])
    shift = item_ptr[:-1][source_item] - new_item_ptr[:-1]
    nse = int(new_ptr[-1])
    source = torch.arange(nse, device=ptr.device) + shift[kernels.expand(new_item_ptr, nse)]
    shape = (*batch, *pattern.matrix)
    found = Pattern(torch.sparse_csr, shape, (new_ptr, idx[source].to(torch.int64)))
    return found.as_uniform_as(pattern), source


def are_bools(*operands: Any) -> bool:
    """True if all operands are bool tensors, which torch has no products of."""
    return all(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in operands)


def as_counts(arg: str, x: torch.Tensor) -> torch.Tensor:
    """1 for True and 0 for False, in a dtype that counts the products of any row."""
    if not is_sparse(x):
        return x.to(torch.int32)
    A = sparse_operand(arg, x)
    return on_pattern(A._vals.to(torch.int32), A._pattern)


def as_truth(y: T) -> T:
    """Whether each count is not 0."""
    return on_pattern(y._vals != 0, y._pattern) if isinstance(y, SparseTensor) else y != 0  # type: ignore[return-value]
