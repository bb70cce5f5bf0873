"""Elements at the places where another tensor has elements: sparse_mask."""

from __future__ import annotations

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.lowering.align import align
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.dense_at import dense_at_elements
from spgrad.lowering.operands import dense_operand, is_sparse, sparse_operand
from spgrad.public import public_op


@public_op
def sparse_mask(input: torch.Tensor, mask: torch.Tensor) -> SparseTensor:
    """The elements of `input` at the specified elements of `mask`.

    Args:
        input: Dense or sparse, of the shape of `mask`; sparse in any layout.
        mask: Sparse tensor whose pattern is taken; its values are ignored. Repeated elements count
            once.

    Returns:
        SparseTensor in the layout and on the pattern of `mask`, coalesced; 0 where a sparse `input`
        has no element.

    Gradient:
        Of a dense `input`: dense, 0 off the mask. Of a sparse one: on its own pattern.

    Cost:
        O(nse of both); the places are found once for a pair of patterns.

    Raises:
        TypeError: `mask` is not sparse, or `input` is not a tensor.
        ValueError: Shapes or devices differ.

    Example:
        >>> mask = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 1.0], (2, 2))
        >>> spgrad.sparse_mask(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), mask).values()
        tensor([2., 3.])
    """
    M = sparse_operand("mask", mask)
    # only the pattern of the mask matters, and it has no gradient
    M = SparseTensor(M._vals, M._pattern)
    if is_sparse(input):
        A = sparse_operand("input", input)
        checks.require_same_device(input=A._vals, mask=M._vals)
        aligned = align(without_repeats(M), A, "first", name="input")
        return on_pattern(aligned.b, aligned.pattern)
    x = dense_operand("input", input)
    checks.require_same_device(input=x, mask=M._vals)
    if x.shape != M._pattern.shape:
        accepted = f"{tuple(M._pattern.shape)}, the shape of `mask`,"
        raise checks.bad_shape("input", tuple(x.shape), accepted, "Expand it first.")
    pattern = without_repeats(M)._pattern
    found = dense_at_elements(x, pattern)
    found = found.expand(pattern.values_shape)  # x of size 1 gives one number, also for no element
    return on_pattern(found.contiguous(), pattern)
