"""How a SparseTensor prints: one line on what it is, and a few of its elements."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from typing import Any

import torch

from spgrad.core.checks import short
from spgrad.core.pattern import Pattern
from spgrad.core.slots import above
from spgrad.core.tensor import SparseTensor

_SHOWN = 6
_MOST_DRAWN = 4_000_000
"""Elements beyond which a picture takes longer than a notebook should wait."""
_CELLS, _PIXELS = 48, 144
"""Cells along the longer side of a picture, and its length on the screen."""
_SHADES = ("#b6d3ee", "#4a8fd0", "#1d4ed8", "#1e1b4b")
"""Of a cell, by how many elements it has compared with the fullest."""


def describe(A: SparseTensor) -> str:
    """Shape, nse, density, layout, dtype, and properties that are unusual; then some elements."""
    parts = [f"{name}={value}" for name, value in facts(A)]
    return f"SparseTensor({', '.join(parts)})" + _elements(A._vals, A._pattern)


class _Word(str):
    """A text that rich prints without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def facts(A: SparseTensor) -> Iterator[tuple[str, Any]]:
    """Shape, nse, density, layout, dtype, and properties that are unusual, by name; for rich."""
    pattern = A._pattern
    yield "shape", tuple(pattern.shape)
    yield "nse", pattern.nse
    total = math.prod(pattern.shape) // max(math.prod(pattern.dense_shape), 1)
    # while compiling, sizes are symbols
    if isinstance(total, int) and isinstance(pattern.nse, int) and total:
        yield "density", _Word(_percent(pattern.elements / total))
    yield "layout", _Word(pattern.name)
    if pattern.blocksize:
        yield "blocksize", pattern.blocksize
    yield "dtype", _Word(short(A.dtype))
    if pattern.indices[0].dtype != torch.int64:
        yield "index_dtype", _Word(short(pattern.indices[0].dtype))
    if A.device.type != "cpu":
        yield "device", _Word(A.device)
    if pattern.is_coo and not pattern.coalesced:
        yield "coalesced", False
    if A.grad_fn is not None:
        yield "grad_fn", _Word(f"<{type(A.grad_fn).__name__}>")
    elif A.requires_grad:
        yield "requires_grad", True


def picture(A: SparseTensor) -> str:
    """HTML for notebooks: the text of `describe` without elements, and a picture of the pattern."""
    rows = "".join(
        f'<tr><th style="text-align:left">{name}</th>'
        f'<td style="text-align:left">{html.escape(str(value))}</td></tr>'
        for name, value in facts(A)
    )
    table = f'<table style="display:inline-table;vertical-align:top"><tbody>{rows}</tbody></table>'
    return f"<div><b>SparseTensor</b><br>{table}{_spy(A)}</div>"


def _spy(A: SparseTensor) -> str:
    """An SVG of the last two sparse dimensions, the items of a batch on top of one another."""
    pattern = A._pattern
    elements = pattern.elements
    if type(A._vals) is not torch.Tensor or A._vals.device.type == "meta":
        return ""  # traced or without data: nothing to show
    if not 0 < elements <= _MOST_DRAWN or pattern.sparse_dim == 0:
        return ""
    indices = above.coo_indices(A)[-2:].cpu()
    m, k = (1, *pattern.shape[: len(pattern.shape) - pattern.dense_dim])[-2:]
    row = indices[0] if indices.shape[0] == 2 else torch.zeros_like(indices[0])
    longest = max(m, k)
    down, across = (max(1, min(size, _CELLS * size // longest)) for size in (m, k))
    # in float64, because the product of a row and a number of places may not fit int64
    y = (row.double() * down / m).long().clamp(max=down - 1)
    x = (indices[-1].double() * across / k).long().clamp(max=across - 1)
    count = torch.bincount(y * across + x, minlength=down * across)
    shade = torch.ceil(len(_SHADES) * count / count.max()).long()
    paths = []
    for level, colour in enumerate(_SHADES, 1):
        places = (shade == level).nonzero().squeeze(1).tolist()
        lines = "".join(f"M{p % across} {p // across}h1v1h-1z" for p in places)
        paths.append(f'<path fill="{colour}" d="{lines}"/>' if lines else "")
    width, height = (max(4, _PIXELS * size // max(down, across)) for size in (across, down))
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {across} {down}" '
        'preserveAspectRatio="none" shape-rendering="crispEdges" '
        'style="margin-left:1em;border:1px solid #cbd5e1;background:#ffffff">'
        f"{''.join(paths)}</svg>"
    )


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
    line = int(torch.searchsorted(ptr, ptr.new_tensor(p), right=True)) - 1
    items = math.prod(pattern.batch)
    lines = (ptr.numel() - 1) // items
    where = (line % lines, int(idx[p]))
    item = (
        torch.unravel_index(ptr.new_tensor(line // lines), pattern.batch) if pattern.batch else ()
    )
    return (*(int(i) for i in item), *(where if pattern.compressed_by_rows else where[::-1]))


def _value(value: torch.Tensor) -> str:
    if value.dim() == 0:
        number = value.item()
        return f"{number:.4g}" if isinstance(number, (float, complex)) else str(number)
    shown = value.reshape(-1)[:_SHOWN].tolist()
    text = ", ".join(f"{v:.4g}" if isinstance(v, (float, complex)) else str(v) for v in shown)
    return f"[{text}{', ...' if value.numel() > _SHOWN else ''}]"
