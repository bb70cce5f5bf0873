"""References of the kernels that merge two patterns, and that move values onto the result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import row_numbers, row_pointers
from spgrad.kernels.reference.layouts.coalesce import coalesce, in_order

_Merged = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _fake_merge(
    ptr_a: Tensor, idx_a: Tensor, ptr_b: Tensor, idx_b: Tensor, ordered: bool = False
) -> _Merged:
    size = torch.library.get_ctx().new_dynamic_size()
    idx, from_a, from_b = (idx_a.new_empty(size) for _ in range(3))
    to_a, to_b = torch.empty_like(idx_a), torch.empty_like(idx_b)
    return torch.empty_like(ptr_a), idx, from_a, from_b, to_a, to_b


def _inverse(to: Tensor, size: int) -> Tensor:
    """Where each of `size` elements comes from, -1 where no element of `to` (nse,) names it."""
    position = torch.ones_like(to).cumsum(0) - 1
    return to.new_full((size,), -1).index_copy_(0, to, position)


def _entries(ptr_a: Tensor, idx_a: Tensor, ptr_b: Tensor, idx_b: Tensor) -> Tensor:
    """Line and index of the entries of a, then of b, as COO indices (2, nse_a + nse_b)."""
    row = torch.cat([row_numbers(ptr_a, idx_a.numel()), row_numbers(ptr_b, idx_b.numel())])
    return torch.stack([row, torch.cat([idx_a, idx_b])])


@kernel(
    "union(Tensor ptr_a, Tensor idx_a, Tensor ptr_b, Tensor idx_b, bool ordered=False)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_merge,
)
def union(
    ptr_a: Tensor, idx_a: Tensor, ptr_b: Tensor, idx_b: Tensor, ordered: bool = False
) -> _Merged:
    """The elements of every line that a or b has, and where they come from.

    The entries of a line may stand in any order; in one operand none repeats.

    Args:
        ptr_a: Line pointers of a (m + 1,).
        idx_a: Index of every entry of a (nse_a,), from 0 to 2^62.
        ptr_b: Line pointers of b (m + 1,).
        idx_b: Index of every entry of b (nse_b,).
        ordered: The indices of each line of both ascend. A kernel then need not look at them
            before it merges, and its results are not defined if they do not.

    Returns:
        The line pointers (m + 1,) and ascending indices (u,) of the union; for each of its
        elements the entry of a, and of b, that it is, -1 for none, both (u,); for every entry of
        a (nse_a,), and of b (nse_b,), the element that it became. All of the operands' dtype.
    """
    dtype, m = idx_a.dtype, ptr_a.numel() - 1
    # The number of columns is not known; every index of the dtype is below these.
    most = 1 << 31 if dtype == torch.int32 else torch.iinfo(torch.int64).max
    unique, group = coalesce(_entries(ptr_a, idx_a, ptr_b, idx_b), (m, most))
    to_a, to_b = group.split([idx_a.numel(), idx_b.numel()])
    size = unique.shape[1]
    return (
        row_pointers(unique[0], m),
        unique[1].clone(),  # a copy, because a row of a larger tensor would keep it alive
        _inverse(to_a, size).to(dtype),
        _inverse(to_b, size).to(dtype),
        to_a.to(dtype, copy=True),
        to_b.to(dtype, copy=True),
    )


@kernel(
    "intersection(Tensor ptr_a, Tensor idx_a, Tensor ptr_b, Tensor idx_b, bool ordered=False)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_merge,
)
def intersection(
    ptr_a: Tensor, idx_a: Tensor, ptr_b: Tensor, idx_b: Tensor, ordered: bool = False
) -> _Merged:
    """The elements of every line that a and b have, and where they come from.

    Operands and results are those of `union`, except that an element always has an entry of a
    and of b, and an entry that the other operand lacks became element -1.
    """
    nse, dtype = idx_a.numel(), idx_a.dtype
    entries = _entries(ptr_a, idx_a, ptr_b, idx_b)
    order = in_order(entries)  # equal ones in theirs, so that of a comes first
    entries = entries.index_select(1, order)
    common = (entries[:, 1:] == entries[:, :-1]).all(0).nonzero().squeeze(1)
    from_a = order.index_select(0, common)
    from_b = order.index_select(0, common + 1) - nse
    found = entries.index_select(1, common)
    return (
        row_pointers(found[0], ptr_a.numel() - 1),
        found[1].clone(),
        from_a.to(dtype),
        from_b.to(dtype),
        _inverse(from_a, nse).to(dtype),
        _inverse(from_b, idx_b.numel()).to(dtype),
    )


_MergedValues = tuple[Tensor, Tensor, Tensor, Tensor]


def _fake_merge_values(*operands: Any) -> _MergedValues:
    ptr_a, idx_a, val_a, ptr_b, idx_b, val_b = operands[:6]
    ptr, idx, *_ = _fake_merge(ptr_a, idx_a, ptr_b, idx_b)
    return ptr, idx, val_a.new_empty(idx.shape), val_b.new_empty(idx.shape)


@kernel(
    "union_values(Tensor ptr_a, Tensor idx_a, Tensor val_a, Tensor ptr_b, Tensor idx_b,"
    " Tensor val_b, bool ordered=False) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_merge_values,
)
def union_values(
    ptr_a: Tensor,
    idx_a: Tensor,
    val_a: Tensor,
    ptr_b: Tensor,
    idx_b: Tensor,
    val_b: Tensor,
    ordered: bool = False,
) -> _MergedValues:
    """The elements of every line that a or b has, and the value of each in a and in b.

    Patterns are those of `union`; `val_a` (nse_a,) and `val_b` (nse_b,) are of one dtype.

    Returns:
        The line pointers (m + 1,) and ascending indices (u,) of the union; the values of a, and of
        b, zero where it has no such element, both (u,).
    """
    ptr, idx, from_a, from_b, _, _ = union(ptr_a, idx_a, ptr_b, idx_b)
    return ptr, idx, take(val_a, from_a), take(val_b, from_b)


def _fake_union_sum(*operands: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_merge_values(*operands)[:3]


@kernel(
    "union_sum(Tensor ptr_a, Tensor idx_a, Tensor val_a, Tensor ptr_b, Tensor idx_b, Tensor val_b,"
    " bool minus, bool ordered=False) -> (Tensor, Tensor, Tensor)",
    fake=_fake_union_sum,
)
def union_sum(*operands: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The elements of every line that a or b has, and their values in a + b or, if `minus`, a - b.

    Operands are those of `union_values`; values are of any dtype but bool.

    Returns:
        The line pointers (m + 1,) and ascending indices (u,) of the union, and the values (u,).
    """
    minus = operands[6]
    ptr, idx, of_a, of_b = union_values(*operands[:6])
    return ptr, idx, of_a - of_b if minus else of_a + of_b


@kernel(
    "intersection_values(Tensor ptr_a, Tensor idx_a, Tensor val_a, Tensor ptr_b, Tensor idx_b,"
    " Tensor val_b, bool ordered=False) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_merge_values,
)
def intersection_values(*operands: Any) -> _MergedValues:
    """The elements of every line that a and b have, and their values; as `union_values`."""
    ptr_a, idx_a, val_a, ptr_b, idx_b, val_b = operands[:6]
    ptr, idx, from_a, from_b, _, _ = intersection(ptr_a, idx_a, ptr_b, idx_b)
    return ptr, idx, val_a[from_a], val_b[from_b]


@kernel("take(Tensor val, Tensor src) -> Tensor")
def take(val: Tensor, src: Tensor) -> Tensor:
    """out[i] = val[src[i]], zero where src[i] is -1.

    Args:
        val: Values (n,) or (n, d) of any dtype.
        src: A position in `val`, or -1 (u,).

    Returns:
        out (u,) or (u, d).
    """
    return torch.cat([val, val.new_zeros((1, *val.shape[1:]))])[src]  # -1 is the zero at the end
