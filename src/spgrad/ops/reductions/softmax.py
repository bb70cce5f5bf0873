"""Softmax over the specified elements along a dimension."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad import kernels
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, plain, stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import sparse_operand
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.segments import Segments, segment_expand, segment_sum, segments_of
from spgrad.ops.reductions.axes import converted, one_dim, require_dims, require_dtype
from spgrad.public import public_op
from spgrad.torch_protocol.func_transforms import Function


@public_op
def softmax(
    input: torch.Tensor, dim: int, dtype: torch.dtype | None = None, _stacklevel: int = 3
) -> SparseTensor:
    """exp(a) / sum of exp(a) over the specified elements along a dimension.

    Unspecified elements count as minus infinity, so they stay unspecified, as in
    `torch.sparse.softmax`. With a graph, this gives the attention weights of the neighbours of
    each node.

    Args:
        input: Sparse tensor of any layout; repeated COO indices are added first.
        dim: Any dimension, negative ones too: of the matrix, the batch, or a dense one.
        dtype: The dtype to convert to first.
        _stacklevel: Not used; torch.nn.functional passes it.

    Returns:
        SparseTensor on the pattern of `input`.

    Gradient:
        y (g - sum of y g), with the sum along `dim`; on the pattern of `input`.

    Cost:
        O(nse) in one pass, which the gradient takes again. For another dimension than the one
        that the layout compresses, also a sort of the pattern, which is kept.

    Raises:
        TypeError: `input` is not sparse, or `dim` is not an int.
        ValueError: `dim` is outside the tensor, or the dtype is not a real one.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 1.0, 5.0], (2, 3))
        >>> spgrad.softmax(A, 1).to_dense()
        tensor([[0.5000, 0.0000, 0.5000],
                [0.0000, 1.0000, 0.0000]])
    """
    return _along(input, dim, dtype, log=False)


@public_op
def log_softmax(
    input: torch.Tensor, dim: int, dtype: torch.dtype | None = None, _stacklevel: int = 3
) -> SparseTensor:
    """a - log(sum of exp(a)): the logarithm of `spgrad.softmax` with the same arguments.

    Unspecified elements of the result stand for minus infinity too.
    """
    return _along(input, dim, dtype, log=True)


def _along(input: Any, dim: int, dtype: torch.dtype | None, *, log: bool) -> SparseTensor:
    A = without_repeats(sparse_operand("input", input))
    pattern = A._pattern
    (d,) = require_dims(one_dim(dim), len(pattern.shape))
    vals = converted(stored_values(A), dtype)
    require_dtype(vals.dtype, arg="dtype" if dtype else "input", accepted="real")
    sparse = len(pattern.shape) - pattern.dense_dim
    if d >= sparse:
        dense = torch.log_softmax if log else torch.softmax
        return on_pattern(dense(vals, d - len(pattern.shape)), pattern)
    flat = vals
    if vals.dim() > 1:
        flat = vals.reshape(pattern.elements, math.prod(pattern.dense_shape))
    out = softmax_values(flat, segments_of(pattern, (d,)), log)
    return on_pattern(out if flat is vals else out.view(pattern.values_shape), pattern)


def softmax_values(vals: torch.Tensor, segments: Segments, log: bool) -> torch.Tensor:
    """Softmax of the values (elements, d), or (elements,), of each segment."""
    if wants_grad(vals):
        return _Softmax.apply(vals, segments, log)  # type: ignore[return-value]
    assert segments.ptr is not None
    return kernels.segment_softmax(segments.ptr, segments.perm, plain(vals), log)


def softmax_of_some(scores: torch.Tensor, row: Segments) -> torch.Tensor:
    """Weights of scores (elements, heads) in each row; all 0 in a row without finite scores."""
    there = (scores.detach() != -torch.inf).to(scores.dtype)
    some = segment_expand(segment_sum(there, row), row) > 0
    return softmax_values(scores.where(some, 0), row, False).where(some, 0)


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, segments: Segments, log: bool) -> torch.Tensor:  # type: ignore[override]
        out = softmax_values(vals, segments, log)
        ctx.save_for_backward(out)
        ctx.segments, ctx.log = segments, log
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        (out,) = ctx.saved_tensors
        segments, log = ctx.segments, ctx.log
        if not torch.is_grad_enabled():
            operands = segments.ptr, segments.perm, out, plain(g)
            return kernels.segment_softmax_backward(*operands, log), None, None
        if log:
            return g - out.exp() * segment_expand(segment_sum(g, segments), segments), None, None
        return out * (g - segment_expand(segment_sum(out * g, segments), segments)), None, None
