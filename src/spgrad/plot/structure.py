"""Pictures of degrees, of blocks, and of a matrix before and after reordering."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.linalg.ordering import reorder, reverse_cuthill_mckee
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import matrix_operand, require_dim, require_rank
from spgrad.ops.indexing.nonzero import coo_indices
from spgrad.plot.elements import BINS, SIZED, axes_or_new, spy
from spgrad.plot.labels import INK, add_colorbar, dress, whole_ticks, write
from spgrad.public import public_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 40
"""Up to this many distinct degrees are drawn as bars, more as points on two logarithmic axes."""


@public_as("plot.degrees")
def degrees(
    A: torch.Tensor, ax: Axes | None = None, *, dim: int = 1, title: str | None = None
) -> Axes:
    """Draws the distribution of the number of specified elements in a row: the degrees of a graph.

    Up to 40 distinct degrees are drawn as bars. More, as in graphs with hubs, are points on two
    logarithmic axes, where a power law is a line; the caption then counts rows without elements.

    Args:
        A: Sparse matrix of any layout; a graph with an edge for each specified element.
        ax: Where to draw; by default a new figure of pyplot.
        dim: 1 for the elements of each row, 0 for those of each column.
        title: By default "Elements of each row", or column.

    Returns:
        The Axes. Its x axis is the number of elements and its y axis the number of rows.

    Cost:
        O(nse log nse).

    Raises:
        TypeError: `A` is not sparse, or `ax` is not a matplotlib Axes.
        ValueError: `A` is not a matrix.
        ImportError: matplotlib is not installed.

    Example:
        >>> import spgrad.plot, matplotlib.figure
        >>> ax = matplotlib.figure.Figure().subplots()
        >>> spgrad.plot.degrees(spgrad.eye(3), ax).get_xlabel()
        'elements in a row: 1 to 1, 1 on average'
    """
    checks.require_packages("plot", "matplotlib", "numpy")
    M = _single(A)
    dim = require_dim("dim", dim, 2)
    ax = axes_or_new(ax)
    line, lines = ("row", "column")[1 - dim], M._pattern.matrix[1 - dim]
    number, times = _degrees(M, dim)
    caption = f"elements in a {line}"
    if lines:
        mean = f"{M._pattern.elements / lines:.3g}"
        caption += f": {int(number[0])} to {int(number[-1])}, {mean} on average"
    if number.numel() <= MOST_BARS:
        ax.bar(number.numpy(), times.numpy(), width=0.9, color=SIZED[2])
        whole_ticks(ax)
    else:
        empty = int(times[number == 0].sum())
        ax.loglog(number[number > 0].numpy(), times[number > 0].numpy(), ".", color=SIZED[2])
        caption += f"; {empty:,} without any" if empty else ""
    dress(ax)
    ax.set_ylabel(f"{line}s", color=INK)
    write(ax, f"Elements of each {line}" if title is None else title, caption)
    return ax


def _degrees(A: SparseTensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of elements that lines have, ascending, and how many lines have each.

    Lines without elements are not looked at: there may be far more of them than elements.
    """
    filled, counts = coo_indices(A)[1 - dim].unique(return_counts=True)
    number, times = counts.cpu().unique(return_counts=True)
    empty = A._pattern.matrix[1 - dim] - filled.numel()
    if not empty:
        return number, times
    return torch.cat([number.new_zeros(1), number]), torch.cat([times.new_tensor([empty]), times])


