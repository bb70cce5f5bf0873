"""The Kronecker product of two sparse tensors."""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import sparse_operand
from spgrad.lowering.ranges import lines_of, of_lines
from spgrad.lowering.rebuild import (
    Found,
    Move,
    Placed,
    assembled,
    coordinates,
    finished,
    flat_values,
    positions,
)
from spgrad.ops.shapes.shape import reshaped
from spgrad.public import public_op


@public_op
def kron(input: torch.Tensor, other: torch.Tensor) -> SparseTensor:
    """The Kronecker product: every element of `input` times all of `other`, as a block.

    Args:
        input: Sparse tensor of any layout.
        other: Sparse tensor of any layout. One with fewer dimensions gets some of size 1 in front.

    Returns:
        SparseTensor of the products of the sizes, in the layout of `input`; in BSR and BSC with
        the blocks of `other`, if it has some. The result has an element for each pair of elements.

    Gradient:
        Of `input`: for each element, the sum over its block of the cotangent times `other`; of
        `other` likewise; each on its own pattern.

    Cost:
        O(nse of the result); indices are computed once for each pair of patterns.

    Raises:
        TypeError: An operand is not sparse.
        ValueError: Devices differ, or the result has more than 2^63 - 1 elements.
        NotImplementedError: An operand has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> spgrad.kron(A, spgrad.from_dense(torch.tensor([[3.0, 4.0]]))).to_dense()
        tensor([[3., 4., 0., 0.],
                [0., 0., 6., 8.]])
    """
    operands = []
    for arg, x in (("input", input), ("other", other)):
        A = sparse_operand(arg, x)
        if A._pattern.dense_dim:
            raise UnsupportedError(
                f"`{arg}` has {A._pattern.dense_dim} dense dimension(s); sparse dimensions alone "
                "are accepted. Take one slice of the dense dimensions at a time."
            )
        operands.append(A)
    A, B = operands
    checks.require_same_device(input=A._vals, other=B._vals)
    A, B = without_repeats(A), without_repeats(B)
    ndim = max(len(A._pattern.shape), len(B._pattern.shape))
    A, B = _lifted(A, ndim), _lifted(B, ndim)
    a, b = A._pattern, B._pattern
    checks.require_addressable(_kron_shape(a, b), None)
    made = a.derive_with(kept.KRON, b, _kron_pattern)
    vals = (flat_values(A)[:, None] * flat_values(B)).reshape(-1)
    vals = made.gather(vals)
    return on_pattern(vals.view(made.pattern.values_shape), made.pattern)


def _lifted(A: SparseTensor, ndim: int) -> SparseTensor:
    """A with dimensions of size 1 in front."""
    shape = tuple(A._pattern.shape)
    lead = ndim - len(shape)
    return reshaped(A, (1,) * lead + shape, ndim) if lead else A


def _kron_shape(a: Pattern, b: Pattern) -> tuple[int, ...]:
    return tuple(p * q for p, q in zip(a.shape, b.shape, strict=True))


def _kron_by_lines(a: Pattern, b: Pattern, shape: tuple[int, ...]) -> Found | None:
    """The product of two matrices of one layout without blocks."""
    if len(shape) != 2 or a.layout != b.layout:
        return None
    if a.is_coo and shape[0] > 4 * a.nse * b.nse:  # row pointers would cost more than the entries
        return None
    own = torch.promote_types(a.indices[0].dtype, b.indices[0].dtype)
    dtype = index_dtype(own, (*shape, a.elements * b.elements))
    of_a, of_b = lines_of(a, dtype), lines_of(b, dtype)
    if of_a is None or of_b is None:
        return None
    num_cols = b.shape[of_b.idx_dim]
    operands = (of_a.ptr, of_a.idx.contiguous(), of_b.ptr, of_b.idx.contiguous())
    ptr, idx, entry = kernels.kron_lines(*operands, num_cols)
    return Found(of_lines(a, shape, ptr, idx).ascending(a, b), entry)


def _kron_pattern(a: Pattern, b: Pattern) -> Move:
    """The pattern of the product, and which pair (p, q) of elements each of its elements is."""
    shape = _kron_shape(a, b)
    found = _kron_by_lines(a, b, shape)
    if found is not None:
        return finished(found, a.elements * b.elements)
    of_a, of_b = coordinates(a), coordinates(b)
    own = torch.promote_types(of_a.pattern.indices[0].dtype, of_b.pattern.indices[0].dtype)
    dtype = index_dtype(own, shape)
    at_a, at_b = (f.pattern.indices[0].to(dtype) for f in (of_a, of_b))
    scaled = [index * size for index, size in zip(at_a, b.shape, strict=True)]
    first_of = torch.stack(scaled) if scaled else at_a
    indices = (first_of[:, :, None] + at_b[:, None, :]).flatten(1)
    entry = None
    if of_a.entry is not None or of_b.entry is not None:
        first, second = (
            positions(at_a, p.elements) if f.entry is None else f.entry
            for p, f in ((a, of_a), (b, of_b))
        )
        entry = (first[:, None] * b.elements + second).reshape(-1)
    # pairs of one row stand in order: by the column in a, then in b
    found = Placed(indices, entry, max(len(shape) - 1, 0))
    made = assembled(shape, found, 0, (a.layout, a.blocksize and (b.blocksize or a.blocksize)))
    return finished(made, a.elements * b.elements)
