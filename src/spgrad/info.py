"""Describes a sparse tensor in words and figures: `python -m spgrad info FILE`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from spgrad import io, kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.views import rows as rows_of

WIDTH = 48
"""Characters of a drawing, of two dots each."""
BLOCKS = (2, 3, 4, 8, 16)
"""Side lengths of the square blocks for which `memory` tries BSR and BSC."""
COLUMNS = (1, 8, 32, 64, 128, 256)
"""Numbers of columns of x for which the report says how the kernel reads x."""
CROWDED = 0.6
"""If more than this share of a drawing's dots is set, shades replace the dots."""
SHADES = " ░▒▓█"
PLAIN_SHADES = " .:+#@"


class Lengths(NamedTuple):
    """How many elements the rows have."""

    least: int
    quartiles: tuple[int, int, int]
    most: int
    empty: int
    rows: int


class Symmetry(NamedTuple):
    """How close a square matrix is to its own transpose."""

    partners: float  # share of the off-diagonal elements (i, j) for which (j, i) is specified
    values: str  # symmetric, skew-symmetric, hermitian, or neither


class Matrix(NamedTuple):
    """A matrix, or a batch laid out as one list of elements, on the CPU."""

    item: torch.Tensor  # (elements,) int64, in lexicographic order of item, row, column
    row: torch.Tensor
    col: torch.Tensor
    vals: torch.Tensor  # (elements, *dense)
    items: int
    rows: int
    columns: int

    def rows_above(self) -> torch.Tensor:
        """Row of each element among the rows of all items, one item after the other."""
        return self.item * self.rows + self.row


def matrix(A: SparseTensor) -> Matrix:
    """The elements of a tensor with at least two sparse dimensions, those in blocks one by one."""
    A = convert(A, torch.sparse_coo)
    pattern = A._pattern
    indices = pattern.indices[0].cpu().long()
    item = torch.zeros_like(indices[-2])
    for index, size in zip(indices[:-2], pattern.batch, strict=True):
        item = item * size + index
    vals = A._vals.detach().resolve_conj().cpu()
    return Matrix(item, indices[-2], indices[-1], vals, math.prod(pattern.batch), *pattern.matrix)


