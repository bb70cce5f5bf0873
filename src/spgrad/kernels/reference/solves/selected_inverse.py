"""References of the inverse at the pattern of the factors, and of that pattern."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


def _inverse_shapes(
    ptr: Tensor, idx: Tensor, val: Tensor, col_ptr: Tensor, col_idx: Tensor, place: Tensor
) -> tuple[Tensor, Tensor]:
    return val.new_empty(val.shape), val.new_empty(1, dtype=torch.int64)


@kernel(
    "selected_inverse(Tensor ptr, Tensor idx, Tensor val, Tensor col_ptr, Tensor col_idx, "
    "Tensor place) -> (Tensor, Tensor)",
    fake=_inverse_shapes,
)
def selected_inverse(
    ptr: Tensor, idx: Tensor, val: Tensor, col_ptr: Tensor, col_idx: Tensor, place: Tensor
) -> tuple[Tensor, Tensor]:
    """Element (j, i) of Z = (L U)^-1 at every entry (i, j) of L + U: Takahashi's equations.

    The columns of a row are sorted and do not repeat. Whenever (k, j) with k > j and (j, i) with
    i > j are entries, so is (k, i).

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        val: Values (nse,), float32, float64 or complex: U with its diagonal, and L without it,
            which is of ones.
        col_ptr: Column pointers (m + 1,) of the same entries.
        col_idx: Row of every entry (nse,), by columns; sorted in each.
        place: Where each of these stands by rows (nse,).

    Returns:
        Values of Z^T (nse,), and the first row found in which entries are missing (1,), int64, or
        -1. If there is one, the values mean nothing.
    """
    m = ptr.shape[0] - 1
    rows = torch.repeat_interleave(torch.arange(m, device=ptr.device), ptr.diff())
    at = {(i, j): p for p, (i, j) in enumerate(zip(rows.tolist(), idx.tolist(), strict=True))}
    numbers, z = val.tolist(), [0.0] * len(at)
    starts, columns = ptr.tolist(), idx.tolist()
    column_starts, in_column = col_ptr.tolist(), col_idx.tolist()

    def result(failed: int) -> tuple[Tensor, Tensor]:
        found = torch.tensor(z, dtype=val.dtype, device=val.device)
        return found, torch.tensor([failed], device=val.device)

    for j in reversed(range(m)):
        right = [i for i in columns[starts[j] : starts[j + 1]] if i > j]
        below = [k for k in in_column[column_starts[j] : column_starts[j + 1]] if k > j]
        if (j, j) not in at or any((k, i) not in at for k in below for i in right):
            return result(j)
        pivot = 1 / numbers[at[j, j]]
        v = {i: numbers[at[j, i]] * pivot for i in right}
        for i in right:
            z[at[j, i]] = -sum(z[at[k, i]] * numbers[at[k, j]] for k in below)
        for k in below:
            z[at[k, j]] = -sum(v[i] * z[at[k, i]] for i in right)
        z[at[j, j]] = pivot - sum(v[i] * z[at[j, i]] for i in right)
    return result(-1)


def _pattern_shapes(ptr: Tensor, idx: Tensor) -> tuple[Tensor, Tensor]:
    nse = torch.library.get_ctx().new_dynamic_size()
    return ptr.new_empty(ptr.shape), idx.new_empty(nse)


@kernel("factor_pattern(Tensor ptr, Tensor idx) -> (Tensor, Tensor)", fake=_pattern_shapes)
def factor_pattern(ptr: Tensor, idx: Tensor) -> tuple[Tensor, Tensor]:
    """Pattern of L + U by rows for A = L U without exchange of rows, whatever the values are.

    Args:
        ptr: Row pointers (m + 1,) of A.
        idx: Column of every entry (nse,), sorted in each row, without repeats.

    Returns:
        Row pointers (m + 1,), and the columns, sorted in each row; the diagonal is always there.
    """
    starts, columns = ptr.tolist(), idx.tolist()
    done: list[list[int]] = []
    for i, (a, b) in enumerate(itertools.pairwise(starts)):
        line = {i, *columns[a:b]}
        for k in range(i):
            if k in line:
                line.update(c for c in done[k] if c > k)
        done.append(sorted(line))
    lengths = [0, *itertools.accumulate(len(line) for line in done)]
    flat = [c for line in done for c in line]
    make = {"dtype": ptr.dtype, "device": ptr.device}
    return torch.tensor(lengths, **make), torch.tensor(flat, **make)
