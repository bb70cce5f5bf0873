"""References of the matmul kernels: spmm and sddmm, each other's derivatives."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import accumulate_dtype, widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers

COLUMNS = 8
"""Columns gathered at a time, so that no temporary is longer than 8 nse."""


# The references take columns in chunks; shape functions keep the number of columns symbolic.
def _rows_shape(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, *x.shape[1:])


def _entries_shape(ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(idx.shape[0])


@kernel(
    "spmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor x) -> Tensor",
    fake=_rows_shape,
)
def spmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    """y[i, :] = sum over entries p of row i of val[perm[p]] x[idx[p], :].

    The entries of a row may stand in any order and repeat.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,).
        x: Dense factor (k, n), or a vector (k,).

    Returns:
        y (m, n), or (m,).
    """
    if x.dim() == 1:
        return spmm(ptr, idx, perm, val, x[:, None]).view(-1)
    m, n = ptr.shape[0] - 1, x.shape[1]
    row = row_numbers(ptr, idx.shape[0])
    weight = widened(in_view_order(val, perm))[:, None]  # (nse, 1)
    y = x.new_empty(m, n)
    for j in range(0, n, COLUMNS):
        products = weight * widened(x[:, j : j + COLUMNS][idx])  # (nse, columns)
        total = products.new_zeros(m, products.shape[1]).index_add_(0, row, products)
        y[:, j : j + COLUMNS] = total.to(x.dtype)
    return y


@kernel(
    "sddmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor g, Tensor x) -> Tensor",
    fake=_entries_shape,
)
def sddmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor) -> Tensor:
    """out[perm[p]] = sum over j of g[i, j] x[idx[p], j], for every entry p of every row i.

    The values of g xᵀ at the entries of a pattern, which may stand in any order and repeat. No
    factor is conjugated.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value belongs in the result, a bijection (nse,); None for in place.
        g: Dense factor (m, n).
        x: Dense factor (k, n).

    Returns:
        out (nse,).
    """
    n = x.shape[1]
    row = row_numbers(ptr, idx.shape[0])
    total = x.new_zeros(idx.shape[0], dtype=accumulate_dtype(x.dtype))
    for j in range(0, n, COLUMNS):
        columns = slice(j, j + COLUMNS)
        products = widened(g[:, columns][row]) * widened(x[:, columns][idx])  # (nse, columns)
        total += products.sum(1, dtype=total.dtype)
    return in_value_order(total.to(x.dtype), perm)


def _pair_shapes(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, g: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    return _rows_shape(ptr, idx, perm, val, x), _entries_shape(ptr, idx, perm, g, x)


@kernel(
    "spmm_sddmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor g, Tensor x)"
    " -> (Tensor, Tensor)",
    fake=_pair_shapes,
)
def spmm_sddmm(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, g: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """spmm and sddmm of one view and one x, which both gather the same rows of x.

    They are the two gradients of a product y = A b with cotangent x, on the view of A transposed:
    A^T x, and the values of x b^T at the pattern of A, with g = b.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val` and in the second result, a bijection (nse,).
        val: Values (nse,).
        g: Dense factor (m, n).
        x: Dense factor (k, n).

    Returns:
        y (m, n) of `spmm` and out (nse,) of `sddmm`.
    """
    return spmm(ptr, idx, perm, val, x), sddmm(ptr, idx, perm, g, x)


@kernel(
    "sddmm_into(Tensor(a!) out, Tensor ptr, Tensor idx, Tensor? perm, Tensor g, Tensor x) -> ()"
)
def sddmm_into(
    out: Tensor, ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor
) -> None:
    """`sddmm` into existing memory, such as a part of the gradient of all values.

    Args:
        out: The result (nse,).
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value belongs in the result, a bijection (nse,); None for in place.
        g: Dense factor (m, n).
        x: Dense factor (k, n).
    """
    out.copy_(sddmm(ptr, idx, perm, g, x))


@kernel(
    "spmm_sddmm_into(Tensor(a!) out, Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor g,"
    " Tensor x) -> Tensor",
    fake=lambda out, ptr, idx, perm, val, g, x: x.new_empty(ptr.shape[0] - 1, x.shape[1]),
)
def spmm_sddmm_into(
    out: Tensor,
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    g: Tensor,
    x: Tensor,
) -> Tensor:
    """`spmm_sddmm`, whose second result is written into existing memory.

    Args:
        out: The second result (nse,).
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val` and `out`, a bijection (nse,).
        val: Values (nse,).
        g: Dense factor (m, n).
        x: Dense factor (k, n).

    Returns:
        y (m, n) of `spmm`.
    """
    out.copy_(sddmm(ptr, idx, perm, g, x))
    return spmm(ptr, idx, perm, val, x)


@kernel(
    "shares(Tensor ptr, SymInt workers) -> Tensor",
    fake=lambda ptr, workers: ptr.new_empty(2, workers, dtype=torch.int64),
)
def shares(ptr: Tensor, workers: int) -> Tensor:
    """What each of so many threads does in a product: entries, and lines (2, workers).

    The product has 16 columns or more; with n of fewer, rows of up to 4096 / n entries stay whole.
    A line is a row, or a piece of a row with more than 256 entries and a 1024th of all; up to a
    512th of all, rows are cut where they are longer than two average rows. Threads get equal
    numbers of entries and lines together, but none shares a line.

    Args:
        ptr: Row pointers (m + 1,).
        workers: Number of threads.
    """
    starts, nse = ptr.tolist(), int(ptr[-1])
    longest = max(256, nse // 1024, min(2 * (nse // max(ptr.shape[0] - 1, 1)), 2 * nse // 1024))
    lines: list[int] = []
    for begin, end in itertools.pairwise(starts):
        half, length = longest // 2, end - begin
        pieces = -(-length // half) if length > longest else 1
        lines += [begin + length * b // pieces for b in range(pieces)]
    at = torch.tensor([*lines, nse], device="cpu")
    work = at + torch.arange(len(at), device="cpu")
    each = -(-int(work[-1]) // workers)
    bounds = (torch.arange(workers + 1, device="cpu") * each).clamp(max=int(work[-1]))
    line = torch.searchsorted(work, bounds)
    return torch.stack([at[line].diff(), line.diff()]).to(ptr.device)
