"""References of the kernels that reduce the entries of a line, or give each what its line has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.layouts.checks import row_numbers

_WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}

_REDUCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "sum": (torch.add, 0),
    "prod": (torch.mul, 1),
    "amax": (torch.maximum, 0),
    "amin": (torch.minimum, 0),
}
"""Name -> what joins two elements, and what an empty line gives."""


def widened(val: Tensor) -> Tensor:
    """`val` in the dtype that is calculated in."""
    return val.to(_WIDE.get(val.dtype, val.dtype))


def fold(ptr: Tensor, x: Tensor, join: Callable[[Tensor, Tensor], Tensor], empty: int) -> Tensor:
    """Joins the elements (nse, *d) of every line into (m, *d), in pairs until each has only one."""
    count = ptr.diff().long()
    while x.shape[0] > 0 and int(count.max()) > 1:
        start = (count.cumsum(0) - count)[torch.repeat_interleave(count)]
        second = (torch.ones_like(start).cumsum(0) - 1 - start) % 2 == 1  # of a pair
        place = ((~second).cumsum(0) - 1)[second]
        joined = x[~second]
        joined[place] = join(joined[place], x[second])
        x, count = joined, (count + 1) // 2
    out = x.new_full((count.numel(), *x.shape[1:]), empty)
    out[count > 0] = x
    return out


def _in_view(val: Tensor, perm: Tensor | None) -> Tensor:
    """The values in the order of the view."""
    return widened(val if perm is None else val[perm])


def _in_place(out: Tensor, perm: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What was calculated in the order of the view, in the order of the values."""
    out = out.to(dtype)
    return out if perm is None else torch.empty_like(out).index_copy_(0, perm.long(), out)


# The references take as many steps as the longest line asks for; shape functions take none.
def _lines_shape(ptr: Tensor, perm: Tensor | None, val: Tensor, reduce: str) -> Tensor:
    return val.new_empty((ptr.shape[0] - 1, *val.shape[1:]))


def _positions_shape(ptr: Tensor, perm: Tensor | None, val: Tensor, largest: bool) -> Tensor:
    return val.new_empty((ptr.shape[0] - 1, *val.shape[1:]), dtype=torch.int64)


def _values_shape(ptr: Tensor, perm: Tensor | None, val: Tensor, log: bool) -> Tensor:
    return torch.empty_like(val)


def _backward_shape(ptr: Tensor, perm: Tensor | None, out: Tensor, g: Tensor, log: bool) -> Tensor:
    return torch.empty_like(out)


