"""References of the sparse-sparse products on a pattern that is known before."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order
from spgrad.kernels.reference.products.spgemm import number_pairs, pairs, rows_of


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
    p, q = pairs(idx_a, ptr_b)
    products = widened(in_view_order(val_a, perm_a))[p] * widened(in_view_order(val_b, perm_b))[q]
    row = rows_of(ptr_a, idx_a)[p]
    unique, (at_c, at_product) = number_pairs((rows_of(ptr_c, idx_c), idx_c), (row, idx_b[q]))
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
    p, q = pairs(idx, ptr_b)
    row = rows_of(ptr, idx)[p]
    unique, (at_c, at_product) = number_pairs((rows_of(ptr_c, idx_c), idx_c), (row, idx_b[q]))
    c = widened(in_view_order(val_c, perm_c))
    summed = c.new_zeros(unique.shape[1]).index_add_(0, at_c, c)
    present = torch.zeros_like(summed, dtype=torch.bool)
    present[at_c] = True
    met = present[at_product]
    products = summed[at_product][met] * widened(in_view_order(val_b, perm_b))[q[met]]
    out = c.new_zeros(idx.numel()).index_add_(0, p[met], products).to(val_c.dtype)
    return in_value_order(out, perm)
