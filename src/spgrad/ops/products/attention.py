"""Attention over the specified elements of a sparse mask."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, plain
from spgrad.errors import ArgumentValueError
from spgrad.lowering import align
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import dense_operand, matrix_operand, sparse_operand
from spgrad.lowering.products.row_spmm import transposed_copy
from spgrad.lowering.products.spmm import sddmm, spmm, wants_grad
from spgrad.lowering.segments import segments_of
from spgrad.lowering.views import block_cols, block_rows, cols, rows
from spgrad.ops.indexing.nonzero import prune
from spgrad.ops.products import broadcast
from spgrad.ops.reductions.axes import require_dtype
from spgrad.ops.reductions.softmax import softmax_of_some, softmax_values
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import in_given_precision, lowered
from spgrad.torch_protocol.func_transforms import Derived, transforming

_TRUE = ((64, 0.6), (32, 0.85), (0, 0.95))
"""For the least side of blocks: the share of their elements that has to be True for them to stay.

In CSR, the others are left out, which takes less time below this share.
"""


@public_op
@lowered
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(scale Q K^T + A) V over the specified elements of each row of A: sparse attention.

    Scores, softmax and product are computed together, a million elements at a time. None of them
    is kept for the backward, which computes them again, one head after the other.

    Args:
        query: Dense (*b, m, d).
        key: Dense (*b, n, d).
        value: Dense (*b, n, e).
        attn_mask: Sparse (m, n), or a batch (*b, m, n) that broadcasts with the other operands. A
            hybrid (*b, m, n | h) has values of its own for each of h heads, and broadcasts as
            (*b, h, m, n); its indices are stored once. Unspecified elements take no part. Values
            of the dtype of `query` are added to the scores. In a bool mask, the True elements take
            part. Pass a graph whose values are not scores as ``A.to(torch.bool)``.
        dropout_p: Share of the weights that are set to zero; stores nse weights for each head.
        is_causal: Only False is accepted: a causal mask is a pattern (`spgrad.tril`).
        scale: Factor of the scores; d^-1/2 if it is None.
        enable_gqa: Only False is accepted: all operands have the same number of heads.

    Returns:
        Dense (*b, m, e). Rows of A without elements give zeros.

    Gradient:
        Of all operands; of A on its pattern, summed over the heads that share it.

    Cost:
        O(nse (d + e)) time for each head. Memory for the result and one number for each of its
        rows; the backward takes memory for the gradients and for 2 nse numbers. On the CPU, a mask
        in BSR or BSC with blocks of at least 4 x 8 takes about two thirds of the time of the same
        elements in CSR, and memory for a copy of the keys; it is taken as CSR where many elements
        of its blocks are False. 16-bit operands are copied to float32,
        except on a GPU with Triton. Second derivatives store nse numbers for each head.

    Raises:
        TypeError: `attn_mask` is not sparse or another operand not dense.
        ValueError: Sizes, dtypes or devices don't fit, or an option has another value.

    Source:
        Dao, Fu, Ermon, Rudra, Re 2022, "FlashAttention".

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [True, True, True], (2, 3))
        >>> q, k, v = torch.zeros(2, 4), torch.ones(3, 4), torch.tensor([[1.0], [2.0], [5.0]])
        >>> spgrad.scaled_dot_product_attention(q, k, v, A)
        tensor([[3.],
                [2.]])
    """
    A = without_repeats(mask_operand(attn_mask))
    given = {"query": query, "key": key, "value": value}
    q, k, v = (dense_operand(name, operand) for name, operand in given.items())
    require_attention(A, q, k, v)
    _require_options(dropout_p, scale, is_causal=is_causal, enable_gqa=enable_gqa)
    A, bias = _pattern_and_bias(A, q)
    batch = checks.broadcast_shapes(_broadcast_sizes(A), *(t.shape[:-2] for t in (q, k, v)))
    A, order = _heads_and_items(A, tuple(batch))
    q, k, v = (_to_heads(t, tuple(batch), order) for t in (q, k, v))
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    stored = bool(dropout_p) or transforming()
    operands = bias, q, k, v
    if stored or not _takes_16_bits(q):
        operands = in_float32(bias), in_float32(q), in_float32(k), in_float32(v)
    if stored:
        out = _stored(*operands, A, factor, dropout_p)
    elif wants_grad(*(t for t in operands if t is not None)):
        out = _Attention.apply(*operands, A, factor)
    else:
        out = _attention_forward(*operands, A, factor)[0]
    return _from_heads(out.to(value.dtype), tuple(batch), order, query.shape[-2])


