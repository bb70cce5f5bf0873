"""Operations on the structure of COO tensors: coalesce, and sums over two patterns."""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.ops.operands import sparse_operand
from spgrad.pattern import Pattern
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


def _coalesced(pattern: Pattern) -> tuple[Pattern, torch.Tensor | None]:
    """The coalesced pattern, and for each entry the place its value goes to (None: its own)."""
    group = None
    indices = pattern.indices[0]
    if not pattern.ordered:
        sparse_shape = pattern.shape[: pattern.sparse_dim]
        indices, group = kernels.coalesce(indices, list(sparse_shape))
    spec = pattern.spec._replace(coalesced=True, ordered=True)
    return Pattern.from_spec(spec, pattern.shape, (indices,)), group


def add_coo(A: SparseTensor, B: SparseTensor) -> SparseTensor:
    """A + B of two COO tensors of one shape, coalesced, on the union of their patterns."""
    pattern = A._pattern.derive_with("joined", B._pattern, _joined)
    return coalesce(on_pattern(torch.cat([stored_values(A), stored_values(B)]), pattern))


def _joined(a: Pattern, b: Pattern) -> Pattern:
    dtype = torch.promote_types(a.indices[0].dtype, b.indices[0].dtype)
    indices = torch.cat([a.indices[0].to(dtype), b.indices[0].to(dtype)], 1)
    spec = a.spec._replace(coalesced=False, ordered=False)
    return Pattern.from_spec(spec, a.shape, (indices,))
