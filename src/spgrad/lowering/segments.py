"""Reductions over groups of the elements of a pattern, and their derivatives.

The elements that are reduced to one element of the result are a cell. Cells are kept on the
pattern; those of the rows and columns are its views, so that they cost nothing more.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern, View, index_dtype
from spgrad.lowering.sorting import counting_sort
from spgrad.lowering.spmm import plain, wants_grad
from spgrad.lowering.views import cols, linear_index, rows
from spgrad.torch_protocol.func_transforms import Function


class Cells(NamedTuple):
    """The elements of a pattern, grouped by the element of the result that they belong to.

    Cell i holds the elements ``ptr[i] <= p < ptr[i + 1]`` with values ``vals[perm[p]]``, or
    ``vals[p]`` where `perm` is None, in ascending order of their reduced dimensions.
    """

    ptr: torch.Tensor | None  # (cells + 1,); None: each element is a cell of its own
    perm: torch.Tensor | None  # (elements,)
    elements: int
    size: int  # places that a cell has, specified or not
    unique: torch.Tensor | None = None  # (kept dimensions, cells) where the result is sparse
    index: torch.Tensor | None = None  # (elements,) the cell of each stored element, if at hand
    long: bool = False  # whether a cell has more than LONGEST elements; told with `index`

    def counts(self) -> torch.Tensor:
        """Specified elements of each cell (cells, 1)."""
        assert self.ptr is not None
        return self.ptr.diff().to(torch.int64)[:, None]

    def missing(self) -> torch.Tensor | None:
        """Unspecified elements of each cell (cells, 1); None where there are none at all."""
        return None if self.ptr is None else self.size - self.counts()


def cells(pattern: Pattern, dims: tuple[int, ...], compact: bool = False) -> Cells:
    """The cells that reducing the sparse dimensions `dims` asks for; O(nse + cells), then kept.

    There is one cell for each element of the result, or if both matrix dimensions stay (or with
    `compact`), only for those that have a specified element.
    """
    return pattern.derive(kept.SEGMENTS.of(dims, compact), lambda p: _cells(p, dims, compact))


def _cells(pattern: Pattern, dims: tuple[int, ...], compact: bool) -> Cells:
    sizes = pattern.shape[: len(pattern.shape) - pattern.dense_dim]
    kept = [d for d in range(len(sizes)) if d not in dims]
    size = math.prod(sizes[d] for d in dims)
    if not kept:
        ptr = torch.tensor([0, pattern.elements], device=pattern.device)
        return Cells(ptr, None, pattern.elements, size)
    if not dims:
        return Cells(None, None, pattern.elements, 1)
    row, col = len(sizes) - 2, len(sizes) - 1
    if compact or (row in kept and col in kept):
        return _unique_cells(pattern, kept, size)
    if dims in ((col,), (row,)):
        view_of, other_of = (rows, cols) if dims == (col,) else (cols, rows)
        view = view_of(pattern)
        # the other view is in storage order, or is not asked for: it has a pointer for each line
        stored = rows if pattern.is_coo or pattern.compressed_by_rows else cols
        other = other_of(pattern) if other_of is stored else None
        if other is None or not _to_be_scattered(view, other):
            return Cells(view.ptr, view.perm, pattern.elements, size)
        long = view.ptr.shape[0] > 1 and int(view.ptr.diff().amax()) > LONGEST
        return Cells(view.ptr, view.perm, pattern.elements, size, None, other.idx, long)
    if dims == (row, col):
        view, lines = rows(pattern), pattern.matrix[0]
        items = math.prod(pattern.batch)
        ptr = view.ptr[::lines].contiguous() if lines else view.ptr.new_zeros(items + 1)
        return Cells(ptr, view.perm, pattern.elements, size)
    coordinates, perm = _coordinates(pattern)
    cell = linear_index(coordinates[kept], tuple(sizes[d] for d in kept))
    assert cell is not None
    ptr, perm = _grouped(cell, math.prod(sizes[d] for d in kept), perm)
    return Cells(ptr, perm, pattern.elements, size)


LONGEST = 4096
"""Elements that are added one by one in their own precision: the error grows with their number."""


def _to_be_scattered(view: View, other: View) -> bool:
    """True where adding values to their cells, in storage order, beats gathering each cell."""
    return view.perm is not None and other.perm is None and not torch.compiler.is_compiling()


def _unique_cells(pattern: Pattern, kept: list[int], size: int) -> Cells:
    coordinates, perm = _coordinates(pattern)
    sizes = [pattern.shape[d] for d in kept]
    unique, cell = kernels.coalesce(coordinates[kept].contiguous(), sizes)
    ptr, perm = _grouped(cell, unique.shape[1], perm)
    return Cells(ptr, perm, pattern.elements, size, unique.to(pattern.indices[0].dtype))


def _coordinates(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Coordinates (sparse dimensions, elements) in lexicographic order, and where values stand.

    Repeated COO elements come in any order, which sums don't mind.
    """
    if pattern.is_coo:
        return pattern.indices[0].to(torch.int64), None
    view = rows(pattern)
    m, k = pattern.matrix
    row = kernels.expand(view.ptr, view.idx.numel()).to(torch.int64)
    item = torch.div(row, max(m, 1), rounding_mode="floor")
    batch = torch.unravel_index(item, pattern.batch) if pattern.batch else ()
    return torch.stack([*batch, row - item * m, view.idx - item * k]), view.perm


