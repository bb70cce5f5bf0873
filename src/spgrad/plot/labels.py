"""Texts, ticks and colour bars of pictures, as large and as many as the Axes have room for."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, RULE = "#1e293b", "#cbd5e1"
NARROW = 3.0
"""Axes of fewer inches have smaller texts."""
ROOM = {"x": 28.0, "y": 16.0}
"""Points along an axis that one tick takes, with its number."""
TAKEN = 0.17
"""The share of the width of the Axes that a colour bar takes."""
LEAST = 0.6
"""Inches that a colour bar needs for its numbers."""
WIDTH = 0.55
"""The width of a letter over the size of its font, on average."""


def dress(ax: Axes) -> None:
    """The colours of ticks and frame."""
    ax.tick_params(color=RULE, labelcolor=INK, labelsize=8)
    ax.spines[:].set_color(RULE)


def write(ax: Axes, title: str, caption: str) -> None:
    """The title above and the caption below, in as many lines as they need."""
    inches = _inches(ax)[0]
    large, small = (11, 10) if inches >= NARROW else (9, 8)
    ax.set_title(_in_lines(title, inches, large), loc="left", color=INK, fontsize=large)
    ax.set_xlabel(_in_lines(caption, inches, small), color=INK, fontsize=small)


def add_colorbar(ax: Axes, shown: Any, label: str) -> None:
    """A bar that says what the colours of an image or of points mean, as high as the picture."""
    whole, drawn = _inches(ax)[1], _drawn(ax, 1 - TAKEN)[1]
    share = min(0.85, max(drawn, LEAST) / whole)
    bar = ax.figure.colorbar(shown, ax=ax, shrink=share, aspect=35 * share, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(color=RULE, labelcolor=INK, labelsize=8)
    size = 10 if drawn >= NARROW else 8
    bar.set_label(_in_lines(label, drawn, size), color=INK, fontsize=size)


def whole_ticks(ax: Axes) -> None:
    """Ticks at whole numbers; from 100 000 on followed by k, M or G."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for axis, inches in zip((ax.xaxis, ax.yaxis), _drawn(ax), strict=True):
        large = max(map(abs, axis.get_view_interval())) >= 1e5
        most = max(1, int(72 * inches / ROOM[axis.axis_name]))
        bins = min(5 if large else 8, most)
        axis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1))
        if large:
            axis.set_major_formatter(EngFormatter(sep=" "))


def _inches(ax: Axes) -> tuple[float, float]:
    """Width and height of the Axes, of which an image may leave a part empty."""
    box = ax.get_position(original=True)
    figure: Any = ax.figure
    wide, high = figure.bbox.width / figure.dpi, figure.bbox.height / figure.dpi
    return max(box.width * wide, 0.1), max(box.height * high, 0.1)


def _drawn(ax: Axes, share: float = 1.0) -> tuple[float, float]:
    """Width and height of the picture in this share of the width of the Axes.

    Where a row is as high as a column is wide, it fills the Axes in one direction alone.
    """
    width, height = _inches(ax)
    width *= share
    if ax.get_aspect() == "auto":
        return width, height
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    ratio = abs(top - bottom) / max(abs(right - left), 1e-9)
    return min(width, height / max(ratio, 1e-9)), min(height, width * ratio)


def _in_lines(text: str, inches: float, size: float) -> str:
    """A text of this size broken into lines of at most so many inches, at spaces."""
    letters = max(10, int(72 * inches / (WIDTH * size)))
    return textwrap.fill(text, letters, break_long_words=False, break_on_hyphens=False)
