"""Native sums, products and extrema of segments: `torch.segment_reduce`, and index sums."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import REFERENCES, native
from spgrad.kernels.reference.common.dtypes import accumulate_dtype
from spgrad.kernels.reference.common.views import in_view_order, row_numbers

_TORCH = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}
"""Name -> torch's name of the reduction of floats."""
_EMPTY = {"sum": 0, "prod": 1, "amax": 0, "amin": 0}


@native
def segment_reduce(ptr: Tensor, perm: Tensor | None, val: Tensor, reduce: str) -> Tensor:
    """`reference.reductions.segment.segment_reduce`; memory of the size of the values."""
    if reduce not in _TORCH or val.dtype == torch.bool or (val.is_complex() and reduce != "sum"):
        return REFERENCES["segment_reduce"](ptr, perm, val, reduce)
    x = in_view_order(val, perm)
    if val.is_complex():
        return torch.view_as_complex(_floats(ptr, torch.view_as_real(x), reduce))
    if val.is_floating_point():
        return _floats(ptr, x, reduce)
    return _integers(ptr, x, reduce)


def _floats(ptr: Tensor, x: Tensor, reduce: str) -> Tensor:
    """Sums and products are formed in float64, because torch adds one element after the other."""
    wide = accumulate_dtype(x.dtype) if reduce in ("amax", "amin") else torch.float64
    out = torch.segment_reduce(
        x.to(wide), _TORCH[reduce], offsets=ptr, initial=_initial(reduce), unsafe=True
    ).to(x.dtype)
    if reduce in ("amax", "amin"):  # torch gives an infinity
        out.masked_fill_((ptr.diff() == 0).view(-1, *[1] * (x.dim() - 1)), 0)
    return out


def _initial(reduce: str) -> int | None:
    return None if reduce in ("amax", "amin") else _EMPTY[reduce]


def _integers(ptr: Tensor, x: Tensor, reduce: str) -> Tensor:
    """Integers are exact in any order."""
    segment = row_numbers(ptr, x.shape[0])
    out = x.new_full((ptr.shape[0] - 1, *x.shape[1:]), _EMPTY[reduce])
    if reduce == "sum":
        return out.index_add_(0, segment, x)
    at = segment.long().view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return out.scatter_reduce_(0, at, x, reduce, include_self=False)
