"""The products of two sparse matrices on values: one trilinear form, and the kernels for it.

The family is closed under differentiation, so gradients of any order come from the same kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern, View, index_dtype
from spgrad.core.values import as_dtype, plain
from spgrad.lowering.gather import Ranges
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.sorting import counting_sort
from spgrad.lowering.views import cols, item_offsets, rows
from spgrad.torch_protocol.compile import is_real, lasting
from spgrad.torch_protocol.func_transforms import Function, transforming

MOST_PAIRS = 1 << 25
"""Most pairs that are kept: they take 0.8 GB with both gradients; to find a view takes 1.5 GB."""


class Pairs:
    """All pairs of an entry of A and one of B that add to an element of C = A B, kept for later.

    Each component of the form is a sum over its pairs, so an SpMM with one column: line i of the
    view for A has the pairs of element i of A, as places of the values of B and of C; in the same
    way those for B and for C. A view is computed when it is first needed. So later calls wait for
    no sizes from the device, and search for nothing. A view takes 8 or 16 bytes for each pair.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._views: dict[int, View] = {}

    def view(self, out: int, patterns: tuple[Pattern, Pattern, Pattern]) -> View:
        """The pairs of component `out` (0: A, 1: B, 2: C) of the form."""
        found = self._views.get(out)
        if found is None:
            with lasting(*(i for p in patterns for i in p.indices)):
                found = self._views[out] = self._find(out, patterns)
        return found

    def _find(self, out: int, patterns: tuple[Pattern, Pattern, Pattern]) -> View:
        a, b, c = (rows(p) for p in patterns)
        sizes = tuple(pattern.elements for pattern in patterns)
        dtype = index_dtype(torch.int32, (self.count, *sizes))
        begin, end = (t.index_select(0, a.idx).to(dtype) for t in (b.ptr[:-1], b.ptr[1:]))
        ends = (end - begin).cumsum(0, dtype=dtype)
        ptr = torch.cat([ends.new_zeros(1), ends])
        p = kernels.expand(ptr, self.count)
        q = Ranges(ptr, begin, end, self.count, backward=False).index()
        line = _lines_of_entries(a).index_select(0, p)
        element = line.mul_(c.num_cols).add_(b.idx.index_select(0, q))
        at = torch.searchsorted(_element_numbers(c), element)
        del line, element
        places = [
            (t if view.perm is None else view.perm.index_select(0, t)).to(dtype)
            for view, t in zip((a, b, c), (p, q, at), strict=True)
        ]
        left, right = (i for i in range(3) if i != out)
        ptr, order = counting_sort(places[out], sizes[out])
        idx, perm = (places[i].index_select(0, order) for i in (right, left))
        return View(ptr, idx, perm, sizes[right])


class Product(NamedTuple):
    """The pattern of A B, and its pairs where these are kept."""

    pattern: Pattern
    pairs: Pairs | None


def spgemm(
    a: torch.Tensor, b: torch.Tensor, patterns: tuple[Pattern, Pattern]
) -> tuple[torch.Tensor, Pattern]:
    """Flat values of C = A B, and C's pattern, from the flat values and the patterns of A and B.

    The pattern is found along with the values the first time, and kept. With c the cotangent,
    everything here is one trilinear form sum_ijl a_ij b_jl c_il: fixing two of its arguments gives
    the third on its own pattern.
    """
    ready: list[torch.Tensor] = []  # the values, if this call finds the pattern
    hidden = transforming()  # a kernel cannot read the tensors of a transform

    def find(A: Pattern, B: Pattern) -> Product:
        if hidden:
            vals = (torch.zeros(p.elements, dtype=torch.int8, device=p.device) for p in patterns)
            return _find_product(A, B, *vals)[0]
        found, vals = _find_product(A, B, plain(a.detach()), plain(b.detach()))
        ready.append(vals)
        return found

    C, pairs = patterns[0].derive_with(kept.PRODUCT, patterns[1], find)
    return _trilinear((a, b), 2, (*patterns, C), pairs, *ready), C


def _find_product(
    A: Pattern, B: Pattern, a: torch.Tensor, b: torch.Tensor
) -> tuple[Product, torch.Tensor]:
    """The CSR pattern of A B with what is kept of it, and its flat values."""
    view_a, view_b = _in_one_index_dtype(rows(A), rows(B))
    listed, known = lists_pairs(view_a.ptr), is_real(view_a.ptr)
    count, checked = 0, False
    if listed:
        count, checked = _asked(view_a, view_b)
    elif known:
        count = _most_products(view_a, view_b)
    if not known or count > torch.iinfo(torch.int32).max:
        view_a, view_b = _as_int64(view_a), _as_int64(view_b)
    operands = (*view_a[:3], a, *view_b[:3], b, view_b.num_cols)
    ptr, idx, vals = kernels.spgemm(*operands, checked)
    shape = (*A.batch, A.matrix[0], B.matrix[1])
    dtype = torch.promote_types(A.indices[0].dtype, B.indices[0].dtype)
    if not known:
        dtype = index_dtype(dtype, (idx.shape[0], ptr.shape[0], view_b.num_cols))
    elif idx.dtype == torch.int64:
        dtype = torch.int64
    found = Pattern(torch.sparse_csr, shape, (as_dtype(ptr, dtype), as_dtype(idx, dtype)))
    offsets = item_offsets(found, shape[-1])
    if isinstance(offsets, torch.Tensor):
        own = found.indices[1] - offsets.to(dtype)
        found = Pattern(torch.sparse_csr, shape, (found.indices[0], own))
    if known:
        found.keep(kept.ROWS, View(ptr, idx, None, view_b.num_cols))
        found.ascending()
    listed = listed and count <= MOST_PAIRS
    listed = listed and found.extent[0] * found.extent[1] <= torch.iinfo(torch.int64).max
    return Product(found, Pairs(count) if listed else None), vals