def mask_operand(attn_mask: Any) -> SparseTensor:
    """A matrix or batch, or a hybrid one with a dense dimension for heads."""
    A = sparse_operand("attn_mask", attn_mask)
    if A._pattern.dense_dim != 1:
        return matrix_operand("attn_mask", A, bools=True)
    if A._vals.dtype != torch.bool:
        checks.require_numeric("attn_mask", A._vals)
    return A


def _broadcast_sizes(A: SparseTensor) -> tuple[int, ...]:
    """The sizes of A before its rows, as they broadcast with those of the other operands."""
    return (*A._pattern.batch, *A._pattern.dense_shape)


def _pattern_and_bias(A: SparseTensor, q: torch.Tensor) -> tuple[SparseTensor, torch.Tensor | None]:
    """A with the elements that take part, and what is added to scores: (nse,) or (heads, nse).

    Where blocks are multiplied as dense matrices, it may be bool (nse,) in its place: True at the
    elements that take part.
    """
    truth = A._vals.dtype == torch.bool
    if A._pattern.dense_dim:
        values = broadcast.by_head(A)
        return A, transposed_copy(_bias_of_truth(values, q.dtype) if truth else values)
    if not truth:
        return A, broadcast.flat(A)
    if align.readable(A._vals):  # whether all are True
        A = true_part(A)
        if _is_true(A._vals):
            return A, None
    values = broadcast.flat(A)
    blocks = _multiplies_blocks(A._pattern, q.device)
    return A, values if blocks else _bias_of_truth(values, q.dtype)


def without_false(A: SparseTensor) -> SparseTensor:
    """A bool matrix or batch without the elements that are False."""
    if _is_true(A._vals):
        return A
    # pruning keeps whole blocks, and with them elements that are False
    return prune(convert(A, torch.sparse_csr) if A._pattern.blocksize is not None else A)


def true_part(A: SparseTensor) -> SparseTensor:
    """`without_false`, but blocks that are mostly True stay, where their kernel is the faster."""
    if not _multiplies_blocks(A._pattern, A._vals.device):
        return without_false(A)
    if _is_true(A._vals):
        return A
    if not _is_true(A._vals.view(torch.uint8).flatten(1).amax(1)):
        A = prune(A)  # the blocks in which all is False
    if A._vals.count_nonzero() >= _share_of_true(A._pattern) * A._vals.numel():
        return A
    return without_false(A)


def _share_of_true(pattern: Pattern) -> float:
    """The share of blocks that has to be True for them to stay."""
    return next(share for side, share in _TRUE if min(pattern.blocksize or (0,)) >= side)


def _is_true(truth: torch.Tensor) -> bool:
    """Whether all of a bool tensor is True; the minimum of bytes is much faster than `all`."""
    return truth.numel() == 0 or bool(truth.view(torch.uint8).amin())


