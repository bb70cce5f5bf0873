"""Reference of the sparse-sparse product: by expansion, in memory of the number of products."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import (
    in_view_order,
    row_numbers,
    row_pointers,
)
from spgrad.kernels.reference.layouts.coalesce import distinct


def rows_of(ptr: Tensor, idx: Tensor) -> Tensor:
    """The row of every entry (nse,), as an index."""
    return row_numbers(ptr, idx.numel()).long()


def pairs(idx: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Every pair (p, q) of an entry p and an entry q of row idx[p] of `ptr`, in order."""
    idx = idx.long()
    count = ptr.diff().long()[idx]
    p = torch.repeat_interleave(count)
    start = count.cumsum(0) - count
    offset = p.new_ones(p.numel()).cumsum(0) - 1 - start[p]
    return p, ptr.long()[idx[p]] + offset


def number_pairs(*entries: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Numbers the distinct (row, column) pairs of several lists together.

    Returns:
        The distinct pairs (2, u) in lexicographic order, and for each list its pairs' numbers.
    """
    row = torch.cat([row for row, _ in entries])
    col = torch.cat([col.long() for _, col in entries])
    unique, group = distinct(torch.stack([row, col]))
    return unique, group.split([row.numel() for row, _ in entries])


def _fake_spgemm(
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
    nse = torch.library.get_ctx().new_dynamic_size()
    return torch.empty_like(ptr_a), idx_a.new_empty(nse), val_a.new_empty(nse)


@kernel(
    "spgemm(Tensor ptr_a, Tensor idx_a, Tensor? perm_a, Tensor val_a, Tensor ptr_b, Tensor idx_b,"
    " Tensor? perm_b, Tensor val_b, SymInt n, bool checked=False) -> (Tensor, Tensor, Tensor)",
    fake=_fake_spgemm,
)
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
    """A (m, k) @ B (k, n): row pointers, sorted and distinct columns, and values.

    `checked` says that the columns of every row of both ascend without repeats, and that int32
    counts the products: then nobody has to ask a device, which the host would wait for.
    """
    p, q = pairs(idx_a, ptr_b)
    products = widened(in_view_order(val_a, perm_a))[p] * widened(in_view_order(val_b, perm_b))[q]
    (row, col), (at,) = number_pairs((rows_of(ptr_a, idx_a)[p], idx_b[q]))
    if row.numel() > torch.iinfo(ptr_a.dtype).max:
        raise RuntimeError(
            f"spgemm: the product has {row.numel()} entries, more than {ptr_a.dtype} pointers can"
            " count; use int64 indices"
        )
    sums = products.new_zeros(row.numel()).index_add_(0, at, products).to(val_a.dtype)
    ptr = row_pointers(row, ptr_a.numel() - 1).to(ptr_a.dtype)
    # a copy, because `col` is a row of a larger tensor and would keep it alive
    return ptr, col.to(idx_a.dtype, copy=True), sums