def row_lengths(M: Matrix) -> Lengths:
    """How many elements the rows have; O(nse) memory, whatever the number of rows."""
    rows = M.items * M.rows
    lengths = M.rows_above().unique_consecutive(return_counts=True)[1].sort().values
    empty = rows - lengths.numel()

    def at(position: int) -> int:
        """The length at a position among all rows, sorted by length; empty rows come first."""
        return int(lengths[position - empty]) if position >= empty else 0

    if not rows:
        return Lengths(0, (0, 0, 0), 0, 0, 0)
    q1, q2, q3 = (at((rows - 1) * quarter // 4) for quarter in (1, 2, 3))
    return Lengths(at(0), (q1, q2, q3), at(rows - 1), empty, rows)


def bandwidth(M: Matrix) -> tuple[int, int]:
    """How far elements reach below and above the diagonal."""
    if not M.row.numel():
        return 0, 0
    below = M.row - M.col
    return max(int(below.max()), 0), max(int(-below.min()), 0)


def symmetry(M: Matrix) -> Symmetry:
    """How close a square matrix, or each matrix of a batch, is to its own transpose."""
    own = M.rows_above() * M.columns + M.col  # ascending, as the elements are in order
    other = (M.item * M.columns + M.col) * M.rows + M.row
    off = M.row != M.col
    place = torch.searchsorted(own, other).clamp(max=max(own.numel() - 1, 0))
    found = own[place] == other if own.numel() else off
    share = float(found[off].double().mean()) if off.any() else 1.0
    if not bool(found.all()):
        return Symmetry(share, "neither")
    a, b = M.vals, M.vals[place]
    if torch.equal(a, b):
        return Symmetry(share, "symmetric")
    if a.is_complex() and torch.equal(a, b.conj()):
        return Symmetry(share, "hermitian")
    if a.dtype != torch.bool and torch.equal(a, -b):
        return Symmetry(share, "skew-symmetric")
    return Symmetry(share, "neither")


def block_counts(M: Matrix, side: int) -> int:
    """Number of square blocks of this side that hold an element."""
    down, across = -(-M.rows // side), -(-M.columns // side)
    place = (M.item * down + M.row // side) * across + M.col // side
    return int(place.unique().numel())


def memory(M: Matrix, pattern: Pattern, value_size: int) -> Iterator[tuple[str, int]]:
    """Each layout with the bytes of its values and indices; BSR and BSC with their best blocks."""
    index, elements = pattern.indices[0].element_size(), M.row.numel()
    value = value_size * math.prod(pattern.dense_shape)
    dims = len(pattern.shape) - pattern.dense_dim
    yield "coo", elements * (dims * index + value)
    lines = {"csr": M.items * M.rows + 1, "csc": M.items * M.columns + 1}
    for name, count in lines.items():
        yield name, elements * (index + value) + count * index
    sides = {pattern.blocksize} if pattern.blocksize else set()
    sides |= {(s, s) for s in BLOCKS if M.rows % s == M.columns % s == 0 and M.rows and M.columns}
    best: dict[str, tuple[int, str]] = {}
    for p, q in sides:
        blocks = pattern.nse if pattern.blocksize == (p, q) else None
        if blocks is None:
            blocks = block_counts(M, p)
        for name, count in (("bsr", M.rows // p), ("bsc", M.columns // q)):
            size = blocks * (index + p * q * value) + (M.items * count + 1) * index
            filled = 100 * elements / (blocks * p * q) if blocks else 0
            words = f"{name} {p} × {q}, {filled:.0f} % filled"
            best[name] = min(best.get(name, (size, words)), (size, words))
    for size, words in best.values():
        yield words, size


def drawing(M: Matrix, width: int = WIDTH, *, plain: bool = False) -> list[str]:
    """A matrix (the first of a batch) as lines of text: braille dots, or shades where crowded.

    Args:
        M: What to draw.
        width: Characters of a line, at most.
        plain: True for ASCII alone.

    Returns:
        Lines of equal length; none for a matrix without rows or columns.
    """
    if not M.rows or not M.columns:
        return []
    wide, high = 2 * width, 2 * width
    longest = max(M.rows, M.columns)
    across = min(M.columns, max(wide * M.columns // longest, wide // 8))
    down = min(M.rows, max(high * M.rows // longest, high // 8))
    if plain:
        return _shades(M, (down + 3) // 4, (across + 1) // 2, PLAIN_SHADES)
    dots = _counts(M, down, across) > 0
    if dots.double().mean() > CROWDED and M.rows * M.columns > down * across:
        return _shades(M, (down + 3) // 4, (across + 1) // 2, SHADES)
    return _braille(dots)


def _counts(M: Matrix, down: int, across: int) -> torch.Tensor:
    """The number of elements of the first matrix in each cell of a (down, across) grid."""
    first = M.item == 0
    # in float64, as the product of a row and a number of places may not fit int64
    row = (M.row[first].double() * down / M.rows).long().clamp(max=down - 1)
    col = (M.col[first].double() * across / M.columns).long().clamp(max=across - 1)
    return torch.bincount(row * across + col, minlength=down * across).view(down, across)


# Dots of a braille character (U+2800) by row and column: Unicode 15, chapter 21.1.
_DOTS = torch.tensor([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], device="cpu")


def _braille(dots: torch.Tensor) -> list[str]:
    """Lines of braille characters, each of which shows 4 rows and 2 columns of the dots."""
    down, across = dots.shape
    padded = torch.nn.functional.pad(dots.long(), (0, across % 2, 0, -down % 4))
    cells = padded.view(-1, 4, padded.shape[1] // 2, 2)  # (lines, 4, characters, 2)
    codes = (cells * _DOTS[:, None]).sum((1, 3)) + 0x2800
    return ["".join(map(chr, line)) for line in codes.tolist()]


def _shades(M: Matrix, down: int, across: int, shades: str) -> list[str]:
    """Lines of one character for each cell: its density, relative to the densest cell."""
    down, across = min(down, M.rows), min(across, M.columns)
    count = _counts(M, down, across)
    most = max(int(count.max()), 1)
    levels = -(-count * (len(shades) - 1) // most)  # rounded up: an element always shows
    return ["".join(shades[level] for level in line) for line in levels.tolist()]


def report(
    A: SparseTensor, name: str = "tensor", *, plain: bool = False, kernels: bool = False
) -> str:
    """The whole report as text.

    Args:
        A: SparseTensor of any layout.
        name: The name of the tensor in the report.
        plain: True for ASCII alone.
        kernels: True to tell how kernels read memory, too.

    Returns:
        Lines of a label and a text each, then the drawing.
    """
    pattern = A._pattern
    lines = [("tensor", name), *_head(A)]
    picture: list[str] = []
    if len(pattern.shape) - pattern.dense_dim >= 2:
        M = matrix(A)
        lines += _structure(M)
        sizes = list(memory(M, pattern, A.element_size()))
        width = max(len(words) for words, _ in sizes)
        for i, (words, size) in enumerate(sizes):
            lines.append(("" if i else "memory", f"{words:{width}}  {_bytes(size):>9}"))
        if kernels:
            lines += choices(A)
        picture = ["", *drawing(M, plain=plain)]
        if M.items > 1:
            picture.append(f"(the first of {M.items:,} matrices)")
    text = "\n".join([*(f"{word:11}{says}" for word, says in lines), *picture])
    return text.replace("×", "x") if plain else text


def _head(A: SparseTensor) -> Iterator[tuple[str, str]]:
    """The lines of the report that every tensor has."""
    pattern = A._pattern
    yield "shape", " × ".join(f"{size:,}" for size in pattern.shape) or "scalar"
    blocks = f", blocks of {' × '.join(map(str, pattern.blocksize))}" if pattern.blocksize else ""
    dense = f", {pattern.dense_dim} dense dimension(s)" if pattern.dense_dim else ""
    yield "layout", f"{pattern.name}{blocks}{dense}"
    index = checks.short(pattern.indices[0].dtype)
    yield "dtype", f"{checks.short(A.dtype)}, indices {index}"
    count = f"{pattern.nse:,}"
    if pattern.blocksize:
        count += f" blocks with {pattern.elements:,} elements"
    if not pattern.coalesced:
        A = without_repeats(A)
        count += f", not coalesced: {A._pattern.nse:,} elements"
    yield "nse", count
    total = math.prod(pattern.shape) // max(math.prod(pattern.dense_shape), 1)
    if total:
        yield "density", f"{100 * A._pattern.elements / total:.3g} %"
    vals = A._vals.detach()
    zeros = int((vals == 0).sum())
    strange = int((~vals.isfinite()).sum())
    if vals.numel():
        sizes = vals.abs() if vals.is_complex() else vals
        sizes = sizes[vals.isfinite()]
        span = f"{float(sizes.min()):.4g} to {float(sizes.max()):.4g}, " if sizes.numel() else ""
        what = "magnitudes " if vals.is_complex() else ""
        yield "values", f"{what}{span}{zeros:,} explicit zeros, {strange:,} not finite"


def _structure(M: Matrix) -> Iterator[tuple[str, str]]:
    """The lines that only a matrix, or a batch of matrices, has."""
    rows = row_lengths(M)
    quartiles = ", ".join(f"{q:,}" for q in rows.quartiles)
    yield "rows", f"{rows.least:,} to {rows.most:,} elements; quartiles {quartiles}"
    share = f" ({100 * rows.empty / rows.rows:.3g} %)" if rows.empty else ""
    yield "", f"{rows.empty:,} of {rows.rows:,} are empty{share}"
    below, above = bandwidth(M)
    yield "bandwidth", f"{below:,} below the diagonal, {above:,} above"
    if M.rows == M.columns and M.rows:
        found = symmetry(M)
        share = math.floor(1000 * found.partners) / 10  # rounded down, so that 100 means all
        if found.partners == 1:
            yield "symmetry", f"pattern symmetric, values {found.values}"
        else:
            yield "symmetry", f"{share:g} % of the off-diagonal elements have a partner"


def choices(A: SparseTensor) -> Iterator[tuple[str, str]]:
    """How the compiled kernel of A x reads x, for some numbers of columns, and why.

    A row of x is far away if the second-level cache no longer holds it when it is read again. How
    many are depends on the pattern and on the cache; the choice does not change the result.
    """
    view = rows_of(A._pattern)
    m = len(view.ptr) - 1
    size = int(kernels.traffic(view.idx, A._vals.new_empty(1, 1), True, m)[0])
    if not size:
        yield "kernels", "the compiled library is absent: nothing is chosen"
        return
    yield "kernels", f"A x, x with n columns; the second-level cache of a core holds {_bytes(size)}"
    for n in COLUMNS:
        x = A._vals.new_empty(1, 1).expand(view.num_cols, n)
        found = kernels.traffic(view.idx, x, view.perm is None, m).tolist()
        _, far, far_in_tiles, ahead, tiled, staged, fetched, *others = found
        twice, *in_first_level, order = others
        total = x.numel() * x.element_size()
        why = (
            f"{100 * far:.0f} % of its rows are far away"
            if far
            else "its rows are near, or those of A short"
        )
        if tiled:
            why += (
                f" and {100 * in_first_level[0]:.0f} % outside of the first-level cache, in tiles "
                f"{100 * far_in_tiles:.0f} % and {100 * in_first_level[1]:.0f} %"
            )
        prefetched = "prefetched twice" if twice and order != 3 else "prefetched"
        how = ["copied into tiles"] * bool(tiled) + [prefetched] * bool(ahead)
        how += ["copied side by side"] * bool(staged)
        how += ["read by blocks of columns"] * (order == 1 and n * x.element_size() > 512)
        how += ["read to their end"] * (order == 2) + ["read one after the other"] * (order == 3)
        chosen = (" and ".join(how) or "read in place") + ", entries prefetched" * bool(fetched)
        yield "", f"n = {n:3}  x of {_bytes(total):>7}, {why}: {chosen}"


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} TB"


def run(path: Path, png: Path | None = None, *, plain: bool = False, kernels: bool = False) -> str:
    """Tells what is in a file, and draws it.

    Args:
        path: A file that `spgrad.io.load` reads.
        png: Where to write a picture to.
        plain: True for ASCII alone.
        kernels: True to tell how kernels read memory, too.

    Returns:
        The report.

    Raises:
        ValueError: `path` or `png` is not usable.
        ImportError: A package that the file or the picture needs is not installed.
    """
    if png is not None:
        _require_writable(png)
        checks.require_packages("plot", "matplotlib", "numpy")
    A = io.load(path)
    text = report(A, str(path), plain=plain, kernels=kernels)
    if png is None:
        return text
    _draw(A, path.name, png)
    return f"{text}\n\npicture    {png}"


def _require_writable(png: Path) -> None:
    there = png if png.exists() else png.parent
    if png.suffix.lower() != ".png" or png.is_dir() or not png.parent.is_dir():
        what = f"{png}"
    elif not os.access(there, os.W_OK):
        what = f"{png}, which may not be written"
    else:
        return
    raise ArgumentValueError(
        f"`--png` is {what}; the path of a .png file in a folder that is there is accepted. Try "
        "--png pattern.png."
    )


def _draw(A: SparseTensor, name: str, png: Path) -> None:
    from matplotlib.figure import Figure

    from spgrad import plot

    figure = Figure(figsize=(7, 6.4), layout="constrained")
    plot.spy(A, figure.subplots(), title=name)
    figure.savefig(png, dpi=150, facecolor="white", format="png")