def _grouped(
    cell: torch.Tensor, count: int, perm: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pointers and positions of the elements by cell, by a stable counting sort."""
    cell = cell.to(index_dtype(torch.int32, (count, cell.numel())))
    ptr, order = counting_sort(cell, count)
    return ptr, order if perm is None else perm[order].to(order.dtype)


def total(vals: torch.Tensor, cells: Cells) -> torch.Tensor:
    """Sum (cells, d) of the values (elements, d) of each cell; the adjoint of `spread`."""
    if cells.ptr is None:
        return vals
    if wants_grad(vals):
        return _Total.apply(vals, cells)  # type: ignore[return-value]
    if cells.index is None or vals.shape[1] != 1:
        return _reduced(vals, cells, "sum")
    flat, count = plain(vals).view(-1), cells.ptr.shape[0] - 1
    # a view could not be changed in place
    return kernels.scatter_sum(cells.index, flat, count, cells.long).unsqueeze_(1)


def spread(y: torch.Tensor, cells: Cells) -> torch.Tensor:
    """What each cell has (cells, d), for every element of it (elements, d)."""
    if cells.ptr is None:
        return y
    if wants_grad(y):
        return _Spread.apply(y, cells)  # type: ignore[return-value]
    if cells.ptr.shape[0] == 2:
        return y.expand(cells.elements, y.shape[1])
    if cells.index is not None:
        return y.index_select(0, cells.index)
    return kernels.segment_expand(cells.ptr, cells.perm, cells.elements, plain(y))


def whole(pattern: Pattern) -> Cells:
    """One cell of all elements."""
    return cells(pattern, tuple(range(len(pattern.shape) - pattern.dense_dim)))


def for_each(x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The same numbers x, 0-d or of dense dimensions, for each stored element.

    Where torch would add up what x gets from each element, in an order that depends on the number
    of threads, the kernel of sums does.
    """
    shape = (*pattern.values_shape[: 1 if pattern.blocksize is None else 3], *x.shape)
    return spread(x.reshape(1, -1), whole(pattern)).view(shape)


def product(vals: torch.Tensor, cells: Cells) -> torch.Tensor:
    """Product (cells, d) of the values (elements, d) of each cell; 1 for an empty cell."""
    if cells.ptr is None:
        return vals
    if wants_grad(vals):
        return _Product.apply(vals, cells)  # type: ignore[return-value]
    return _reduced(vals, cells, "prod")


def extremum(
    vals: torch.Tensor, cells: Cells, missing: torch.Tensor | None, largest: bool
) -> torch.Tensor:
    """Largest (smallest) value (cells, d) of (elements, r, d) in each cell; 0 for an empty cell.

    Cells with `missing` elements hold that many zeros more. Gradient: shared evenly by all that
    attain the extremum, these zeros included.
    """
    if wants_grad(vals):
        return _Extremum.apply(vals, cells, missing, largest)  # type: ignore[return-value]
    return _extremum(vals, cells, missing, largest)


def _extremum(
    vals: torch.Tensor, cells: Cells, missing: torch.Tensor | None, largest: bool
) -> torch.Tensor:
    inner = torch.amax if largest else torch.amin
    y = vals.squeeze(1) if vals.shape[1] == 1 else inner(vals, 1)
    if cells.ptr is not None:
        y = _reduced(y, cells, "amax" if largest else "amin")
    if missing is None:
        return y
    return torch.where(missing > 0, y.clamp(min=0) if largest else y.clamp(max=0), y)


def _reduced(vals: torch.Tensor, cells: Cells, reduce: str) -> torch.Tensor:
    assert cells.ptr is not None
    return kernels.segment_reduce(cells.ptr, cells.perm, plain(vals), reduce)


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, cells: Cells) -> torch.Tensor:  # type: ignore[override]
        ctx.cells = cells
        return total(vals, cells)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return spread(g, ctx.cells), None


class _Spread(Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, cells: Cells) -> torch.Tensor:  # type: ignore[override]
        ctx.cells = cells
        return spread(y, cells).detach()  # no view of y, whose changes torch reports otherwise

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return total(g, ctx.cells), None


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, cells: Cells) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(vals)
        ctx.cells = cells
        return product(vals, cells)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (vals,) = ctx.saved_tensors
        cells = ctx.cells
        zero = vals == 0
        nonzero = torch.where(zero, 1, vals)
        number = total(zero.to(torch.int32), cells)
        others = spread(number, cells) - zero.to(torch.int32)  # zeros among the other factors
        factor = (others == 0) / nonzero
        if torch.is_grad_enabled():  # a single other zero adds nothing, but has a derivative
            zeros = torch.where(zero, vals, 0)
            factor = factor + (others == 1) * (spread(total(zeros, cells), cells) - zeros) / nonzero
        return spread(g * product(nonzero, cells).conj(), cells) * factor.conj(), None


class _Extremum(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        vals: torch.Tensor,
        cells: Cells,
        missing: torch.Tensor | None,
        largest: bool,
    ) -> torch.Tensor:
        y = _extremum(vals, cells, missing, largest)
        ctx.save_for_backward(vals, y)
        ctx.cells, ctx.missing = cells, missing
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, y = ctx.saved_tensors
        attained = vals == spread(y.detach(), ctx.cells)[:, None]  # (elements, r, d)
        wide = torch.promote_types(g.dtype, torch.float32)  # bfloat16 counts to 256 alone
        times = total(attained.sum(1, dtype=wide), ctx.cells)
        if ctx.missing is not None:
            times = times + ctx.missing * vals.shape[1] * (y == 0)
        # an empty cell shares with nobody; a NaN, which equals nothing, makes the gradient NaN
        times = torch.where(y.isnan(), times, times.clamp(min=1))
        share = spread((g / times).to(g.dtype), ctx.cells)[:, None]
        return attained * share, None, None, None
