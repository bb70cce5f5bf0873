"""Pictures of the positions and values of the elements of a tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import sparse_operand
from spgrad.plot.labels import INK, RULE, add_colorbar, dress, whole_ticks, write
from spgrad.public import public_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_FINITE = "#d946ef"
SIGNED = ("#1d4ed8", "#93b4f5", "#c3c8d0", "#f0a678", "#c2410c")
SIZED = ("#b6d3ee", "#4a8fd0", "#1d4ed8", "#1e1b4b")
WIDE = 1000
"""Colours are logarithmic if the largest value is more than this many times the median."""
CELLS = 400
"""A matrix with at most this many rows and columns is drawn cell by cell."""
MOST_POINTS = 1_000_000
"""With more elements than this, the picture shows how many there are in each cell of a grid."""
BINS = 512
"""Cells of that grid along its longer side."""
MOST_ITEMS = 64
"""Items of a batch that are drawn."""
NARROWEST = 0.125
"""The shorter side of a picture, as a share of the longer."""


@public_as("plot.spy")
def spy(
    A: torch.Tensor,
    ax: Axes | None = None,
    *,
    cmap: Any = None,
    colorbar: bool = True,
    title: str | None = None,
) -> Axes:
    """Draws where the specified elements of a sparse tensor are, coloured by their values.

    Small matrices are drawn cell by cell, larger ones as points. With more than a million elements,
    the picture shows how many there are in each cell of a grid. Elements with dense dimensions have
    the colour of their norm, complex ones that of their magnitude; infinite and NaN ones are
    magenta. If values differ by orders of magnitude, colours are logarithmic. The items of a batch
    (up to 64) stand side by side, row by row. A vector is drawn as one row.

    Args:
        A: Sparse tensor of any layout and number of dimensions.
        ax: Where to draw; by default a new figure of pyplot.
        cmap: Name of a matplotlib colour map, or the map; by default one that fits the values, and
            a single colour if all values are equal.
        colorbar: False leaves the colour bar out.
        title: By default shape and layout.

    Returns:
        The Axes. Except for a batch, its x axis is the column and its y axis, downwards, the row.

    Cost:
        O(nse) time and memory, whatever the shape.

    Raises:
        TypeError: `A` is not sparse, or `ax` is not a matplotlib Axes.
        ImportError: matplotlib is not installed.

    Example:
        >>> import spgrad.plot, matplotlib.figure
        >>> ax = matplotlib.figure.Figure().subplots()
        >>> spgrad.plot.spy(spgrad.eye(3), ax).get_xlabel()
        '3 elements, density 33.3%'
    """
    checks.require_packages("plot", "matplotlib", "numpy")
    A = without_repeats(sparse_operand("A", A))
    _require_colours(cmap)
    ax = axes_or_new(ax)
    with torch.no_grad():
        sheet = _sheet(A)
        if max(sheet.shape) <= CELLS:
            shown = _draw_cells(ax, sheet, cmap)
        elif sheet.row.numel() <= MOST_POINTS:
            shown = _draw_points(ax, sheet, cmap)
        else:
            shown = _draw_density(ax, sheet, cmap)
    _frame(ax, sheet)
    if shown is not None and colorbar:
        add_colorbar(ax, shown, shown.get_label())
    if not _has_items(sheet):
        whole_ticks(ax)
    name = f"{A._pattern.name.upper()} {' × '.join(str(s) for s in A.shape) or 'scalar'}"
    write(ax, name if title is None else title, _caption(A._pattern, sheet))
    return ax


def _require_colours(cmap: Any) -> None:
    """Refuses what is no colour map of matplotlib, before a figure is made."""
    from matplotlib import colormaps
    from matplotlib.colors import Colormap

    named = isinstance(cmap, str) and cmap in colormaps
    if cmap is not None and not named and not isinstance(cmap, Colormap):
        what = repr(cmap) if isinstance(cmap, str) else checks.describe_kind(cmap)
        made = ArgumentValueError if isinstance(cmap, str) else ArgumentKindError
        raise made(
            f"`cmap` is {what}; a colour map of matplotlib, its name or None is accepted. "
            "matplotlib.colormaps lists the names."
        )


def axes_or_new(ax: Any) -> Axes:
    """The Axes that were given, or those of a new figure of pyplot."""
    if ax is None:
        import matplotlib.pyplot as plt

        return plt.subplots(figsize=(6, 5.5), layout="constrained")[1]
    if not hasattr(ax, "imshow"):
        raise ArgumentKindError(
            f"`ax` is {checks.describe_kind(ax)}; matplotlib Axes or None is accepted. A figure "
            "has figure.subplots()."
        )
    return ax


class _Sheet(NamedTuple):
    """A tensor laid out in a plane: items of a batch one beside the other, with a gap."""

    row: torch.Tensor  # (elements,) int64
    col: torch.Tensor
    level: torch.Tensor  # (elements,) float64: what the colour shows
    shape: tuple[int, int]  # of the plane
    item: tuple[int, int]  # rows and columns of an item
    step: tuple[int, int]  # from one item to the next
    across: int  # items side by side
    items: int  # items that are drawn
    left_out: int  # items that are not
    what: str  # what the level is, such as "norm"


def _sheet(A: SparseTensor) -> _Sheet:
    """The plane of a tensor, on the CPU."""
    A = convert(A, torch.sparse_coo)
    pattern = A._pattern
    level, what = _level(A._vals.cpu(), pattern.dense_dim)
    level = torch.where(level.isfinite(), level, torch.nan)
    indices = pattern.indices[0].cpu().long()
    sizes = tuple(pattern.shape[: pattern.sparse_dim])
    while len(sizes) < 2:  # a vector, or a single number
        indices = torch.cat([indices.new_zeros(1, indices.shape[1]), indices])
        sizes = (1, *sizes)
    *batch, m, k = sizes
    row, col, items, across, drawn = indices[-2], indices[-1], math.prod(batch), 1, 1
    gap = max(1, max(m, k) // 16) if batch else 0
    step = (m + gap, k + gap)
    if batch:
        drawn = min(items, MOST_ITEMS)
        # as square a sheet as the shape of its items allows
        across = max(1, min(drawn, math.ceil(math.sqrt(drawn * step[0] / step[1]))))
        item = torch.zeros_like(row)
        for index, size in zip(indices[:-2], batch, strict=True):
            item = item * size + index
        kept = item < drawn
        row, col, level, item = row[kept], col[kept], level[kept], item[kept]
        row, col = row + item // across * step[0], col + item % across * step[1]
    down = math.ceil(drawn / across)
    shape = (max(down * step[0] - gap, 0), max(across * step[1] - gap, 0))
    return _Sheet(row, col, level, shape, (m, k), step, across, drawn, items - drawn, what)


def _level(vals: torch.Tensor, dense_dim: int) -> tuple[torch.Tensor, str]:
    """The number of each element that its colour shows, and what that number is."""
    if dense_dim:
        wide = vals.to(torch.complex128 if vals.is_complex() else torch.float64)
        return torch.linalg.vector_norm(wide.flatten(1), dim=1).double(), "norm"
    if vals.is_complex():
        return vals.abs().double(), "magnitude"
    return vals.double(), "value"


def _scale(level: torch.Tensor, cmap: Any) -> tuple[Any, Any]:
    """Colour map and norm: one colour, from low to high, or to both sides of zero.

    Values that differ by orders of magnitude have a logarithmic scale.
    """
    from matplotlib.colors import (
        LinearSegmentedColormap,
        ListedColormap,
        LogNorm,
        Normalize,
        SymLogNorm,
    )

    finite = level[level.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    if low == high:
        return ListedColormap([INK]) if cmap is None else cmap, Normalize(low - 1, high + 1)
    sizes = finite.abs()[finite != 0]
    middle, largest = float(sizes.median()), float(sizes.max())
    wide = largest > WIDE * middle
    if low < 0 < high:
        own = LinearSegmentedColormap.from_list("signed", SIGNED)
        norm = Normalize(-largest, largest)
        if wide:
            norm = SymLogNorm(middle, vmin=-largest, vmax=largest)
    else:
        own = LinearSegmentedColormap.from_list("size", SIZED if low >= 0 else SIZED[::-1])
        norm = LogNorm(low, high) if wide and low > 0 else Normalize(low, high)
    return own if cmap is None else cmap, norm


def _has_scale(level: torch.Tensor) -> bool:
    """Whether finite levels differ, so that a colour bar is of use."""
    finite = level[level.isfinite()]
    return finite.numel() > 0 and bool(finite.min() < finite.max())


def _draw_cells(ax: Axes, sheet: _Sheet, cmap: Any) -> Any:
    """An image with one pixel for each cell; at most CELLS x CELLS of them."""
    plane = torch.full(
        (max(sheet.shape[0], 1), max(sheet.shape[1], 1)), torch.nan, device="cpu"
    ).double()
    hidden = torch.ones_like(plane, dtype=torch.bool)
    plane[sheet.row, sheet.col] = sheet.level
    hidden[sheet.row, sheet.col] = False
    image = _image(ax, sheet, plane, hidden, *_scale(sheet.level, cmap), sheet.what)
    strange = plane.isnan() & ~hidden
    if strange.any():
        from matplotlib.colors import ListedColormap

        _image(ax, sheet, strange, ~strange, ListedColormap([NOT_FINITE]), None, "")
    return image


def _draw_density(ax: Axes, sheet: _Sheet, cmap: Any) -> Any:
    """An image of the number of elements in each cell of a grid."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    m, k = sheet.shape
    longest = max(m, k)
    down, across = (min(s, max(BINS * s // longest, int(BINS * NARROWEST))) for s in (m, k))
    # in float64, as the product of a row and a number of places may not fit int64
    row = (sheet.row.double() * down / m).long().clamp(max=down - 1)
    place = row * across + (sheet.col.double() * across / k).long().clamp(max=across - 1)
    count = torch.bincount(place, minlength=down * across).view(down, across)
    own = LinearSegmentedColormap.from_list("count", SIZED)
    norm = LogNorm(1, max(int(count.max()), 2))
    label = f"elements in a place of {-(-m // down)} × {-(-k // across)}"
    return _image(ax, sheet, count, count == 0, own if cmap is None else cmap, norm, label)


def _image(
    ax: Axes,
    sheet: _Sheet,
    plane: torch.Tensor,
    hidden: torch.Tensor,
    cmap: Any,
    norm: Any,
    label: str,
) -> Any:
    import numpy as np

    if 0 in sheet.shape:
        return None
    masked = np.ma.masked_array(plane.numpy(), hidden.numpy())
    extent = (-0.5, sheet.shape[1] - 0.5, sheet.shape[0] - 0.5, -0.5)
    image = ax.imshow(masked, cmap=cmap, norm=norm, extent=extent, interpolation="nearest")
    image.set_label(label)
    return image if _has_scale(plane[~hidden].double()) else None


def _draw_points(ax: Axes, sheet: _Sheet, cmap: Any) -> Any:
    """A dot for each element, the largest on top; smaller ones where there are many."""
    from matplotlib import colormaps

    order = sheet.level.abs().nan_to_num(torch.inf).argsort()
    own, norm = _scale(sheet.level, cmap)
    own = (colormaps[own] if isinstance(own, str) else own).with_extremes(bad=NOT_FINITE)
    dots = ax.scatter(
        sheet.col[order].numpy(),
        sheet.row[order].numpy(),
        c=sheet.level[order].numpy(),
        s=min(6.0, max(0.15, 40_000 / max(sheet.row.numel(), 1))),
        cmap=own,
        norm=norm,
        marker="s",
        linewidths=0,
        rasterized=True,
        plotnonfinite=True,
    )
    dots.set_label(sheet.what)
    return dots if _has_scale(sheet.level) else None


def _has_items(sheet: _Sheet) -> bool:
    """Whether it is a sheet of items, whose rows and columns have no numbers of their own."""
    return sheet.items + sheet.left_out != 1 or sheet.step != sheet.item


def _frame(ax: Axes, sheet: _Sheet) -> None:
    """Limits, and a frame round each item of a batch."""
    from matplotlib.collections import PolyCollection

    m, k = (max(s, 1) for s in sheet.shape)
    square = min(m, k) >= NARROWEST * max(m, k)
    ax.set(xlim=(-0.5, k - 0.5), ylim=(m - 0.5, -0.5), aspect="equal" if square else "auto")
    dress(ax)
    if not _has_items(sheet):
        return
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    number = torch.arange(sheet.items, device="cpu")
    top = number // sheet.across * sheet.step[0] - 0.5
    left = number % sheet.across * sheet.step[1] - 0.5
    across, down = (
        torch.tensor([0, 1, 1, 0], device="cpu"),
        torch.tensor([0, 0, 1, 1], device="cpu"),
    )
    corners = torch.stack(
        [
            left[:, None] + across * sheet.item[1],
            top[:, None] + down * sheet.item[0],
        ],
        dim=-1,
    )  # (items, 4, 2)
    frames = PolyCollection(
        list(corners.numpy()), facecolors="none", edgecolors=RULE, linewidths=0.8, clip_on=False
    )
    ax.add_collection(frames, autolim=False)


def _caption(pattern: Pattern, sheet: _Sheet) -> str:
    """How many elements there are, and their share of all."""
    total = math.prod(pattern.shape) // max(math.prod(pattern.dense_shape), 1)
    text = f"{pattern.elements:,} elements" if pattern.elements != 1 else "1 element"
    if total:
        text += f", density {100 * pattern.elements / total:.3g}%"
    strange = int(sheet.level.isnan().sum())
    if strange:
        text += f"; {strange:,} not finite"
    if sheet.left_out:
        text += f"; {sheet.items} of {sheet.items + sheet.left_out} items drawn"
    return text
