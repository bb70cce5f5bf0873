"""How a SparseTensor prints: one line on what it is, and a few of its elements."""

from __future__ import annotations

import math

import torch

from spgrad.core.checks import short
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor

_SHOWN = 6


def describe(A: SparseTensor) -> str:
    """Shape, nse, density, layout, dtype, and what else is not as usual; then some elements."""
    pattern = A._pattern
    parts = [f"shape={tuple(pattern.shape)}", f"nse={pattern.nse}"]
    total = math.prod(pattern.shape) // max(math.prod(pattern.dense_shape), 1)
    # while compiling, sizes are symbols
    if isinstance(total, int) and isinstance(pattern.nse, int) and total:
        parts.append(f"density={_percent(pattern.elements / total)}")
    parts.append(f"layout={pattern.name}")
    if pattern.blocksize:
        parts.append(f"blocksize={pattern.blocksize}")
    parts.append(f"dtype={short(A.dtype)}")
    if pattern.indices[0].dtype != torch.int64:
        parts.append(f"index_dtype={short(pattern.indices[0].dtype)}")
    if A.device.type != "cpu":
        parts.append(f"device={A.device}")
    if pattern.is_coo and not pattern.coalesced:
        parts.append("coalesced=False")
    if A.grad_fn is not None:
        parts.append(f"grad_fn=<{type(A.grad_fn).__name__}>")
    elif A.requires_grad:
        parts.append("requires_grad=True")
    return f"SparseTensor({', '.join(parts)})" + _elements(A._vals, pattern)


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.3g}%" if percent >= 0.001 or percent == 0 else f"{percent:.1e}%"


def _elements(vals: torch.Tensor, pattern: Pattern) -> str:
    if type(vals) is not torch.Tensor or vals.device.type == "meta":
        return ""  # traced or without data: nothing to show
    shown = range(min(pattern.nse, _SHOWN))
    what = "block " if pattern.blocksize else ""
    lines = [f"\n  {what}{_place(pattern, p)} {_value(vals[p])}" for p in shown]
    if pattern.nse > _SHOWN:
        lines.append(f"\n  ... and {pattern.nse - _SHOWN} more")
    return "".join(lines)


def _place(pattern: Pattern, p: int) -> tuple[int, ...]:
    if pattern.is_coo:
        return tuple(pattern.indices[0][:, p].tolist())
    ptr, idx = pattern.indices
    line = int(torch.searchsorted(ptr, torch.tensor(p, dtype=ptr.dtype), right=True)) - 1
    items = math.prod(pattern.batch)
    lines = (ptr.numel() - 1) // items
    where = (line % lines, int(idx[p]))
    item = torch.unravel_index(torch.tensor(line // lines), pattern.batch) if pattern.batch else ()
    return (*(int(i) for i in item), *(where if pattern.compressed_by_rows else where[::-1]))


def _value(value: torch.Tensor) -> str:
    if value.dim() == 0:
        number = value.item()
        return f"{number:.4g}" if isinstance(number, (float, complex)) else str(number)
    shown = value.reshape(-1)[:_SHOWN].tolist()
    text = ", ".join(f"{v:.4g}" if isinstance(v, (float, complex)) else str(v) for v in shown)
    return f"[{text}{', ...' if value.numel() > _SHOWN else ''}]"