def _bias_of_truth(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores of elements, so that those which are False take no part."""
    return torch.zeros_like(truth, dtype=dtype).masked_fill(~truth, -torch.inf)


def require_attention(A: SparseTensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuses operands of attention whose sizes, dtypes or devices don't fit."""
    checks.require_same_device(attn_mask=A, query=q, key=k, value=v)
    checks.require_same_dtype(query=q, key=k, value=v)
    require_dtype(q.dtype, arg="query", accepted="real")
    if A._vals.dtype != torch.bool:
        checks.require_same_dtype(query=q, attn_mask=A)
    m, n = A._pattern.matrix
    for name, t, size in (("query", q, m), ("key", k, n), ("value", v, n)):
        if t.dim() < 2 or t.shape[-2] != size:
            hint = f"It follows from attn_mask of shape {tuple(A._pattern.shape)}."
            raise checks.bad_shape(name, tuple(t.shape), f"(..., {size}, features)", hint)
    if q.shape[-1] != k.shape[-1]:
        hint = "Queries and keys have the same features."
        raise checks.bad_shape("key", tuple(k.shape), f"(..., {n}, {q.shape[-1]})", hint)
    shapes = [_broadcast_sizes(A), *(tuple(t.shape[:-2]) for t in (q, k, v))]
    try:
        checks.broadcast_shapes(*shapes)
    except RuntimeError:
        full = tuple(A._pattern.shape), *(tuple(t.shape) for t in (q, k, v))
        raise ArgumentValueError(
            f"`attn_mask`, `query`, `key` and `value` have shapes {full}; leading dimensions that "
            "broadcast are accepted. Add dimensions of size 1 where heads or items share an "
            "operand."
        ) from None


def _require_options(dropout_p: Any, scale: Any, **absent: bool) -> None:
    require_dropout(dropout_p)
    if scale is not None:
        # a tensor would lose its gradient
        checks.require_number("scale", scale, "Multiply the queries by a tensor.")
    for name, hint in (
        ("is_causal", "Give a mask without elements above the diagonal, such as spgrad.tril(A)"),
        ("enable_gqa", "Repeat keys and values with repeat_interleave"),
    ):
        if absent[name]:
            raise ArgumentValueError(f"`{name}` is True; False is accepted. {hint}.")


def require_dropout(dropout_p: Any) -> None:
    """Refuses what is no share of weights."""
    checks.require_number("dropout_p", dropout_p, "Leave it out for none.")
    if not 0 <= dropout_p < 1:
        raise ArgumentValueError(
            f"`dropout_p` is {dropout_p}; numbers from 0 to 1 are accepted, 1 is not. "
            "Leave it out for none."
        )


def _heads_and_items(
    A: SparseTensor, batch: tuple[int, ...]
) -> tuple[Pattern, tuple[list[int], list[int]]]:
    """The pattern, and which batch dimensions are heads that share it, which are its own."""
    pattern = A._pattern
    own = (*pattern.batch, *[1] * pattern.dense_dim)
    own = (1,) * (len(batch) - len(own)) + own
    items = [i for i, size in enumerate(own) if size != 1 or batch[i] == 1]
    return pattern, ([i for i in range(len(batch)) if i not in items], items)


def _to_heads(t: torch.Tensor, batch: tuple[int, ...], order: Any) -> torch.Tensor:
    """(*batch, lines, features) as (heads, items x lines, features)."""
    heads, items = order
    r = len(batch)
    lines, features = t.shape[-2:]
    t = t.expand(*batch, lines, features).permute(*heads, *items, r, r + 1)
    lines *= math.prod(batch[i] for i in items)
    return t.reshape(math.prod(batch[i] for i in heads), lines, features)


def _from_heads(t: torch.Tensor, batch: tuple[int, ...], order: Any, lines: int) -> torch.Tensor:
    """The inverse of `_to_heads`."""
    at = [*order[0], *order[1]]
    r = len(batch)
    t = t.reshape(*(batch[i] for i in at), lines, t.shape[-1])
    return as_result(t.permute(*(at.index(i) for i in range(r)), r, r + 1))


def _takes_16_bits(q: torch.Tensor) -> bool:
    """Whether the kernels take 16-bit operands, of which they form sums in float32."""
    return q.device.type == "cuda" and "attention" in kernels.by_triton()


def in_float32(t: Any) -> Any:
    """A tensor in float32 at least; None and bool tensors stay."""
    return (
        t
        if t is None or t.dtype == torch.bool
        else t.to(torch.promote_types(t.dtype, torch.float32))
    )


def _attention_forward(
    bias: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Pattern,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    operands = None if bias is None else plain(bias), plain(q), plain(k), plain(v)
    if _multiplies_blocks(pattern, q.device):
        assert pattern.blocksize is not None
        by_rows = block_rows(pattern)[:3]
        return kernels.block_attention(*by_rows, *operands, scale, *pattern.blocksize)
    return kernels.attention(*rows(pattern)[:3], *operands, scale)


def _multiplies_blocks(pattern: Pattern, device: torch.device) -> bool:
    """Whether lines of blocks are multiplied as small dense matrices.

    The compiled library has these loops. Rows of blocks fill vectors from 8 elements on, and from 4
    rows on a row of keys is used often enough to pay for the other order of the loops.
    """
    blocks = pattern.blocksize
    if blocks is None or blocks[0] < 4 or blocks[1] < 8:
        return False
    return device.type == "cpu" and kernels.compiled()


def _stored(
    bias: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Pattern,
    scale: float,
    dropout_p: float = 0.0,
) -> torch.Tensor:
    """Attention by operations that store scores and weights, for derivatives of any order."""
    row = segments_of(pattern, (len(pattern.shape) - pattern.dense_dim - 1,))
    left, right, content = (t.transpose(0, 1) for t in (q, k, v))  # (lines, heads, features)
    scores = sddmm(left * scale, right, pattern)  # (elements, heads)
    if bias is None:
        weights = softmax_values(scores, row, False)
    else:
        if bias.dtype == torch.bool:
            bias = _bias_of_truth(bias, q.dtype)
        if bias.dim() == 1:
            bias = bias[:, None]
        elif bias.shape[0] != q.shape[0]:  # items of a batch share the values of a head
            bias = bias.mT.repeat(1, q.shape[0] // max(bias.shape[0], 1))
        else:
            bias = bias.mT
        weights = softmax_of_some(scores + bias, row)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return spmm(weights, content, pattern).transpose(0, 1)


def _attention_backward(
    bias: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    pattern: Pattern,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    arrays = bias, q, k, v, g, lse, delta
    if _multiplies_blocks(pattern, q.device):
        assert pattern.blocksize is not None
        views = *block_rows(pattern)[:3], *block_cols(pattern)[:3]
        return kernels.block_attention_backward(*views, *arrays, scale, *pattern.blocksize)
    views = *rows(pattern)[:3], *cols(pattern)[:3]
    return kernels.attention_backward(*views, *arrays, scale)


class _Attention(Derived):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        bias: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
        scale: float,
    ) -> torch.Tensor:
        out, lse = _attention_forward(bias, q, k, v, pattern, scale)
        ctx.save_for_backward(bias, q, k, v, out, lse)
        ctx.pattern, ctx.scale = pattern, scale
        return out

    @staticmethod
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        bias, q, k, v, out, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            given = [t for t, asked in zip((bias, q, k, v), wanted, strict=True) if asked]
            operands = in_float32(bias), in_float32(q), in_float32(k), in_float32(v)
            y = _stored(*operands, ctx.pattern, ctx.scale)
            grads = iter(torch.autograd.grad(y, given, g.to(y.dtype), create_graph=True))
            return (*(next(grads) if asked else None for asked in wanted), None, None)
        bias = None if bias is None else plain(bias)
        q, k, v, g = plain(q), plain(k), plain(v), plain(g)
        delta = torch.linalg.vecdot(in_float32(g), in_float32(out))
        arrays = bias, q, k, v, g, lse, delta
        *found, d_bias = _attention_backward(*arrays, ctx.pattern, ctx.scale)
        grads = zip((d_bias, *found), wanted, strict=True)
        return (*(d if asked else None for d, asked in grads), None, None)
