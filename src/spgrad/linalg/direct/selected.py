"""Elements of an inverse at the pattern of its factors, by Takahashi's equations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.linalg.direct.engines import Columns, Factored, Selected, Triangles

_MOST = 4
"""The supernodes may have at most this many times as many elements as the factors."""


def selected_elements(found: Factored) -> Selected | None:
    """The elements that the factors give, by supernodes with the compiled library; or None."""
    columns = found.columns() if kernels.compiled() else None
    panels = None if columns is None else _Panels.of(columns)
    if panels is not None:
        return panels
    factors = found.triangles()
    return None if factors is None else _Entries.of(factors)


@dataclass(frozen=True)
class _Panels(Selected):
    """Elements of (L U)^-1 in the order of `kernels.supernodal_inverse`."""

    start: torch.Tensor
    rows: torch.Tensor  # s m + row, for every row below supernode s; sorted
    row_ptr: torch.Tensor
    z: torch.Tensor
    mirror: int

    @classmethod
    def of(cls, factors: Columns) -> _Panels | None:
        """None if L and U differ so much in pattern that supernodes would take too much memory."""
        (l_ptr, l_idx, l_val), (u_ptr, u_idx, u_val) = factors.lower, factors.upper
        limit = min(_MOST * (l_idx.shape[0] + u_idx.shape[0]), 2**31 - 1)
        start, row_ptr, rows = kernels.supernodes(l_ptr, l_idx, u_ptr, u_idx, limit)
        if start.shape[0] == 1:
            return None
        z = kernels.supernodal_inverse(
            start, row_ptr, rows, l_ptr, l_idx, l_val, u_ptr, u_idx, u_val, factors.mirror
        )
        of = kernels.expand(row_ptr, rows.shape[0]).to(torch.int64)
        keys = of.mul_(l_ptr.shape[0] - 1).add_(rows)
        order = factors.to_row, factors.to_column
        return cls(*order, start.to(torch.int64), keys, row_ptr.to(torch.int64), z, factors.mirror)

    def elements(
        self, row: torch.Tensor, column: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Selected.elements`."""
        low, high = torch.minimum(row, column), torch.maximum(row, column)
        width, below = self.start.diff(), self.row_ptr.diff()
        sizes = width * (width + below * (1 if self.mirror else 2))
        s = kernels.expand(self.start, int(self.start[-1])).to(torch.int64)[low]
        w, r, first = width[s], below[s], self.start[:-1][s]
        inside = high < first + w
        wanted = s * int(self.start[-1]) + high
        at = torch.searchsorted(self.rows, wanted)
        known = inside | (_at(self.rows, at) == wanted)
        place = torch.where(inside, high - first, w + at - self.row_ptr[:-1][s])
        turned = column < row  # stored as (column, row), in the transposed half of Z
        base = (sizes.cumsum(0) - sizes)[s]
        line = torch.where(inside, row, low) - first
        at = base + line * (w + r) + torch.where(inside, column - first, place)
        if not self.mirror:
            transposed = base + w * (w + r) + line * r + place - w
            at = torch.where(turned & ~inside, transposed, at)
        out = _at(self.z, at.where(known, 0))
        if self.mirror == 2:
            out = torch.where(turned & ~inside, out.conj(), out)
        return out, at.where(known, -1)


@dataclass(frozen=True)
class _Entries(Selected):
    """Elements of (L U)^-1 one by one."""

    keys: torch.Tensor  # i m + j for every element (i, j) of L + U; sorted
    z: torch.Tensor  # element (j, i) of the inverse

    @classmethod
    def of(cls, factors: Triangles) -> _Entries:
        ptr, idx, val = _by_rows(factors)
        z, failed = _selected(ptr, idx, val)
        if failed >= 0:  # engines leave out elements that are exactly zero
            full_ptr, full_idx = kernels.factor_pattern(ptr, idx)
            filled = val.new_zeros(full_idx.shape)
            filled[torch.searchsorted(_keys(full_ptr, full_idx), _keys(ptr, idx))] = val
            ptr, idx = full_ptr, full_idx
            z, failed = _selected(ptr, idx, filled)
        return cls(factors.to_row, factors.to_column, _keys(ptr, idx), z)

    def elements(
        self, row: torch.Tensor, column: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Selected.elements`."""
        wanted = column * self.to_row.shape[0] + row
        at = torch.searchsorted(self.keys, wanted)
        return _at(self.z, at), at.where(_at(self.keys, at) == wanted, -1)


def _at(of: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Elements of a vector; past its end its last element, and -1 if it has none."""
    return of[at.clamp(max=of.shape[0] - 1)] if of.shape[0] > 0 else of.new_full(at.shape, -1)


def _keys(ptr: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    row = kernels.expand(ptr, idx.shape[0]).to(torch.int64)
    return row * (ptr.shape[0] - 1) + idx


def _selected(ptr: torch.Tensor, idx: torch.Tensor, val: torch.Tensor) -> tuple[torch.Tensor, int]:
    col_ptr, col_idx, place = kernels.transpose_plan(ptr, idx, ptr.shape[0] - 1)
    z, failed = kernels.selected_inverse(ptr, idx, val, col_ptr, col_idx, place)
    return z, int(failed)


def _by_rows(factors: Triangles) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """L, without its diagonal of ones, and U as one matrix in CSR."""
    import numpy as np
    from scipy.sparse import coo_array

    size = factors.to_row.shape[0]
    places = factors.row.numpy(), factors.column.numpy()
    both = coo_array((factors.val.numpy(), places), shape=(size, size)).tocsr()  # sorted
    arrays = both.indptr.astype(np.int32), both.indices.astype(np.int32), both.data
    ptr, idx, vals = (torch.from_numpy(a) for a in arrays)
    return ptr, idx, vals
