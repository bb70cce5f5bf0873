"""What a causal layer leaves of the mask of sparse attention."""

from __future__ import annotations

import torch

from spgrad.core import kept
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.lowering.convert import flat_values
from spgrad.lowering.rebuild import remembered
from spgrad.ops.shapes.diagonal import distances, lower_part
from spgrad.torch_protocol.compile import when_tracing


def causal_part(mask: SparseTensor) -> SparseTensor:
    """The elements (i, j) of a mask (L, S) or (L, S | heads) with j <= i, in its layout.

    The blocks on the diagonal stay whole. In them, the elements above the diagonal are False, or
    minus infinity where the values are added to scores.
    """
    if mask.is_meta:  # which elements it has is not known
        return mask
    mask = lower_part(mask, 0)
    if mask._pattern.blocksize is None:
        return mask
    pattern, vals = mask._pattern, flat_values(mask)
    above = remembered(pattern, kept.REBUILT, ("above",), lambda: distances(pattern) > 0)
    left_out = -torch.inf if vals.dtype.is_floating_point else 0
    vals = vals.masked_fill(above.view(-1, *[1] * pattern.dense_dim), left_out)
    return on_pattern(vals.view(pattern.values_shape), pattern)


when_tracing(causal_part)  # a step of a graph: it reads the pattern, which is no operand
