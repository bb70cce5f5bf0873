"""References of the softmax over the entries of each segment, and of its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers
from spgrad.kernels.reference.reductions.segment import segment_reduce


def _values_shape(ptr: Tensor, perm: Tensor | None, val: Tensor, log: bool) -> Tensor:
    return torch.empty_like(val)


def _backward_shape(ptr: Tensor, perm: Tensor | None, out: Tensor, g: Tensor, log: bool) -> Tensor:
    return torch.empty_like(out)


@kernel(
    "segment_softmax(Tensor ptr, Tensor? perm, Tensor val, bool log) -> Tensor",
    fake=_values_shape,
)
def segment_softmax(ptr: Tensor, perm: Tensor | None, val: Tensor, log: bool) -> Tensor:
    """out = exp(val - s), s = log(sum of exp(val)) over a segment; with `log`, out = val - s.

    For every column by itself. A segment of nothing but -inf gives NaN, as torch's softmax does.

    Args:
        ptr: Segment pointers (m + 1,).
        perm: Where an entry's value stands in `val`, a bijection (nse,); None for in place.
        val: Values (nse,) or (nse, d).
        log: Whether to give the logarithm.

    Returns:
        out (nse,) or (nse, d), in the order of `val`.
    """
    segment = row_numbers(ptr, val.shape[0])
    x = widened(in_view_order(val, perm))
    x = x - segment_reduce(ptr, None, x, "amax").index_select(0, segment)
    exp = x.exp()
    total = segment_reduce(ptr, None, exp, "sum")
    out = x - total.log().index_select(0, segment) if log else exp / total.index_select(0, segment)
    return in_value_order(out.to(val.dtype), perm)


@kernel(
    "segment_softmax_backward(Tensor ptr, Tensor? perm, Tensor out, Tensor g, bool log) -> Tensor",
    fake=_backward_shape,
)
def segment_softmax_backward(
    ptr: Tensor, perm: Tensor | None, out: Tensor, g: Tensor, log: bool
) -> Tensor:
    """The gradient of `segment_softmax`: out (g - sum of out g); with `log`, g - exp(out) sum of g.

    Args:
        ptr: Segment pointers (m + 1,).
        perm: Where an entry's value stands in `out` and `g`, a bijection (nse,); None for in place.
        out: What `segment_softmax` gave, (nse,) or (nse, d).
        g: The gradient of `out`, of its shape.
        log: Whether `out` is the logarithm.

    Returns:
        The gradient of `val`, in its order.
    """
    segment = row_numbers(ptr, out.shape[0])
    y, g = widened(in_view_order(out, perm)), widened(in_view_order(g, perm))
    total = segment_reduce(ptr, None, g if log else y * g, "sum").index_select(0, segment)
    grad = g - y.exp() * total if log else y * (g - total)
    return in_value_order(grad.to(out.dtype), perm)
