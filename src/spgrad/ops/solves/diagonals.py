"""Triangles whose elements lie on a few diagonals, such as incomplete factors of stencils."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.values import plain
from spgrad.lowering.products.diagonals import fits, offsets_of
from spgrad.lowering.views import Valued

_FAR = 16
"""Rows of a block of the kernel: an offset is 1, or at least this."""


class Triangle(NamedTuple):
    """One triangle of a square matrix, or block-diagonal batch."""

    pattern: Pattern
    upper: bool
    unit: bool  # ones on the diagonal, whatever is stored there


class TriangleByDiagonals(NamedTuple):
    """D T, with a diagonal matrix D and a unit triangle T, for `substitute_diagonals`."""

    vals: torch.Tensor  # of T
    offsets: torch.Tensor
    inverse: torch.Tensor | None  # of D (m,); None for ones

    def solve(self, b: torch.Tensor, transpose: bool) -> torch.Tensor:
        """(D T)^-1 b, or (D T)^-T b, for b (m, 1)."""
        right = plain(b).view(1, -1, 1)
        x = kernels.substitute_diagonals(self.vals, self.offsets, self.inverse, right, transpose)
        return x.view(b.shape)


def triangle_by_diagonals(A: Valued, triangle: Triangle) -> TriangleByDiagonals | None:
    """The triangle by diagonals; None if another order is better. The pivots are no zeros."""
    _, upper, unit = triangle
    all_offsets = offsets_of(A.vals, A.pattern)
    if all_offsets is None:
        return None
    offsets = [offset for offset in all_offsets if offset != 0 and (offset > 0) == upper]
    far = all(abs(offset) == 1 or abs(offset) >= _FAR for offset in offsets)
    if not far or not fits(len(offsets) + 1, A.vals, A.pattern):
        return None
    view, vals = A.lines(by_columns=False)
    at = torch.tensor(offsets, dtype=torch.int64)
    if unit:
        return TriangleByDiagonals(kernels.by_diagonals(view.ptr, view.idx, vals, at), at, None)
    with_main = torch.cat([at.new_zeros(1), at] if upper else [at, at.new_zeros(1)])
    found = kernels.by_diagonals(view.ptr, view.idx, vals, with_main)
    main, others = (found[0], found[1:]) if upper else (found[-1], found[:-1])
    inverse = main[: A.pattern.matrix[0]].reciprocal_()
    if not bool(inverse.isfinite().all()):
        return None  # a pivot is too small
    others[:, : inverse.shape[0]].mul_(inverse)
    return TriangleByDiagonals(others, at, inverse)
