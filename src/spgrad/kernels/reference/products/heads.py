"""References of the products of several heads on one pattern, each other's derivatives."""

from __future__ import annotations

from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import accumulate_dtype, widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order, row_numbers


def _rows_shape(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, x.shape[1])


def _entries_shape(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor, heads: int
) -> Tensor:
    return x.new_empty(idx.shape[0], heads)


@kernel(
    "heads_spmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor x) -> Tensor",
    fake=_rows_shape,
)
def heads_spmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    """y[i, c, :] = sum over entries p of row i of val[perm[p], c] x[idx[p], c, :].

    The entries of a row may stand in any order and repeat. Rows of x and y are given flat: head c
    has the columns c n, ..., (c + 1) n - 1.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's values stand in `val` (nse,); None where they stand in place.
        val: Values (nse, heads).
        x: Dense factors (k, heads n).

    Returns:
        y (m, heads n).
    """
    m, heads = ptr.shape[0] - 1, val.shape[1]
    row = row_numbers(ptr, idx.shape[0])
    weight = widened(in_view_order(val, perm))  # (nse, heads)
    columns = x.view(x.shape[0], heads, x.shape[1] // max(heads, 1))
    y = x.new_empty(m, *columns.shape[1:])
    for j in range(columns.shape[2]):  # nothing is longer than the values
        products = weight * widened(columns[:, :, j]).index_select(0, idx)
        y[:, :, j] = products.new_zeros(m, heads).index_add_(0, row, products).to(x.dtype)
    return y.view(m, x.shape[1])


@kernel(
    "heads_sddmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor g, Tensor x, SymInt heads) -> Tensor",
    fake=_entries_shape,
)
def heads_sddmm(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor, heads: int
) -> Tensor:
    """out[perm[p], c] = sum over j of g[i, c, j] x[idx[p], c, j], for every entry p of every row i.

    No factor is conjugated. Rows of g and x are given flat, as to `heads_spmm`.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's values belong in the result, a bijection (nse,); None for in place.
        g: Dense factors (m, heads n).
        x: Dense factors (k, heads n).
        heads: Number of heads.

    Returns:
        out (nse, heads).
    """
    row = row_numbers(ptr, idx.shape[0])
    total = x.new_zeros(idx.shape[0], heads, dtype=accumulate_dtype(x.dtype))
    left, right = (t.view(t.shape[0], heads, t.shape[1] // max(heads, 1)) for t in (g, x))
    for j in range(right.shape[2]):
        products = widened(left[:, :, j]).index_select(0, row)
        total += products * widened(right[:, :, j]).index_select(0, idx)
    return in_value_order(total.to(x.dtype), perm)
