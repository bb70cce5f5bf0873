"""Reference of the kernel that joins the lines of several patterns."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_numbers


@kernel(
    "join_lines(Tensor[] ptr, Tensor[] idx, SymInt[] shift, Tensor[] val, bool beside)"
    " -> (Tensor, Tensor, Tensor)"
)
def join_lines(
    ptr: list[Tensor], idx: list[Tensor], shift: list[int], val: list[Tensor], beside: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The lines of several patterns, joined.

    Args:
        ptr: Line pointers (m_j + 1,) of each pattern j, all of one dtype.
        idx: Index of every entry (nse_j,), of that dtype.
        shift: What is added to the indices of each pattern.
        val: Values (nse_j,) of one dtype; no tensor if values are not joined.
        beside: True if line i of the result is line i of all patterns, one after the other. All
            m_j are equal then. Otherwise the result has the lines of all patterns, one pattern
            after the other.

    Returns:
        Pointers (m + 1,), indices (nse,), and values (nse,) or (0,). The dtype of the indices has
        to hold nse.
    """
    starts = [0, *itertools.accumulate(i.numel() for i in idx)]
    moved = torch.cat([i + by for i, by in zip(idx, shift, strict=True)])
    vals = torch.cat(val) if val else ptr[0].new_empty(0)
    if not beside:
        later = [p[1:] + start for p, start in zip(ptr, starts, strict=False)]
        return torch.cat([ptr[0][:1], *later]), moved, vals
    lines = torch.cat([row_numbers(p, i.numel()) for p, i in zip(ptr, idx, strict=True)])
    order = lines.argsort(stable=True)
    made = torch.stack(list(ptr)).sum(0, dtype=ptr[0].dtype)
    return made, moved[order], vals[order] if val else vals
