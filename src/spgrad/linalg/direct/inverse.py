"""Elements of the inverse of a matrix, by its factors."""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.linalg.direct.engines import Factored, Selected, Triangles

_COLUMNS = 64
"""Columns of the inverse that are solved for at once."""


def inverse_elements(found: Factored, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Elements (row, column) of A^-1, without gradient.

    Those at the pattern of the factors come of Takahashi's equations; for the others, and if the
    engine gives no factors, the columns that they are in are solved for, some at a time.
    """
    row, column = row.cpu().to(torch.int64), column.cpu().to(torch.int64)
    out, missing = _by_factors(found, row, column)
    if missing.numel() == 0:
        return out
    missing = missing[torch.argsort(column[missing])]
    distinct, counts = torch.unique_consecutive(column[missing], return_counts=True)
    ends = counts.cumsum(0)
    for start in range(0, distinct.shape[0], _COLUMNS):
        some = distinct[start : start + _COLUMNS]
        unit = torch.zeros(found.size, some.shape[0], dtype=found.dtype)
        unit[some, torch.arange(some.shape[0])] = 1
        x, _ = found.solve(unit)
        a = int(ends[start - 1]) if start else 0
        which = missing[a : int(ends[start + some.shape[0] - 1])]
        out[which] = x[row[which], torch.searchsorted(some, column[which])]
    return out


def _by_factors(
    found: Factored, row: torch.Tensor, column: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements (row, column) of A^-1, and which of them the factors don't have."""
    factors = found.triangles() if found.selected is None else None
    if factors is not None:
        found.selected = Selected(*_at_factors(factors), factors.to_row, factors.to_column)
    if found.selected is None:
        return torch.zeros(row.shape, dtype=found.dtype), torch.arange(row.shape[0])
    keys, z, to_row, to_column = found.selected
    wanted = to_row[column] * found.size + to_column[row]
    at = torch.searchsorted(keys, wanted).clamp_(max=max(keys.shape[0] - 1, 0))
    return z[at], torch.nonzero(keys[at] != wanted).squeeze(-1)


def _at_factors(factors: Triangles) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted positions (i, j) of L + U as i m + j, and elements (j, i) of (L U)^-1."""
    ptr, idx, val = _by_rows(factors)
    z, failed = _selected(ptr, idx, val)
    if failed >= 0:  # engines leave out elements that are exactly zero
        full_ptr, full_idx = kernels.factor_pattern(ptr, idx)
        filled = val.new_zeros(full_idx.shape)
        filled[torch.searchsorted(_keys(full_ptr, full_idx), _keys(ptr, idx))] = val
        ptr, idx = full_ptr, full_idx
        z, failed = _selected(ptr, idx, filled)
    return _keys(ptr, idx), z


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
    both = coo_array((factors.val.numpy(), places), shape=(size, size)).tocsr()
    both.sort_indices()
    arrays = both.indptr.astype(np.int32), both.indices.astype(np.int32), both.data
    ptr, idx, vals = (torch.from_numpy(a) for a in arrays)
    return ptr, idx, vals
