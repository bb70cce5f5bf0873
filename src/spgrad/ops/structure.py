"""Operations on structure: coalesce, sums over two patterns, transposition."""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.errors import ArgumentKindError, UnsupportedError
from spgrad.ops.operands import matrix_operand, require_rank, sparse_operand
from spgrad.pattern import LAYOUTS, Pattern
from spgrad.support import FLIPPED
from spgrad.tensor import SparseTensor
from spgrad.values import on_pattern, stored_values


def coalesce(A: torch.Tensor) -> SparseTensor:
    """A with sorted unique indices; the values of repeated ones add.

    Args:
        A: COO tensor of any number of sparse and dense dimensions.

    Returns:
        COO SparseTensor that answers True to `is_coalesced`; `A` itself if it does already. It
        shares the indices and values of `A` where these are sorted and unique.

    Gradient:
        Every specified element of `A` gets the cotangent of the element it went into.

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
    A = sparse_operand("coalesce", "A", A)
    pattern = A._pattern
    if pattern.coalesced:
        return A
    unique, group = pattern.derive("coalesced", _coalesced)
    vals = stored_values(A)
    if group is not None:
        wide = vals.float() if vals.dtype in (torch.bfloat16, torch.float16) else vals
        total = wide.new_zeros(unique.values_shape).index_add(0, group, wide)
        vals = total.to(vals.dtype)
    return on_pattern(vals, unique)


def without_repeats(A: SparseTensor) -> SparseTensor:
    """A, coalesced if it is COO that is not known to be."""
    return A if A._pattern.coalesced else coalesce(A)


def _coalesced(pattern: Pattern) -> tuple[Pattern, torch.Tensor | None]:
    """The coalesced pattern, and for each entry the place its value goes to (None: its own)."""
    group = None
    indices = pattern.indices[0]
    if not pattern.ordered:
        sparse_shape = pattern.shape[: pattern.sparse_dim]
        indices, group = kernels.coalesce(indices, list(sparse_shape))
    spec = pattern.spec._replace(coalesced=True, ordered=True)
    return Pattern.from_spec(spec, pattern.shape, (indices,)), group


def t(input: torch.Tensor) -> SparseTensor:
    """The transpose of a sparse matrix.

    Args:
        input: Sparse (m, n) without dense dimensions.

    Returns:
        SparseTensor (n, m). The transpose of CSR is CSC and of BSR is BSC, and the other way round;
        without blocks it shares indices and values with `input`. COO stays COO, coalesced.

    Gradient:
        The transposed cotangent, on the pattern of `input`.

    Cost:
        O(1) for CSR and CSC, O(nse) otherwise; the index work once for each pattern.

    Raises:
        TypeError: `input` is not sparse.
        ValueError: `input` is not a matrix.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
        >>> A.t().layout, (A.T @ torch.ones(2)).tolist()
        (torch.sparse_csc, [1.0, 3.0, 2.0])
    """
    A = matrix_operand("t", "input", input)
    require_rank("t", "input", A, 2, "Use spgrad.transpose(A, -2, -1) or A.mT for a batch.")
    return _transposed(A)


def transpose(input: torch.Tensor, dim0: int, dim1: int) -> SparseTensor:
    """`input` with its two matrix dimensions exchanged; batches too.

    Args:
        input: Sparse (*b, m, n) without dense dimensions.
        dim0: One of the last two dimensions.
        dim1: One of the last two dimensions.

    Returns:
        SparseTensor (*b, n, m), in the layout that `spgrad.t` gives; `input` itself if both
        dimensions are the same.

    Gradient:
        The transposed cotangent, on the pattern of `input`.

    Cost:
        As `spgrad.t`.

    Raises:
        TypeError: `input` is not sparse, or a dimension is no int.
        NotImplementedError: A dimension is not one of the last two, or `input` has dense ones.

    Example:
        >>> A = spgrad.from_dense(torch.ones(3, 1, 2))
        >>> spgrad.transpose(A, 1, 2).shape
        torch.Size([3, 2, 1])
    """
    A = matrix_operand("transpose", "input", input)
    ndim = len(A._pattern.shape)
    for name, dim in (("dim0", dim0), ("dim1", dim1)):
        if not isinstance(dim, int):
            raise ArgumentKindError(
                f"spgrad.transpose: `{name}` is {dim!r}; an int is accepted. For example -1."
            )
        if dim not in (-2, -1, ndim - 2, ndim - 1):
            raise UnsupportedError(
                f"spgrad.transpose: `{name}` is {dim} of {ndim} dimensions; the last two, "
                f"{ndim - 2} and {ndim - 1}, are accepted. Batch dimensions stay in front."
            )
    return A if dim0 % ndim == dim1 % ndim else _transposed(A)


def _transposed(A: SparseTensor) -> SparseTensor:
    if not A._pattern.coalesced:
        A = coalesce(A)
    pattern, order = A._pattern.derive("transposed", _transposed_pattern)
    vals = stored_values(A)
    if pattern.blocksize is not None:
        vals = vals.transpose(1, 2).contiguous()
    return on_pattern(vals if order is None else vals.index_select(0, order), pattern)


def _transposed_pattern(pattern: Pattern) -> tuple[Pattern, torch.Tensor | None]:
    """The pattern of the transpose, and which old entry each of its entries is (None: the same)."""
    shape = (*pattern.batch, *reversed(pattern.matrix))
    if not pattern.is_coo:
        blocks = pattern.blocksize and (pattern.blocksize[1], pattern.blocksize[0])
        flipped = LAYOUTS[FLIPPED[pattern.name]]
        return Pattern(flipped, shape, pattern.indices, blocksize=blocks), None
    swapped = pattern.indices[0].clone()
    swapped[-2], swapped[-1] = pattern.indices[0][-1], pattern.indices[0][-2]
    indices, group = kernels.coalesce(swapped, list(shape))  # unique, so `group` is a bijection
    positions = torch.arange(group.numel(), device=group.device)
    order = torch.empty_like(group).index_copy_(0, group, positions)
    return Pattern(torch.sparse_coo, shape, (indices,)), order
