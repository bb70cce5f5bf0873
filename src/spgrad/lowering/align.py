"""Brings two sparse tensors to one pattern: the elements of both, of either, or of the first."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_legacy_batchedtensor

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_dtype, on_pattern, plain, stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.gather import Gather, moves_along
from spgrad.lowering.operands import call
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.ranges import lines_of, of_lines
from spgrad.lowering.views import has_lines, kept_linear_positions, one_line, unraveled
from spgrad.torch_protocol.compile import is_real, lasting


class _Joint(NamedTuple):
    pattern: Pattern
    gathers: tuple[Gather, Gather]


class _How(NamedTuple):
    """How two patterns are joined."""

    key: kept.Key
    find: Callable[[Pattern, Pattern], _Joint]  # of patterns that are not equal
    merge: Any = None  # the kernel that merges patterns
    values: Any = None  # the kernel that also moves values


class Aligned(NamedTuple):
    """The values of two operands, zero where one of them is not specified, on one pattern."""

    a: torch.Tensor
    b: torch.Tensor
    pattern: Pattern


def align(A: SparseTensor, B: SparseTensor, where: str, *, name: str = "other") -> Aligned:
    """The values of A and B on one pattern, in the layout of A; differentiable in both.

    Args:
        A: A tensor of any layout; repeated elements are added first.
        B: A tensor of the same shape.
        where: "either": elements of A or B; "both": of A and B; "first": of A.
        name: The name of B in the signature of the public function.
    """
    A, B = _in_one_layout(A, B, name)
    joint = _JOINTS[where]
    return _aligned(A, B, *_join(A, B, joint, joint.values))


def add_aligned(A: SparseTensor, B: SparseTensor, fn: Callable[..., torch.Tensor]) -> SparseTensor:
    """fn(A, B), where `fn` is torch.add or torch.sub; operands and layout as in `align`."""
    A, B = _in_one_layout(A, B, "other")
    joint = _JOINTS["either"]
    values = joint.values
    if torch.bool not in (A._vals.dtype, B._vals.dtype):
        values = partial(_union_sum, fn is torch.sub)
    found, ready = _join(A, B, joint, values)
    if values is not joint.values and ready:
        return on_pattern(ready[0], found.pattern)
    aligned = _aligned(A, B, found, ready)
    return on_pattern(call(fn, aligned.a, aligned.b), aligned.pattern)


def _union_sum(minus: bool, *operands: Any) -> tuple[torch.Tensor, ...]:
    *lines_and_values, ordered = operands
    return kernels.union_sum(*lines_and_values, minus, ordered)


def _in_one_layout(
    A: SparseTensor, B: SparseTensor, name: str
) -> tuple[SparseTensor, SparseTensor]:
    """Both without repeats, and B in the layout of A."""
    _require_same_shape(A._pattern, B._pattern, name)
    A, B = without_repeats(A), without_repeats(B)
    a, b = A._pattern, B._pattern
    if (a.layout, a.blocksize) != (b.layout, b.blocksize):
        B = convert(B, a.layout, a.blocksize)
    return A, B


def _join(
    A: SparseTensor, B: SparseTensor, joint: _How, values: Any
) -> tuple[_Joint, list[torch.Tensor]]:
    """The joint pattern, and what `values` made of the values, if it found the pattern."""
    ready: list[torch.Tensor] = []
    if A._pattern is B._pattern:
        return _on_same(A._pattern), ready
    vals = stored_values(A), stored_values(B)
    along = moves_along(vals[0], A._pattern.indices[0])
    along = along and moves_along(vals[1], B._pattern.indices[0])

    def find(a: Pattern, b: Pattern) -> _Joint:
        if asks_device(a):
            return joint.find(a, b) if joint.merge is None else _on_all(joint.find(a, b), a, b)
        found = _on_equal(a, b)
        if found is None and along:
            found = _merged_with_values(joint, values, a, b, vals, ready)
        return found or joint.find(a, b)

    key = joint.key
    return A._pattern.derive_with(key, B._pattern, find), ready


def _aligned(A: SparseTensor, B: SparseTensor, found: _Joint, ready: list[torch.Tensor]) -> Aligned:
    of_a, of_b = found.gathers
    ready_a, ready_b = ready or (None, None)
    return Aligned(of_a(stored_values(A), ready_a), of_b(stored_values(B), ready_b), found.pattern)


def _require_same_shape(a: Pattern, b: Pattern, name: str) -> None:
    if a.shape != b.shape or a.dense_dim != b.dense_dim:
        accepted = f"{tuple(a.shape)} with {a.dense_dim} dense dimensions, as of the other operand,"
        hint = "Sparse operands do not broadcast; make a vector dense with .to_dense()."
        raise checks.bad_shape(name, tuple(b.shape), accepted, hint)


class _MergeOperands(NamedTuple):
    """The lines of two patterns, in one dtype, as the kernels take them."""

    operands: tuple[torch.Tensor, ...]  # pointers and indices of a, then of b
    ordered: bool  # whether the indices of each line are known to ascend
    linear: bool  # whether each is one line of linear indices


def _lines(a: Pattern, b: Pattern) -> _MergeOperands:
    """COO without lines, such as a vector, counts as one line of linear indices."""
    linear = a.is_coo and not (_joins_lines(a) and _joins_lines(b))
    lines = [t for p in (a, b) for t in (_line_of_all(p) if linear else _own_lines(p))]
    dtype = torch.promote_types(lines[0].dtype, lines[2].dtype)
    dtype = index_dtype(dtype, (a.nse + b.nse,))
    lines = [as_dtype(t, dtype) for t in lines]
    ordered = a.ascends and b.ascends
    return _MergeOperands(tuple(t.contiguous() for t in lines), ordered, linear)


def _joins_lines(pattern: Pattern) -> bool:
    # a trace has no value for nse, and merges in the form that does not depend on it
    return is_real(pattern.indices[0]) and has_lines(pattern)


def _own_lines(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    lines = lines_of(pattern)
    ptr, idx = pattern.indices if lines is None else (lines.ptr, lines.idx)  # None: of blocks
    return ptr, idx


def _line_of_all(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    keys = kept_linear_positions(pattern)
    return one_line(keys), keys


def _merged_with_values(
    joint: _How,
    values: Any,
    a: Pattern,
    b: Pattern,
    vals: tuple[torch.Tensor, torch.Tensor],
    ready: list[torch.Tensor],
) -> _Joint | None:
    """The joint pattern, with what `values` makes of the values in `ready`; None if it is None.

    The entries are computed when a later call asks for them; both patterns live then.
    """
    if values is None or vals[0].dtype != vals[1].dtype or wants_grad(*vals):
        return None
    (ptr_a, idx_a, ptr_b, idx_b), ordered, linear = _lines(a, b)
    made = values(ptr_a, idx_a, plain(vals[0]), ptr_b, idx_b, plain(vals[1]), ordered)
    ptr, idx, *ready[:] = made
    old = weakref.ref(a), weakref.ref(b)
    found: list[torch.Tensor] = []

    def entries(operand: int) -> torch.Tensor:
        if not found:
            a, b = (ref() for ref in old)
            assert a is not None
            assert b is not None
            with lasting(*a.indices, *b.indices):
                operands, ordered, _ = _lines(a, b)
                found.extend(joint.merge(*operands, ordered)[2:4])
        return found[operand]

    gathers = Gather(partial(entries, 0), a.nse), Gather(partial(entries, 1), b.nse)
    return _Joint(_joined_pattern(a, b, ptr, idx, linear), gathers)


def _merged(merge: Any, a: Pattern, b: Pattern) -> _Joint:
    operands, ordered, linear = _lines(a, b)
    ptr, idx, from_a, from_b, to_a, to_b = merge(*operands, ordered)
    gathers = Gather(from_a, a.nse, place=to_a), Gather(from_b, b.nse, place=to_b)
    return _Joint(_joined_pattern(a, b, ptr, idx, linear), gathers)


def _joined_pattern(
    a: Pattern, b: Pattern, ptr: torch.Tensor, idx: torch.Tensor, linear: bool
) -> Pattern:
    """The pattern, in the layout of a, of the lines that a kernel made of those of a and b."""
    if not linear:
        return of_lines(a, tuple(a.shape), ptr, idx).ascending()
    spec = a.spec._replace(coalesced=True, ordered=True)
    index = torch.promote_types(a.indices[0].dtype, b.indices[0].dtype)
    along = unraveled(idx, tuple(a.shape[: a.sparse_dim]))
    indices = torch.empty(len(along), idx.shape[0], dtype=index, device=idx.device)
    for d, index_along in enumerate(along):
        indices[d] = index_along
    found = Pattern.from_spec(spec, a.shape, (indices,))
    found.keep(kept.LINEAR, idx)
    return found.ascending()


def _on_same(a: Pattern) -> _Joint:
    return _Joint(a, (Gather(None, a.nse), Gather(None, a.nse)))


def _on_equal(a: Pattern, b: Pattern) -> _Joint | None:
    """The pattern of a if b has the same elements in the same order, otherwise None."""
    return _on_same(a) if _same_in_every_pass(a, b) else None


def asks_device(a: Pattern | torch.Tensor) -> bool:
    """Whether the host would wait for a comparison of indices; a merge then compares them too."""
    t = a.indices[0] if isinstance(a, Pattern) else a
    return not (t.is_cpu or t.is_meta)


def readable(t: torch.Tensor) -> bool:
    """Whether the host knows the numbers of a tensor, without waiting for a device."""
    if not torch.compiler.is_compiling() and is_legacy_batchedtensor(t):
        return False  # `t` stands for several tensors at once
    return is_real(t) and not t.is_meta and not asks_device(t)


def known_as_same(a: Pattern, b: Pattern) -> bool:
    """Whether two patterns are known to be the same without asking a device."""
    return a is b or (not asks_device(a) and _same_in_every_pass(a, b))


def _same_in_every_pass(a: Pattern, b: Pattern) -> bool:
    """`Pattern.same_as`, which a trace can't use for the choice of a result's pattern.

    Operands that share their indices have one tensor of them in some passes of torch.compile, and
    two in others, and all passes have to find a result with the same inner tensors.
    """
    return a is b or (not torch.compiler.is_compiling() and a.same_as(b))


def _on_all(found: _Joint, a: Pattern, b: Pattern) -> _Joint:
    """The joint pattern; the pattern of a if a and b have as many elements, so the same ones."""
    same = a.nse == b.nse == found.pattern.nse and a.ordered and b.ordered
    return _on_same(a) if same else found


def _union(a: Pattern, b: Pattern) -> _Joint:
    return _merged(kernels.union, a, b)


def _intersection(a: Pattern, b: Pattern) -> _Joint:
    return _merged(kernels.intersection, a, b)


def _on_first(a: Pattern, b: Pattern) -> _Joint:
    """The pattern of a, and for each of its elements the entry of b, if there is one."""
    _, (in_a, in_b) = a.derive_with(kept.BOTH, b, _intersection)
    if in_a.index() is None:  # they are equal
        return _Joint(a, (in_a, in_b))
    places = partial(_through, in_b, in_a)
    return _Joint(a, (Gather(None, a.nse), Gather(_through(in_a, in_b), b.nse, place=places)))


def _through(first: Gather, then: Gather) -> torch.Tensor:
    """For each entry that `first` takes from, the entry that `then` takes at its place, or -1."""
    index, place = then.index(), first.place
    assert index is not None
    assert place is not None
    return kernels.take(index + 1, place).sub_(1)


_JOINTS = {
    "either": _How(kept.EITHER, _union, kernels.union, kernels.union_values),
    "both": _How(kept.BOTH, _intersection, kernels.intersection, kernels.intersection_values),
    "first": _How(kept.FIRST, _on_first),
}
