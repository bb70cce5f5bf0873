"""References of the sparse-sparse products: by expansion, in memory of the number of products."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.layouts.checks import distinct, row_numbers, row_pointers

_ACCUMULATE_AS = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def _rows(ptr: Tensor, idx: Tensor) -> Tensor:
    return row_numbers(ptr, idx.numel()).long()


def _permuted(val: Tensor, perm: Tensor | None) -> Tensor:
    """The values in the order of the row view, in the type that sums are kept in."""
    val = val.to(_ACCUMULATE_AS.get(val.dtype, val.dtype))
    return val if perm is None else val[perm.long()]


def _pair(idx: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Every pair (p, q) of an entry p and an entry q of row idx[p] of `ptr`, in order."""
    idx = idx.long()
    count = ptr.diff().long()[idx]
    p = torch.repeat_interleave(count)
    start = count.cumsum(0) - count
    offset = p.new_ones(p.numel()).cumsum(0) - 1 - start[p]
    return p, ptr.long()[idx[p]] + offset


def _number(*entries: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
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
) -> tuple[Tensor, Tensor, Tensor]:
    nse = torch.library.get_ctx().new_dynamic_size()
    return torch.empty_like(ptr_a), idx_a.new_empty(nse), val_a.new_empty(nse)


@kernel(
    "spgemm(Tensor ptr_a, Tensor idx_a, Tensor? perm_a, Tensor val_a, Tensor ptr_b, Tensor idx_b,"
    " Tensor? perm_b, Tensor val_b, SymInt n) -> (Tensor, Tensor, Tensor)",
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
) -> tuple[Tensor, Tensor, Tensor]:
    """A (m, k) @ B (k, n): row pointers, sorted and distinct columns, and values."""
    p, q = _pair(idx_a, ptr_b)
    products = _permuted(val_a, perm_a)[p] * _permuted(val_b, perm_b)[q]
    (row, col), (at,) = _number((_rows(ptr_a, idx_a)[p], idx_b[q]))
    if row.numel() > torch.iinfo(ptr_a.dtype).max:
        raise RuntimeError(
            f"spgemm: the product has {row.numel()} entries, more than {ptr_a.dtype} pointers can"
            " count; use int64 indices"
        )
    sums = products.new_zeros(row.numel()).index_add_(0, at, products).to(val_a.dtype)
    ptr = row_pointers(row, ptr_a.numel() - 1).to(ptr_a.dtype)
    # `col` is a row of a larger tensor, which a result does not keep alive
    return ptr, col.to(idx_a.dtype, copy=True), sums


def _fake_spgemm_values(
    ptr_c: Tensor,
    idx_c: Tensor,
    ptr_a: Tensor,
    idx_a: Tensor,
    perm_a: Tensor | None,
    val_a: Tensor,
    ptr_b: Tensor,
    idx_b: Tensor,
    perm_b: Tensor | None,
    val_b: Tensor,
    n: int,
) -> Tensor:
    return val_a.new_empty(idx_c.shape)


@kernel(
    "spgemm_values(Tensor ptr_c, Tensor idx_c, Tensor ptr_a, Tensor idx_a, Tensor? perm_a,"
    " Tensor val_a, Tensor ptr_b, Tensor idx_b, Tensor? perm_b, Tensor val_b, SymInt n)"
    " -> Tensor",
    fake=_fake_spgemm_values,
)
def spgemm_values(
    ptr_c: Tensor,
    idx_c: Tensor,
    ptr_a: Tensor,
    idx_a: Tensor,
    perm_a: Tensor | None,
    val_a: Tensor,
    ptr_b: Tensor,
    idx_b: Tensor,
    perm_b: Tensor | None,
    val_b: Tensor,
    n: int,
) -> Tensor:
    """The values of A @ B on the pattern c; products that fall outside c are left out."""
    p, q = _pair(idx_a, ptr_b)
    products = _permuted(val_a, perm_a)[p] * _permuted(val_b, perm_b)[q]
    row = _rows(ptr_a, idx_a)[p]
    unique, (at_c, at_product) = _number((_rows(ptr_c, idx_c), idx_c), (row, idx_b[q]))
    sums = products.new_zeros(unique.shape[1]).index_add_(0, at_product, products)
    return sums[at_c].to(val_a.dtype)


def _fake_masked_spgemm(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    ptr_c: Tensor,
    idx_c: Tensor,
    perm_c: Tensor | None,
    val_c: Tensor,
    ptr_b: Tensor,
    idx_b: Tensor,
    perm_b: Tensor | None,
    val_b: Tensor,
    n: int,
) -> Tensor:
    return val_c.new_empty(idx.shape)


@kernel(
    "masked_spgemm(Tensor ptr, Tensor idx, Tensor? perm, Tensor ptr_c, Tensor idx_c,"
    " Tensor? perm_c, Tensor val_c, Tensor ptr_b, Tensor idx_b, Tensor? perm_b, Tensor val_b,"
    " SymInt n) -> Tensor",
    fake=_fake_masked_spgemm,
)
def masked_spgemm(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    ptr_c: Tensor,
    idx_c: Tensor,
    perm_c: Tensor | None,
    val_c: Tensor,
    ptr_b: Tensor,
    idx_b: Tensor,
    perm_b: Tensor | None,
    val_b: Tensor,
    n: int,
) -> Tensor:
    """C (m, n) @ B (k, n)^T at the entries of a mask (m, k), in the order of the mask's values.

    Only pairs of entries that both exist are multiplied: an infinite B meets no implied zero.
    """
    p, q = _pair(idx, ptr_b)
    row = _rows(ptr, idx)[p]
    unique, (at_c, at_product) = _number((_rows(ptr_c, idx_c), idx_c), (row, idx_b[q]))
    c = _permuted(val_c, perm_c)
    summed = c.new_zeros(unique.shape[1]).index_add_(0, at_c, c)
    present = torch.zeros_like(summed, dtype=torch.bool)
    present[at_c] = True
    met = present[at_product]
    products = summed[at_product][met] * _permuted(val_b, perm_b)[q[met]]
    out = c.new_zeros(idx.numel()).index_add_(0, p[met], products).to(val_c.dtype)
    if perm is None:
        return out
    return torch.empty_like(out).index_copy_(0, perm.long(), out)
