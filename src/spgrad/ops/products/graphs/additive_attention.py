"""Attention whose scores add a number for each end of an edge, as in graph attention."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError
from spgrad.lowering.align import readable
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import dense_operand
from spgrad.lowering.products.spmm import spmm, wants_grad
from spgrad.lowering.segments import segment_expand, segments_of
from spgrad.lowering.views import cols, rows
from spgrad.ops.products import broadcast
from spgrad.ops.products.attention import (
    in_float32,
    mask_operand,
    require_dropout,
    without_false,
)
from spgrad.ops.reductions.axes import require_dtype
from spgrad.ops.reductions.softmax import softmax_of_some, softmax_values
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import lowered
from spgrad.torch_protocol.func_transforms import Derived, transforming


@public_op
@lowered
def additive_attention(
    left: torch.Tensor,
    right: torch.Tensor,
    x: torch.Tensor,
    attn_mask: torch.Tensor,
    *,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
) -> torch.Tensor:
    """softmax(leaky_relu(left_i + right_j + a_ij)) x over the elements of each row of A.

    Graph attention: for each head, a score is a number of the row plus a number of the column, and
    not a dot product as in `spgrad.scaled_dot_product_attention`. On the CPU, scores and weights
    of several heads are computed a few thousand at a time, and multiplied by x at once. The
    backward computes them again, from the largest score and the sum of the exponentials of each
    row.

    Args:
        left: Dense (*b, m, *h), a number for each row and each of h heads.
        right: Dense (*b, k, *h).
        x: Dense (*b, k, *h, n).
        attn_mask: Sparse (*b, m, k), or a hybrid (*b, m, k | *h) with values of its own for each
            head. Unspecified elements take no part. Values of the dtype of `x` are added to the
            scores before leaky_relu; elements of minus infinity take no part. In a bool mask, the
            True elements take part. Pass a graph whose values are not scores as
            ``A.to(torch.bool)``.
        negative_slope: Slope of leaky_relu for negative numbers, 0 or more.
        dropout_p: Share of the weights that is set to zero; stores nse weights for each head.

    Returns:
        Dense (*b, m, *h, n). Rows of A without elements give zeros.

    Gradient:
        Of all operands; of A on its pattern. The gradient of `left` needs no pass over the
        elements: the gradients of the scores of a row add up to zero before leaky_relu, so it
        follows from the sum of `x` over the scores above zero, which the forward computes.

    Cost:
        O(nse h n) time. Memory for two results and 3 h numbers of each row; the backward takes
        memory for the gradients and 4 h numbers of each row. Values of a mask that is not hybrid
        are copied for each head, and 16-bit operands to float32; Triton's kernels need no copies.
        Some calls are made of several operations, which store a few tensors of nse h numbers: on
        the CPU large calls with one head or fewer than 3 elements a row, because they are faster
        so; second derivatives, transforms of torch.func and dropout; and calls for which there is
        neither the compiled library nor Triton.

    Raises:
        TypeError: `attn_mask` is not sparse or another operand not dense.
        ValueError: Sizes, dtypes or devices don't fit, or an option has another value.

    Source:
        Velickovic, Cucurull, Casanova, Romero, Lio, Bengio 2018, "Graph Attention Networks".

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [True, True, True], (2, 3))
        >>> left, right, x = torch.zeros(2), torch.ones(3), torch.tensor([[1.0], [2.0], [5.0]])
        >>> spgrad.additive_attention(left, right, x, A)
        tensor([[3.],
                [2.]])
    """
    A = without_repeats(mask_operand(attn_mask))
    given = {"left": left, "right": right, "x": x}
    left, right, x = (dense_operand(name, operand) for name, operand in given.items())
    _require_slope(negative_slope)
    require_dropout(dropout_p)
    heads = _heads_of(A, left, right, x)
    A, bias = _shared_or_own(A, x.dtype)
    pattern = A._pattern
    items, h = math.prod(pattern.batch), math.prod(heads)
    m, k = pattern.matrix
    left, right = left.reshape(items * m, h), right.reshape(items * k, h)
    x = x.reshape(items * k, h, x.shape[-1])
    y = attend(pattern, bias, left, right, x, negative_slope, dropout_p)
    return y.reshape(*pattern.batch, m, *heads, x.shape[-1])


def _require_slope(negative_slope: Any) -> None:
    checks.require_number("negative_slope", negative_slope, "Leave it out for 0.2.")
    if not 0 <= negative_slope < math.inf:
        raise ArgumentValueError(
            f"`negative_slope` is {negative_slope}; finite numbers from 0 on are accepted. "
            "Leave it out for 0.2."
        )


def _heads_of(
    A: SparseTensor, left: torch.Tensor, right: torch.Tensor, x: torch.Tensor
) -> tuple[int, ...]:
    """The sizes of the heads, or the refusal of operands that don't fit."""
    checks.require_same_device(attn_mask=A, left=left, right=right, x=x)
    checks.require_same_dtype(left=left, right=right, x=x)
    require_dtype(x.dtype, arg="x", accepted="real")
    if A._vals.dtype != torch.bool:
        checks.require_same_dtype(x=x, attn_mask=A)
    batch, (m, k) = A._pattern.batch, A._pattern.matrix
    hint = f"It follows from attn_mask of shape {tuple(A._pattern.shape)}."
    lead = len(batch) + 1
    own = A._pattern.dense_shape
    heads = tuple(left.shape[lead:])
    if tuple(left.shape[:lead]) != (*batch, m) or (own and heads != own):
        accepted = ", ".join(map(str, (*batch, m, *(own or ("*h",)))))
        raise checks.bad_shape("left", tuple(left.shape), f"({accepted})", hint)
    hint = f"It follows from `left` of shape {tuple(left.shape)} and the columns of attn_mask."
    if tuple(right.shape) != (*batch, k, *heads):
        raise checks.bad_shape("right", tuple(right.shape), f"{(*batch, k, *heads)}", hint)
    if x.dim() != right.dim() + 1 or tuple(x.shape[:-1]) != tuple(right.shape):
        accepted = ", ".join(map(str, (*batch, k, *heads, "n")))
        raise checks.bad_shape("x", tuple(x.shape), f"({accepted})", hint)
    return heads