@kernel(
    "segment_reduce(Tensor ptr, Tensor? perm, Tensor val, str reduce) -> Tensor",
    fake=_lines_shape,
)
def segment_reduce(ptr: Tensor, perm: Tensor | None, val: Tensor, reduce: str) -> Tensor:
    """y[i] = the sum, product, maximum or minimum of val[perm[p]] over the entries p of line i.

    NaN propagates; integers wrap. A line without entries gives 0, and a product of 1.

    Args:
        ptr: Line pointers (m + 1,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,) or (nse, d).
        reduce: "sum", "prod", "amax" or "amin".

    Returns:
        y (m,) or (m, d).
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"spgrad: `reduce` is {reduce}; it is one of {', '.join(_REDUCTIONS)}.")
    return fold(ptr, _in_view(val, perm), *_REDUCTIONS[reduce]).to(val.dtype)


def first_extremum(ptr: Tensor, x: Tensor, largest: bool) -> Tensor:
    """The first position of the largest (smallest) of the elements (nse, *d) of every line."""
    extremum = fold(ptr, x, torch.maximum if largest else torch.minimum, 0)
    line = row_numbers(ptr, x.shape[0])
    attains = x == extremum[line]
    if x.is_floating_point():
        attains |= x.isnan()  # if one is, so is the extremum, which then equals nothing
    position = (attains.long().new_ones(x.shape[0]).cumsum(0) - 1).reshape(-1, *[1] * (x.dim() - 1))
    return fold(ptr, torch.where(attains, position, x.shape[0]), torch.minimum, -1)


@kernel(
    "segment_arg(Tensor ptr, Tensor? perm, Tensor val, bool largest) -> Tensor",
    fake=_positions_shape,
)
def segment_arg(ptr: Tensor, perm: Tensor | None, val: Tensor, largest: bool) -> Tensor:
    """arg[i] = the first entry p of line i with the largest (smallest) val[perm[p]].

    The first NaN, where there is one. -1 for a line without entries.

    Args:
        ptr: Line pointers (m + 1,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,) or (nse, d).
        largest: Whether the largest is sought, or the smallest.

    Returns:
        arg (m,) or (m, d), int64: a position in the view, not in `val`.
    """
    return first_extremum(ptr, _in_view(val, perm), largest)


@kernel("segment_expand(Tensor ptr, Tensor? perm, SymInt nse, Tensor x) -> Tensor")
def segment_expand(ptr: Tensor, perm: Tensor | None, nse: int, x: Tensor) -> Tensor:
    """out[perm[p]] = x[i] for every entry p of every line i.

    Args:
        ptr: Line pointers (m + 1,).
        perm: Where an entry's value belongs in the result, a bijection (nse,); None for in place.
        nse: The number of entries.
        x: What each line has, (m,) or (m, d).

    Returns:
        out (nse,) or (nse, d).
    """
    return _in_place(x[row_numbers(ptr, nse)], perm, x.dtype)


@kernel("scatter_sum(Tensor idx, Tensor val, SymInt n, bool wide) -> Tensor")
def scatter_sum(idx: Tensor, val: Tensor, n: int, wide: bool) -> Tensor:
    """out[j] = the sum of val[p] over all entries p with idx[p] == j, added in their order.

    Args:
        idx: Index of every entry (nse,), below n.
        val: Values (nse,). 16-bit floats are added in float32.
        n: The number of sums.
        wide: Adds floats in float64, for sums so long that they would lose digits.

    Returns:
        out (n,).
    """
    terms = widened(val)
    if wide and (val.is_floating_point() or val.is_complex()):
        terms = val.to(torch.complex128 if val.is_complex() else torch.float64)
    return terms.new_zeros(n).index_add_(0, idx, terms).to(val.dtype)


@kernel(
    "segment_softmax(Tensor ptr, Tensor? perm, Tensor val, bool log) -> Tensor",
    fake=_values_shape,
)
def segment_softmax(ptr: Tensor, perm: Tensor | None, val: Tensor, log: bool) -> Tensor:
    """out = exp(val - s), s = log(sum of exp(val)) over a line; with `log`, out = val - s.

    For every column by itself. A line of nothing but -inf gives NaN, as torch's softmax does.

    Args:
        ptr: Line pointers (m + 1,).
        perm: Where an entry's value stands in `val`, a bijection (nse,); None for in place.
        val: Values (nse,) or (nse, d).
        log: Whether to give the logarithm.

    Returns:
        out (nse,) or (nse, d), in the order of `val`.
    """
    line = row_numbers(ptr, val.shape[0])
    x = _in_view(val, perm)
    x = x - fold(ptr, x, torch.maximum, 0)[line]
    exp = x.exp()
    total = fold(ptr, exp, torch.add, 0)
    return _in_place(x - total.log()[line] if log else exp / total[line], perm, val.dtype)


@kernel(
    "segment_softmax_backward(Tensor ptr, Tensor? perm, Tensor out, Tensor g, bool log) -> Tensor",
    fake=_backward_shape,
)
def segment_softmax_backward(
    ptr: Tensor, perm: Tensor | None, out: Tensor, g: Tensor, log: bool
) -> Tensor:
    """The gradient of `segment_softmax`: out (g - sum of out g); with `log`, g - exp(out) sum of g.

    Args:
        ptr: Line pointers (m + 1,).
        perm: Where an entry's value stands in `out` and `g`, a bijection (nse,); None for in place.
        out: What `segment_softmax` gave, (nse,) or (nse, d).
        g: The gradient of `out`, of its shape.
        log: Whether `out` is the logarithm.

    Returns:
        The gradient of `val`, in its order.
    """
    line = row_numbers(ptr, out.shape[0])
    y, x = _in_view(out, perm), _in_view(g, perm)
    total = fold(ptr, x if log else y * x, torch.add, 0)[line]
    return _in_place(x - y.exp() * total if log else y * (x - total), perm, out.dtype)
