"""Native sparse-sparse products on a pattern that is known before."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from spgrad.kernels.declare import REFERENCES, native
from spgrad.kernels.native.common.torch_csr import rows_ascend
from spgrad.kernels.native.products.spgemm import spgemm
from spgrad.kernels.native.reductions.segment import segment_reduce
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order
from spgrad.kernels.reference.products.spgemm import pairs, rows_of

_PAIRS = 1 << 20
"""Products that are formed at a time, or those of one entry of the mask."""


@native
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
    """`reference.products.spgemm_values.spgemm_values`; memory of the size of the whole product."""
    operands = ptr_a, idx_a, perm_a, val_a, ptr_b, idx_b, perm_b, val_b
    if not _numbered(ptr_c, n):
        return REFERENCES["spgemm_values"](ptr_c, idx_c, *operands, n)
    ptr, idx, val = spgemm(*operands, n)
    if torch.equal(idx, idx_c) and torch.equal(ptr, ptr_c):
        return val
    if not idx.numel():
        return val.new_zeros(idx_c.shape)
    at, found = _find(_places(ptr, idx, n), _places(ptr_c, idx_c, n))
    return val.index_select(0, at).masked_fill_(~found, 0)


@native
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
    """`reference.products.spgemm_values.masked_spgemm`; memory in proportion to the entries of C.

    Forms the products of some entries of the mask at a time: for an entry (i, j), it looks up row j
    of B in row i of C.
    """
    if not (_numbered(ptr_c, n) and bool(rows_ascend(ptr_c, idx_c))):
        c = ptr_c, idx_c, perm_c, val_c
        b = ptr_b, idx_b, perm_b, val_b
        return REFERENCES["masked_spgemm"](ptr, idx, perm, *c, *b, n)
    places = _places(ptr_c, idx_c, n)
    c, b = widened(in_view_order(val_c, perm_c)), widened(in_view_order(val_b, perm_b))
    row, count = rows_of(ptr, idx), ptr_b.diff().index_select(0, idx)
    out = c.new_zeros(idx.shape[0])
    for entries in _blocks(count) if places.numel() else ():
        p, q = pairs(idx[entries], ptr_b)
        at, found = _find(places, row[entries].index_select(0, p) * n + idx_b.index_select(0, q))
        products = c.index_select(0, at) * b.index_select(0, q)
        ends = count[entries].cumsum(0, dtype=torch.int64)
        by_entry = torch.cat([ends.new_zeros(1), ends])
        out[entries] = segment_reduce(by_entry, None, products.masked_fill_(~found, 0), "sum")
    return in_value_order(out.to(val_c.dtype), perm)


def _numbered(ptr: Tensor, n: int) -> bool:
    """Whether int64 can number all elements of a matrix with these rows and n columns."""
    return (ptr.shape[0] - 1) * n <= torch.iinfo(torch.int64).max


def _places(ptr: Tensor, idx: Tensor, n: int) -> Tensor:
    """For every entry, the number of its element among all elements of the matrix (nse,)."""
    return rows_of(ptr, idx) * n + idx


def _find(places: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where each wanted number would be among ascending numbers, and whether it is there."""
    at = torch.searchsorted(places, wanted).clamp_(max=places.numel() - 1)
    return at, places.index_select(0, at) == wanted


def _blocks(count: Tensor) -> list[slice]:
    """Runs of entries with about `_PAIRS` products in all."""
    ends = count.cumsum(0, dtype=torch.int64)
    total = int(ends[-1]) if ends.numel() else 0
    targets = torch.arange(_PAIRS, max(total, _PAIRS), _PAIRS, device=ends.device)
    bounds = torch.searchsorted(ends, targets).tolist()
    return [slice(*run) for run in itertools.pairwise(sorted({0, *bounds, count.numel()}))]