def _shared_or_own(A: SparseTensor, dtype: torch.dtype) -> tuple[SparseTensor, torch.Tensor | None]:
    """A, and what is added to scores: (elements, 1) or (elements, heads); None for nothing.

    A bool matrix gives its elements that are True. Where its values are not read, in a graph of
    torch.compile and on a device, minus infinity is added for the others.
    """
    own = bool(A._pattern.dense_dim)
    values = broadcast.by_head(A) if own else broadcast.flat(A)[:, None]
    if values.dtype != torch.bool:
        return A, values
    if not own and readable(A._vals):
        return without_false(A), None
    return A, torch.zeros_like(values, dtype=dtype).masked_fill(~values, -torch.inf)


class Scoring(NamedTuple):
    """What the scores of a call are made of, beside tensors."""

    pattern: Pattern
    slope: float


def attend(
    pattern: Pattern,
    bias: torch.Tensor | None,
    left: torch.Tensor,
    right: torch.Tensor,
    x: torch.Tensor,
    slope: float,
    dropout_p: float = 0.0,
) -> torch.Tensor:
    """(rows, h, n) of `bias` (elements, h), left (rows, h), right (columns, h), x (columns, h, n).

    Rows and columns are those of all items of a batch. A bias (elements, 1) is that of all heads.
    Numbers of 16 bits are computed with in float32.
    """
    scoring = Scoring(pattern, float(slope))
    fused = not dropout_p and not transforming() and _fused(pattern, x)
    operands = bias, left, right, x
    if not (fused and _by_triton(x)):
        operands = in_float32(bias), in_float32(left), in_float32(right), in_float32(x)
        if fused and bias is not None:  # the compiled library takes one for each head
            operands = operands[0].expand(-1, x.shape[1]), *operands[1:]
    given = [t for t in operands if t is not None]
    if not fused:
        y = _attend_storing(*operands, scoring, dropout_p)
    elif wants_grad(*given):
        y = _AdditiveAttention.apply(*operands, scoring)
    else:
        y = _forward_of_rows(*operands, scoring, split=False)[0]
    return y.to(x.dtype)


