"""Operations on structure: coalesce, transposition."""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.gather import Gather
from spgrad.lowering.operands import matrix_operand, require_rank, sparse_operand
from spgrad.lowering.sorting import lexicographic, many
from spgrad.lowering.views import cols
from spgrad.public import public_op
from spgrad.support import FLIPPED, OPS


@public_op
def coalesce(A: torch.Tensor) -> SparseTensor:
    """A with sorted unique indices; repeated values are added.

    Args:
        A: COO tensor of any number of sparse and dense dimensions.

    Returns:
        COO SparseTensor whose `is_coalesced()` is True; `A` itself if this is so already. If the
        indices of `A` are sorted and unique, the result shares its indices and values.

    Gradient:
        Every specified element of `A` gets the cotangent of the element that it was added to.

    Cost:
        O(nse) radix passes over the indices, once for each pattern; O(nse) memory.

    Raises:
        TypeError: `A` is not sparse.
        NotImplementedError: `A` has another layout than COO.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[1, 1, 0]], [3.0, 4.0, 5.0], (3,))
        >>> spgrad.coalesce(A).indices(), spgrad.coalesce(A).values()
        (tensor([[0, 1]]), tensor([5., 7.]))
    """
    return without_repeats(sparse_operand("A", A, layouts=OPS["coalesce"].layouts))


@public_op
def t(input: torch.Tensor) -> SparseTensor:
    """The transpose of a sparse matrix.

    Args:
        input: Sparse (m, n) without dense dimensions.

    Returns:
        SparseTensor (n, m). The transpose of CSR is CSC, that of BSR is BSC, and vice versa. CSR
        and CSC share indices and values with `input`. COO stays COO, coalesced.

    Gradient:
        The transposed cotangent, on the pattern of `input`.

    Cost:
        O(1) for CSR and CSC, O(nse) otherwise. Indices are computed once for each pattern.

    Raises:
        TypeError: `input` is not sparse.
        ValueError: `input` is not a matrix.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
        >>> A.t().layout, (A.T @ torch.ones(2)).tolist()
        (torch.sparse_csc, [1.0, 3.0, 2.0])
    """
    A = matrix_operand("input", input, bools=True)
    require_rank("input", A, 2, "Use spgrad.transpose(A, -2, -1) or A.mT for a batch.")
    return transposed(A)


def transposed(A: SparseTensor) -> SparseTensor:
    """A with its last two sparse dimensions exchanged; batches and dense dimensions stay."""
    A = without_repeats(A)
    pattern, gather = A._pattern.derive(kept.TRANSPOSED, _transposed_pattern)
    vals = stored_values(A)
    if pattern.blocksize is not None:
        vals = vals.transpose(1, 2).contiguous()
    return on_pattern(gather(vals), pattern)


def _transposed_pattern(pattern: Pattern) -> tuple[Pattern, Gather]:
    """The pattern of the transpose, and which old entry each of its entries is."""
    shape = (*pattern.batch, *reversed(pattern.matrix), *pattern.dense_shape)
    if not pattern.is_coo:
        blocks = pattern.blocksize and (pattern.blocksize[1], pattern.blocksize[0])
        spec = pattern.spec._replace(layout=FLIPPED[pattern.name], blocksize=blocks)
        found = Pattern.from_spec(spec, shape, pattern.indices).as_uniform_as(pattern)
        return found.ascending(pattern), Gather(None, pattern.nse)
    if pattern.sparse_dim == 2 and not many(max(pattern.matrix), pattern):
        by_columns = cols(pattern)
        assert by_columns.perm is not None
        row = kernels.expand(by_columns.ptr, pattern.nse)
        indices = torch.stack([row, by_columns.idx]).to(pattern.indices[0].dtype)
        found = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=pattern.dense_dim)
        found.keep(kept.ROWS, by_columns._replace(perm=None))
        return found.ascending(pattern), Gather(by_columns.perm, pattern.nse)
    swapped = pattern.indices[0].clone()
    swapped[-2], swapped[-1] = pattern.indices[0][-1], pattern.indices[0][-2]
    batch = len(pattern.batch)
    order = lexicographic(swapped, shape[: batch + 2], batch + 1)
    indices = swapped.index_select(1, order)
    found = Pattern(torch.sparse_coo, shape, (indices,), dense_dim=pattern.dense_dim)
    return found.ascending(pattern), Gather(order, pattern.nse)