@public_as("plot.blocks")
def blocks(
    A: torch.Tensor,
    ax: Axes | None = None,
    *,
    blocksize: tuple[int, int] | None = None,
    colorbar: bool = True,
    title: str | None = None,
) -> Axes:
    """Draws a matrix as blocks, each coloured by the share of its elements that are specified.

    In BSR and BSC the elements that are not zero count, so that the picture says how well the
    blocks are filled. For other layouts it says what a conversion to blocks would store.

    Args:
        A: Sparse matrix of any layout.
        ax: Where to draw; by default a new figure of pyplot.
        blocksize: Rows and columns of a block, which need not divide the matrix; by default that of
            `A`, or one that gives a picture of at most 64 x 64 blocks. More than 512 x 512 are
            joined to larger ones.
        colorbar: False leaves the colour bar out.
        title: By default the size of the blocks, and the share of their elements that are filled.

    Returns:
        The Axes. Its x axis is the column and its y axis, downwards, the row, both in blocks.

    Cost:
        O(nse).

    Raises:
        TypeError: `A` is not sparse, or `ax` is not a matplotlib Axes.
        ValueError: `A` is not a matrix, or `blocksize` is not a pair of positive ints.
        ImportError: matplotlib is not installed.

    Example:
        >>> import spgrad.plot, matplotlib.figure
        >>> ax = matplotlib.figure.Figure().subplots()
        >>> spgrad.plot.blocks(spgrad.eye(4), ax, blocksize=(2, 2)).get_title("left")
        'Blocks of 2 × 2, 50% filled'
    """
    checks.require_packages("plot", "matplotlib", "numpy")
    M = _single(A)
    m, k = M._pattern.matrix
    p, q = _blocksize(M, blocksize)
    ax = axes_or_new(ax)
    down, across = -(-m // p), -(-k // q)
    indices = coo_indices(M).cpu()
    if M._pattern.blocksize is not None:
        indices = indices[:, (M._vals.detach() != 0).reshape(-1).cpu()]
    place = indices[0] // p * across + indices[1] // q
    count = torch.bincount(place, minlength=down * across).view(down, across)
    full = int((count > 0).sum())
    share = indices.shape[1] / (full * p * q) if full else 0.0
    image = _draw_shares(ax, count.double() / p / q) if full else None  # p q may be beyond int64
    dress(ax)
    ax.set(xlim=(-0.5, max(across, 1) - 0.5), ylim=(max(down, 1) - 0.5, -0.5))
    if image is not None and colorbar:
        add_colorbar(ax, image, "share of a block's elements")
    whole_ticks(ax)
    name = f"Blocks of {p} × {q}, {100 * share:.3g}% filled"
    caption = f"{full:,} of {down * across:,} blocks have elements"
    write(ax, name if title is None else title, caption)
    return ax


@public_as("plot.reordered")
def reordered(
    A: torch.Tensor, order: torch.Tensor | None = None, ax: Any = None, **options: Any
) -> tuple[Axes, Axes]:
    """Draws a matrix, and beside it the matrix with its rows and columns in another order.

    Args:
        A: Sparse square matrix (n, n) of any layout.
        order: A permutation of 0 ... n - 1; by default `spgrad.reverse_cuthill_mckee(A)`.
        ax: Two Axes; by default those of a new figure of pyplot.
        options: Options of `spy` for both pictures, except `title`.

    Returns:
        The two Axes.

    Cost:
        O(nse), and that of finding the order.

    Raises:
        TypeError: `A` is not sparse, or `ax` is not a pair of Axes.
        ValueError: `A` is not square, or `order` is not a permutation of its rows.
        ImportError: matplotlib, or for the order by default SciPy, is not installed.

    Example:
        >>> import spgrad.plot, matplotlib.figure
        >>> pair = matplotlib.figure.Figure().subplots(1, 2)
        >>> left, right = spgrad.plot.reordered(spgrad.eye(3), ax=pair)
        >>> right.get_title("left")
        'Reordered, bandwidth 0'
    """
    checks.require_packages("plot", "matplotlib", "numpy")
    M = _single(A)
    by = reverse_cuthill_mckee(M) if order is None else order
    other: Any = reorder(M.detach(), by)[0]
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots(1, 2, figsize=(11, 5.5), layout="constrained")[1]
    if isinstance(ax, str) or not hasattr(ax, "__len__") or len(ax) != 2:
        raise ArgumentKindError(
            f"`ax` is {checks.describe_kind(ax)}; two matplotlib Axes or None are accepted. A "
            "figure has figure.subplots(1, 2)."
        )
    if "title" in options:
        raise ArgumentValueError(
            "`title` is given for two pictures; none is accepted. Call set_title of each of the "
            "Axes."
        )
    for axes, B, name in zip(ax, (M, other), ("Given", "Reordered"), strict=True):
        row, col = coo_indices(B)
        width = int((row - col).abs().max()) if row.numel() else 0
        spy(B, axes, title=f"{name}, bandwidth {width:,}", **options)
    return ax[0], ax[1]


def _single(A: Any) -> SparseTensor:
    M = matrix_operand("A", A, bools=True)
    require_rank("A", M, 2, "Draw one matrix of a batch at a time.")
    return without_repeats(M)


def _blocksize(A: SparseTensor, blocksize: Any) -> tuple[int, int]:
    """Rows and columns of a block, enlarged so that the picture has at most BINS x BINS blocks."""
    m, k = A._pattern.matrix
    if blocksize is None:
        usual = max(1, -(-max(m, k) // 64))
        p, q = A._pattern.blocksize or (usual, usual)
    else:
        pair = isinstance(blocksize, (tuple, list)) and len(blocksize) == 2
        if not pair or not all(type(s) is int and s > 0 for s in blocksize):
            raise ArgumentValueError(
                f"`blocksize` is {blocksize!r}; two positive ints are accepted. For example (8, 8)."
            )
        p, q = blocksize
    return p * max(1, -(-m // (p * BINS))), q * max(1, -(-k // (q * BINS)))


def _draw_shares(ax: Axes, share: torch.Tensor) -> Any:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    masked = np.ma.masked_array(share.numpy(), (share == 0).numpy())
    own = LinearSegmentedColormap.from_list("share", SIZED)
    return ax.imshow(masked, cmap=own, norm=Normalize(0, 1), interpolation="nearest")
