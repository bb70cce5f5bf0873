"""References of sparse times dense over other reductions than the sum."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.dtypes import widened
from spgrad.kernels.reference.common.views import in_view_order
from spgrad.kernels.reference.products.matmul import COLUMNS
from spgrad.kernels.reference.reductions.segment import first_extremum, segment_reduce


def _reduce_shapes(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor, largest: bool
) -> tuple[Tensor, Tensor]:
    shape = (ptr.shape[0] - 1, x.shape[1])
    return x.new_empty(shape), ptr.new_empty(shape)


@kernel(
    "spmm_reduce(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor x, bool largest)"
    " -> (Tensor, Tensor)",
    fake=_reduce_shapes,
)
def spmm_reduce(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor, largest: bool
) -> tuple[Tensor, Tensor]:
    """y[i, j] = the largest (smallest) val[perm[p]] x[idx[p], j] over the entries p of row i.

    A NaN counts as the extremum. The entries of a row may stand in any order and repeat.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,).
        x: Dense factor (k, n).
        largest: Whether the largest product is sought, or the smallest.

    Returns:
        y (m, n), 0 for a row without entries, and the first entry p that attains it (m, n), of
        the dtype of `ptr`, -1 for none.
    """
    return _extrema(ptr, idx, perm, val, x, largest, torch.mul, 0)


@kernel(
    "spmm_plus(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor x, bool largest)"
    " -> (Tensor, Tensor)",
    fake=_reduce_shapes,
)
def spmm_plus(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor, largest: bool
) -> tuple[Tensor, Tensor]:
    """As `spmm_reduce` with sums val[perm[p]] + x[idx[p], j] in place of the products.

    The operands are real floating-point numbers. A row without entries gives inf, and with
    `largest` -inf.
    """
    return _extrema(ptr, idx, perm, val, x, largest, torch.add, -math.inf if largest else math.inf)


def _extrema(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    x: Tensor,
    largest: bool,
    join: Callable[[Tensor, Tensor], Tensor],
    nothing: float,
) -> tuple[Tensor, Tensor]:
    y, arg = _reduce_shapes(ptr, idx, perm, val, x, largest)
    weight = widened(in_view_order(val, perm))[:, None]  # (nse, 1)
    for j in range(0, x.shape[1], COLUMNS):
        columns = slice(j, j + COLUMNS)
        joined = join(weight, widened(x[:, columns].index_select(0, idx)))  # (nse, columns)
        first = first_extremum(ptr, joined, largest)
        found = torch.cat([joined, joined.new_full((1, joined.shape[1]), nothing)]).gather(
            0, first.where(first >= 0, joined.shape[0])
        )
        y[:, columns], arg[:, columns] = found.to(x.dtype), first.to(ptr.dtype)
    return y, arg


def _operand_shapes(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    x: Tensor,
    g: Tensor,
    arg: Tensor,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(val), torch.empty_like(x)


@kernel(
    "spmm_reduce_backward(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor x, Tensor g,"
    " Tensor arg) -> (Tensor, Tensor)",
    fake=_operand_shapes,
)
def spmm_reduce_backward(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    x: Tensor,
    g: Tensor,
    arg: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of y of `spmm_reduce` in `val` and x, for a cotangent g of y.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val`, a bijection (nse,); None for in place.
        val: Values (nse,).
        x: Dense factor (k, n).
        g: Cotangent (m, n).
        arg: The entry that each element of y is made of (m, n), -1 for none.

    Returns:
        Of `val` (nse,): the sum of g[i, j] x[idx[p], j] where arg[i, j] is the entry p. Of x
        (k, n): at [idx[p], j] the sum of g[i, j] val[perm[p]].
    """
    grad_val, grad_x = widened(torch.zeros_like(val)), torch.empty_like(x)
    if val.shape[0] == 0:
        return torch.zeros_like(val), torch.zeros_like(x)
    for j in range(x.shape[1]):
        none = arg[:, j] < 0
        entry = arg[:, j].long().masked_fill(none, 0)  # the first entry, to which they add zeros
        column, place = idx[entry].long(), entry if perm is None else perm[entry].long()
        share = widened(g[:, j])
        of_val = (share * widened(x[:, j])[column]).masked_fill_(none, 0)
        of_x = (share * widened(val[place])).masked_fill_(none, 0)
        grad_val.index_add_(0, place, of_val)
        total = share.new_zeros(x.shape[0]).index_add_(0, column, of_x)
        grad_x[:, j] = total.to(x.dtype)
    return grad_val.to(val.dtype), grad_x


def _rows_shape(ptr: Tensor, idx: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, x.shape[1])


@kernel("spmm_prod(Tensor ptr, Tensor idx, Tensor x) -> Tensor", fake=_rows_shape)
def spmm_prod(ptr: Tensor, idx: Tensor, x: Tensor) -> Tensor:
    """y[i, :] = product over the entries p of row i of x[idx[p], :].

    The entries of a row may stand in any order and repeat.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        x: Dense factor (k, n).

    Returns:
        y (m, n), 1 for a row without entries.
    """
    y = _rows_shape(ptr, idx, x)
    for j in range(0, x.shape[1], COLUMNS):
        factors = widened(x[:, j : j + COLUMNS].index_select(0, idx))  # (nse, columns)
        y[:, j : j + COLUMNS] = segment_reduce(ptr, None, factors, "prod").to(x.dtype)
    return y