def _by_triton(x: torch.Tensor) -> bool:
    """Whether Triton's kernels answer, which also take 16 bits, and one bias for all heads."""
    return x.device.type == "cuda" and "additive_attention" in kernels.by_triton()


_FEW_OF_ONE, _FEW = 2**12, 2**18
"""Scores of one head, and of several, up to which one call of a kernel is the faster way."""


def _fused(pattern: Pattern, x: torch.Tensor) -> bool:
    """Whether one kernel computes it, or several operations, which store scores.

    The kernel also sums the scores above zero of each row. On graphs of few elements a row that
    takes as long as the scores, and as much memory. One head has faster kernels for each step.
    Triton's kernel saves passes over memory in every call.
    """
    if _by_triton(x):
        return True
    if x.device.type != "cpu" or not kernels.compiled():
        return False
    heads, elements = x.shape[1], pattern.elements
    if not isinstance(elements, int):  # no guard on a size of a compiler
        return True
    if elements * heads <= (_FEW_OF_ONE if heads == 1 else _FEW):
        return True
    return heads > 1 and elements >= 3 * math.prod(pattern.batch) * pattern.matrix[0]


def _forward_of_rows(
    bias: torch.Tensor | None,
    left: torch.Tensor,
    right: torch.Tensor,
    x: torch.Tensor,
    scoring: Scoring,
    *,
    split: bool,
) -> tuple[torch.Tensor, ...]:
    operands = None if bias is None else plain(bias), plain(left), plain(right), plain(x).flatten(1)
    view = rows(scoring.pattern)[:3]
    y, *more = kernels.additive_attention(*view, *operands, scoring.slope, split)
    return y.view(y.shape[0], *x.shape[1:]), *more


def _attend_storing(
    bias: torch.Tensor | None,
    left: torch.Tensor,
    right: torch.Tensor,
    x: torch.Tensor,
    scoring: Scoring,
    dropout_p: float = 0.0,
) -> torch.Tensor:
    """Attention by operations that store scores and weights, for derivatives of any order."""
    pattern = scoring.pattern
    at = len(pattern.shape) - pattern.dense_dim - 1
    row, column = segments_of(pattern, (at,)), segments_of(pattern, (at - 1,))
    scores = segment_expand(left, row) + segment_expand(right, column)
    if bias is None:
        weights = softmax_values(F.leaky_relu(scores, scoring.slope), row, False)
    else:
        scores = scores + bias
        there = scores.detach() != -torch.inf
        scores = F.leaky_relu(scores.where(there, 0), scoring.slope).where(there, -torch.inf)
        weights = softmax_of_some(scores, row)
    return spmm(torch.dropout(weights, dropout_p, True), x, pattern)


class _AdditiveAttention(Derived):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        bias: torch.Tensor | None,
        left: torch.Tensor,
        right: torch.Tensor,
        x: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        split = ctx.needs_input_grad[1]
        y, *more = _forward_of_rows(bias, left, right, x, scoring, split=split)
        ctx.save_for_backward(bias, left, right, x, y, *more)
        ctx.scoring = scoring
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        bias, left, right, x, y, *more = ctx.saved_tensors
        wanted, scoring = ctx.needs_input_grad[:4], ctx.scoring
        if torch.is_grad_enabled():
            given = [t for t, asked in zip((bias, left, right, x), wanted, strict=True) if asked]
            operands = in_float32(bias), in_float32(left), in_float32(right), in_float32(x)
            again = _attend_storing(*operands, scoring)
            found = iter(torch.autograd.grad(again, given, g.to(again.dtype), create_graph=True))
            return (*(next(found) if asked else None for asked in wanted), None)
        arrays = None if bias is None else plain(bias), plain(left), plain(right)
        d_left, d_right, dx, d_bias = kernels.additive_attention_backward(
            *cols(scoring.pattern)[:3],
            *arrays,
            plain(x).flatten(1),
            scoring.slope,
            plain(g).flatten(1),
            plain(y).flatten(1),
            *more,
        )
        grads = zip((d_bias, d_left, d_right, dx.view(x.shape)), wanted, strict=True)
        return (*(d if asked else None for d, asked in grads), None)
