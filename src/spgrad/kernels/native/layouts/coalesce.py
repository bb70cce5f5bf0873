"""Native sorts of COO indices: one stable sort of their positions among all elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spgrad.kernels.declare import REFERENCES, native
from spgrad.kernels.reference.layouts.coalesce import position_dtype


def _sorted(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The order of the entries (nse,), and which sorted entries begin a new element (nse,)."""
    position = torch.zeros_like(indices[0], dtype=torch.int64)
    for index, length in zip(indices, size, strict=True):
        position = position * length + index
    position, order = torch.sort(position, stable=True)
    starts = torch.ones_like(position, dtype=torch.bool)
    torch.ne(position[1:], position[:-1], out=starts[1:])
    return order, starts


def _numbered(indices: Tensor, size: Sequence[int]) -> bool:
    """Whether int64 can number all elements of this size."""
    return indices.shape[0] > 0 and math.prod(size) <= torch.iinfo(torch.int64).max


@native
def sort_coo(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.layouts.coalesce.sort_coo`."""
    if not _numbered(indices, size):
        return REFERENCES["sort_coo"](indices, size)
    order, starts = _sorted(indices, size)
    nse = indices.shape[1]
    dtype = position_dtype(nse)
    begin = starts.nonzero().squeeze(1)
    ptr = torch.cat([begin, begin.new_full((1,), nse)]).to(dtype)
    return indices.index_select(1, order[begin]), ptr, order.to(dtype)


@native
def coalesce(indices: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`reference.layouts.coalesce.coalesce`."""
    if not _numbered(indices, size):
        return REFERENCES["coalesce"](indices, size)
    order, starts = _sorted(indices, size)
    group = torch.empty_like(order).index_copy_(0, order, starts.cumsum(0) - 1)
    return indices.index_select(1, order[starts]), group
