"""What LU factors tell of a matrix: its determinant, and elements of its inverse."""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.linalg.direct.superlu import Factored

_COLUMNS = 64
"""Columns of the inverse that are solved for at once."""


def log_determinant(found: Factored) -> tuple[torch.Tensor, torch.Tensor]:
    """Sign and logarithm of the absolute determinant of every item (items,)."""
    diagonal = torch.from_numpy(found.factor.U.diagonal())
    row, column = found.permutations()
    m = diagonal.shape[0] // found.items
    at_column = diagonal[column].view(found.items, m)  # of the factor that has this column of A
    sign = (at_column / at_column.abs()).prod(-1) * _parity(row, column, found.items)
    return sign, at_column.abs().log().sum(-1)


def _parity(row: torch.Tensor, column: torch.Tensor, items: int) -> torch.Tensor:
    """1 or -1 for every item: (-1)^(m - cycles) of the permutation from rows to columns."""
    import numpy as np
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    size = row.shape[0]
    to = torch.argsort(column)[row].numpy()
    graph = csr_array((np.ones(size, np.int8), to, np.arange(size + 1)), shape=(size, size))
    _, label = connected_components(graph, directed=True, connection="weak")
    first = torch.from_numpy(np.unique(label, return_index=True)[1])
    m = size // items
    cycles = torch.bincount(first // m, minlength=items)
    return 1 - 2 * ((m - cycles) % 2)


def inverse_elements(found: Factored, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Elements (row, column) of A^-1, without gradient.

    Those at the pattern of the factors come of Takahashi's equations; for the others, the columns
    that they are in are solved for, some at a time.
    """
    row, column = row.cpu().to(torch.int64), column.cpu().to(torch.int64)
    to_row, to_column = found.permutations()
    size = to_row.shape[0]
    keys, z = _at_factors(found)
    wanted = to_row[column] * size + to_column[row]
    at = torch.searchsorted(keys, wanted).clamp_(max=max(keys.shape[0] - 1, 0))
    out = z[at]
    missing = torch.nonzero(keys[at] != wanted).squeeze(-1)
    if missing.numel() == 0:
        return out
    missing = missing[torch.argsort(column[missing])]
    distinct, counts = torch.unique_consecutive(column[missing], return_counts=True)
    ends = counts.cumsum(0)
    for start in range(0, distinct.shape[0], _COLUMNS):
        some = distinct[start : start + _COLUMNS]
        unit = torch.zeros(size, some.shape[0], dtype=z.dtype)
        unit[some, torch.arange(some.shape[0])] = 1
        x, _ = found.solve(unit)
        a = int(ends[start - 1]) if start else 0
        which = missing[a : int(ends[start + some.shape[0] - 1])]
        out[which] = x[row[which], torch.searchsorted(some, column[which])]
    return out


def _at_factors(found: Factored) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted positions (i, j) of L + U as i m + j, and elements (j, i) of (L U)^-1; kept."""
    if found.selected is None:
        ptr, idx, val = _by_rows(found)
        z, failed = _selected(ptr, idx, val)
        if failed >= 0:  # SuperLU leaves out elements that are exactly zero
            full_ptr, full_idx = kernels.factor_pattern(ptr, idx)
            filled = val.new_zeros(full_idx.shape)
            filled[torch.searchsorted(_keys(full_ptr, full_idx), _keys(ptr, idx))] = val
            ptr, idx = full_ptr, full_idx
            z, failed = _selected(ptr, idx, filled)
        found.selected = _keys(ptr, idx), z
    return found.selected


def _keys(ptr: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    row = kernels.expand(ptr, idx.shape[0]).to(torch.int64)
    return row * (ptr.shape[0] - 1) + idx


def _selected(ptr: torch.Tensor, idx: torch.Tensor, val: torch.Tensor) -> tuple[torch.Tensor, int]:
    col_ptr, col_idx, place = kernels.transpose_plan(ptr, idx, ptr.shape[0] - 1)
    z, failed = kernels.selected_inverse(ptr, idx, val, col_ptr, col_idx, place)
    return z, int(failed)


def _by_rows(found: Factored) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """L, without its diagonal of ones, and U as one matrix in CSR."""
    import numpy as np
    from scipy.sparse import coo_array

    lower, upper = found.factor.L.tocoo(), found.factor.U.tocoo()
    below = lower.row > lower.col
    row = np.concatenate((lower.row[below], upper.row))
    col = np.concatenate((lower.col[below], upper.col))
    val = np.concatenate((lower.data[below], upper.data))
    both = coo_array((val, (row, col)), shape=found.factor.shape).tocsr()
    both.sort_indices()
    arrays = both.indptr.astype(np.int32), both.indices.astype(np.int32), both.data
    ptr, idx, vals = (torch.from_numpy(a) for a in arrays)
    return ptr, idx, vals
