"""Native sparse-sparse product: torch's CSR product, its rows sorted afterwards."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from spgrad.kernels.declare import REFERENCES, native
from spgrad.kernels.native.common.torch_csr import by_library, csr, rows_ascend, served
from spgrad.kernels.reference.common.dtypes import accumulate_dtype, widened
from spgrad.kernels.reference.common.views import in_view_order, row_numbers

_SORTED = 1 << 20
"""Entries that are sorted at a time, or one row: the sort takes more memory than they do."""


@native
def spgemm(
    ptr_a: Tensor,
    idx_a: Tensor,
    perm_a: Tensor | None,
    val_a: Tensor,
    ptr_b: Tensor,
    idx_b: Tensor,
    perm_b: Tensor | None,
    val_b: Tensor,
    n: int,
    checked: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.products.spgemm.spgemm`; memory of the size of the result."""
    operands = ptr_a, idx_a, perm_a, val_a, ptr_b, idx_b, perm_b, val_b
    sizes = idx_a.shape[0], idx_b.shape[0], ptr_a.shape[0], ptr_b.shape[0], n
    wide, device = accumulate_dtype(val_a.dtype), val_a.device
    if not (
        by_library(device)
        and served(wide, device, *sizes)
        and (checked or bool(_fit(ptr_a, idx_a, ptr_b, idx_b)))
    ):
        return REFERENCES["spgemm"](*operands, n)
    A = csr(ptr_a, idx_a, widened(in_view_order(val_a, perm_a)), ptr_b.shape[0] - 1)
    B = csr(ptr_b, idx_b, widened(in_view_order(val_b, perm_b)), n)
    C = torch.mm(A, B)
    ptr, idx, val = C.crow_indices(), C.col_indices(), C.values().to(val_a.dtype)
    return ptr.to(ptr_a.dtype), *_sort_rows(ptr, idx.to(idx_a.dtype), val, n)


def _fit(ptr_a: Tensor, idx_a: Tensor, ptr_b: Tensor, idx_b: Tensor) -> Tensor:
    """Whether rows ascend and int32 can count the products: one bool on the device, read once."""
    products = ptr_b.diff().index_select(0, idx_a).sum(dtype=torch.int64)
    countable = products <= torch.iinfo(torch.int32).max
    return rows_ascend(ptr_a, idx_a) & rows_ascend(ptr_b, idx_b) & countable


def _sort_rows(ptr: Tensor, idx: Tensor, val: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Columns and values with the columns of each row ascending; sorts in place."""
    for first, last, entries in _runs_of_rows(ptr, idx.shape[0]):
        of_rows = ptr[first : last + 1]
        cols, vals = idx[entries], val[entries]  # of the result, which is overwritten
        narrow = (last - first) * n <= torch.iinfo(torch.int32).max  # sorts twice as fast
        row = row_numbers(of_rows - of_rows[0], cols.shape[0])
        dtype = torch.int32 if narrow else torch.int64
        order = torch.argsort(row.to(dtype) * n + cols.to(dtype), stable=True)
        cols.copy_(cols.index_select(0, order))
        vals.copy_(vals.index_select(0, order))
    return idx, val


def _runs_of_rows(ptr: Tensor, nse: int) -> list[tuple[int, int, slice]]:
    """Runs of rows with about `_SORTED` entries in all: first row, row after the last, entries."""
    if nse <= _SORTED:  # without reading the pointers
        return [(0, ptr.shape[0] - 1, slice(0, nse))]
    targets = torch.arange(0, nse, _SORTED, dtype=ptr.dtype, device=ptr.device)
    rows = torch.searchsorted(ptr, targets, out_int32=ptr.dtype == torch.int32)
    rows = torch.cat([rows, ptr.new_full((1,), ptr.shape[0] - 1)])
    bounds = sorted(set(zip(*torch.stack([rows, ptr[rows]]).tolist(), strict=True)))
    return [
        (row, behind, slice(entry, stop))
        for (row, entry), (behind, stop) in itertools.pairwise(bounds)
    ]