def _element_numbers(view: View) -> torch.Tensor:
    """The number of every entry's element among all of the matrix (nse,), int64."""
    return _lines_of_entries(view) * view.num_cols + view.idx


def _lines_of_entries(view: View) -> torch.Tensor:
    """The line of every entry (nse,), int64."""
    return kernels.expand(view.ptr, view.idx.shape[0]).to(torch.int64)


def lists_pairs(like: torch.Tensor) -> bool:
    """Whether pairs are kept for patterns on the device of `like`.

    On the CPU, the kernels find the pairs anew in each call, so the pairs take no memory.
    """
    return like.device.type not in ("cpu", "meta") and is_real(like)


def _asked(a: View, b: View) -> tuple[int, bool]:
    """The number of products of A B, and what `checked` of the kernel says; read once."""
    count = b.ptr.diff().index_select(0, a.idx).sum(dtype=torch.int64)
    descends = [
        ((line[1:] == line[:-1]) & (idx[1:] <= idx[:-1])).any()
        for line, idx in ((_lines_of_entries(view), view.idx) for view in (a, b))
    ]
    found, *breaks = torch.stack([count, *(d.to(torch.int64) for d in descends)]).tolist()
    return found, not any(breaks) and found <= torch.iinfo(torch.int32).max


def _most_products(a: View, b: View) -> int:
    """The number of products of A B; if int32 can hold it, a bound for it."""
    most, entries = torch.iinfo(torch.int32).max, a.idx.numel()
    bound = entries * b.idx.numel()
    if bound <= most:
        return bound
    counts = b.ptr.diff()
    bound = entries * int(counts.max())
    return bound if bound <= most else int(counts[a.idx].sum())


def _trilinear(
    given: tuple[torch.Tensor, torch.Tensor],
    out: int,
    patterns: tuple[Pattern, Pattern, Pattern],
    pairs: Pairs | None,
    ready: torch.Tensor | None = None,
) -> torch.Tensor:
    """Component `out` of the form; `ready`, if it has been computed already."""
    if wants_grad(*given):
        return _Trilinear.apply(*given, out, patterns, pairs, ready)  # type: ignore[return-value]
    return _third_component(given, out, patterns, pairs) if ready is None else ready


def _third_component(
    given: tuple[torch.Tensor, torch.Tensor],
    out: int,
    patterns: tuple[Pattern, Pattern, Pattern],
    pairs: Pairs | None,
) -> torch.Tensor:
    """Component `out` (0: A, 1: B, 2: C) of the form, from the other two in that order."""
    A, B, C = patterns
    left, right = (plain(t) for t in given)
    if pairs is not None:
        view = pairs.view(out, patterns)
        assert view.perm is not None
        factors = left.index_select(0, view.perm)  # more than `left` has, for an element is in many
        return kernels.spmm(view.ptr, view.idx, None, factors, right)
    if out == 2:
        a, b, c = _in_one_index_dtype(rows(A), rows(B), rows(C))
        operands = (*a[:3], left, *b[:3], right)
        found = kernels.spgemm_values(c.ptr, c.idx, *operands, b.num_cols)
        return found if c.perm is None else torch.empty_like(found).index_copy_(0, c.perm, found)
    if out == 0:  # a_ij = sum_l c_il b_jl: rows of C against rows of B
        return _masked(rows(A), rows(C), right, rows(B), left)
    return _masked(rows(B), cols(A), left, cols(C), right)  # b_jl = sum_i a_ij c_il


def _masked(
    mask: View, c: View, c_vals: torch.Tensor, b: View, b_vals: torch.Tensor
) -> torch.Tensor:
    mask, c, b = _in_one_index_dtype(mask, c, b)
    return kernels.masked_spgemm(*mask[:3], *c[:3], c_vals, *b[:3], b_vals, c.num_cols)


def _in_one_index_dtype(*views: View) -> tuple[View, ...]:
    """The views with indices of one dtype, int64 if one of them needs it."""
    dtypes = {view.ptr.dtype for view in views}
    if len(dtypes) == 1:
        return views
    return tuple(_as_int64(view) for view in views)


def _as_int64(view: View) -> View:
    ptr, idx, perm, num_cols = view
    perm = None if perm is None else perm.to(torch.int64)
    return View(ptr.to(torch.int64), idx.to(torch.int64), perm, num_cols)


class _Trilinear(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        left: torch.Tensor,
        right: torch.Tensor,
        out: int,
        patterns: Any,
        pairs: Pairs | None,
        ready: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        ctx.out, ctx.patterns, ctx.pairs = out, patterns, pairs
        return _third_component((left, right), out, patterns, pairs) if ready is None else ready

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        left, right = ctx.saved_tensors
        first, second = (i for i in range(3) if i != ctx.out)
        grad_left = grad_right = None
        if ctx.needs_input_grad[0]:
            pair = _in_order({ctx.out: g, second: right.conj()})
            grad_left = _trilinear(pair, first, ctx.patterns, ctx.pairs)
        if ctx.needs_input_grad[1]:
            pair = _in_order({ctx.out: g, first: left.conj()})
            grad_right = _trilinear(pair, second, ctx.patterns, ctx.pairs)
        return grad_left, grad_right, None, None, None, None


def _in_order(parts: dict[int, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = sorted(parts)
    return parts[low], parts[high]
