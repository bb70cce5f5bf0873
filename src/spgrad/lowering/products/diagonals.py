"""Matrices whose elements lie on a few diagonals, such as those of stencils on regular grids."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.kernels.reference.solves.krylov.diagonals import TILE_ROWS
from spgrad.lowering.views import Valued, rows

_MOST = 64
"""More than the 27 of a stencil in three dimensions. Other patterns have more within a few rows."""

SOON = 8
"""Products, or solves, before a copy by diagonals, which takes as long as two to seven of them."""


_REPEATS = 8
"""Tiles are stored once if each is met so many times in the mean."""


class Diagonals(NamedTuple):
    """A square matrix by diagonals, as the kernels `spmv_diagonals` and `spmv_tiles` take it.

    Where the values repeat, as those of an equation with constant coefficients do, `vals` has each
    tile of values once, and `numbers` which tile is where. Otherwise a symmetric matrix has the
    values of the offsets from 0 on alone: a product reads about half of the values.
    """

    vals: torch.Tensor
    offsets: torch.Tensor
    numbers: torch.Tensor | None

    def times_and_dot(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """y = A x for a vector (1, m, 1), and the scalar product of x and y."""
        if self.numbers is None:
            return kernels.spmv_diagonals(self.vals, self.offsets, x)
        return kernels.spmv_tiles(self.vals, self.numbers, self.offsets, x)


class Repeated(Valued):
    """A matrix that is multiplied with one vector after another.

    After a few products, a matrix of a few diagonals is copied into an order that needs no indices.
    Its products then take a half to a fifth of the time.
    """

    def __init__(self, vals: torch.Tensor, pattern: Pattern) -> None:
        super().__init__(vals, pattern)
        self._products = {False: 0, True: 0}
        self._copies: dict[bool, Diagonals | None] = {}

    def diagonals(self, by_columns: bool) -> Diagonals | None:
        """The matrix, or its transpose, by diagonals; None if another order is better.

        Each call stands for one product.
        """
        self._products[by_columns] += 1
        if self._products[by_columns] <= SOON:
            return None
        if by_columns not in self._copies:
            self._copies[by_columns] = self._copied(by_columns)
        return self._copies[by_columns]

    def _copied(self, by_columns: bool) -> Diagonals | None:
        offsets = offsets_of(self.vals, self.pattern)
        if offsets is None or not fits(len(offsets), self.vals, self.pattern):
            return None
        if by_columns:
            offsets = tuple(-offset for offset in reversed(offsets))
        at = torch.tensor(offsets, dtype=torch.int64)
        view, vals = self.lines(by_columns)
        every = kernels.by_diagonals(view.ptr, view.idx, vals, at)
        m = self.pattern.matrix[0]
        most = len(offsets) * m // (_REPEATS * TILE_ROWS)
        tiles, numbers = kernels.tiles_of_diagonals(every, m, most)
        if tiles.shape[0]:
            return Diagonals(tiles, at, numbers)
        return Diagonals(_without_mirrored(every, offsets), at, None)


def offsets_of(vals: torch.Tensor, pattern: Pattern) -> tuple[int, ...] | None:
    """The offsets, column less row, of the diagonals with elements, ascending; kept on the pattern.

    None if there are many, or no kernels for them: for complex numbers, batches and other devices.
    """
    square = pattern.extent == pattern.matrix and pattern.matrix[0] == pattern.matrix[1]
    if not square or vals.is_complex() or vals.device.type != "cpu" or not kernels.compiled():
        return None
    return pattern.derive(kept.OFFSETS, _offsets)


def fits(diagonals: int, vals: torch.Tensor, pattern: Pattern) -> bool:
    """Whether so many diagonals, with zeros in their gaps, take no more memory than indices do."""
    with_indices = vals.numel() * (vals.element_size() + rows(pattern).idx.element_size())
    return diagonals * pattern.matrix[0] * vals.element_size() <= with_indices


def _offsets(pattern: Pattern) -> tuple[int, ...] | None:
    """The offsets, column less row, of the diagonals that have elements; None if there are many."""
    view = rows(pattern)
    count, *offsets = kernels.list_diagonals(view.ptr, view.idx, _MOST).tolist()
    return tuple(offsets[:count]) if count >= 0 else None


def _without_mirrored(vals: torch.Tensor, offsets: tuple[int, ...]) -> torch.Tensor:
    """Values by diagonals (diagonals, stride), without those below if the matrix is symmetric."""
    half = len(offsets) // 2
    if half == 0 or any(low != -high for low, high in zip(offsets, reversed(offsets), strict=True)):
        return vals
    for k, shift in enumerate(reversed(offsets[-half:])):
        above = vals[-1 - k]
        if not torch.equal(vals[k, shift:], above[: above.shape[0] - shift]):
            return vals
    return vals[half:].clone()
