"""Two sparse tensors brought to one pattern: that of both, of either, or of the first."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.gather import Gather
from spgrad.lowering.views import kept_linear_positions


class _Joint(NamedTuple):
    pattern: Pattern
    gathers: tuple[Gather, Gather]


class Aligned(NamedTuple):
    """The values of two operands, zero where one of them is not specified, on one pattern."""

    a: torch.Tensor
    b: torch.Tensor
    pattern: Pattern


def align(A: SparseTensor, B: SparseTensor, where: str, *, name: str = "other") -> Aligned:
    """The values of A and B on one pattern, in the layout of A; differentiable in both.

    Args:
        A: Of any layout; repeated elements are added first.
        B: Of the same shape.
        where: "either": elements of A or B; "both": of A and B; "first": of A.
        name: That of B in the signature of the public function.
    """
    _require_same_shape(A._pattern, B._pattern, name)
    A, B = without_repeats(A), without_repeats(B)
    a, b = A._pattern, B._pattern
    if (a.layout, a.blocksize) != (b.layout, b.blocksize):
        B = convert(B, a.layout, a.blocksize)
        b = B._pattern
    if a is b:
        return Aligned(stored_values(A), stored_values(B), a)
    key, find = _JOINTS[where]
    pattern, (of_a, of_b) = a.derive_with(key, b, find)
    return Aligned(of_a(stored_values(A)), of_b(stored_values(B)), pattern)


def _require_same_shape(a: Pattern, b: Pattern, name: str) -> None:
    if a.shape != b.shape or a.dense_dim != b.dense_dim:
        accepted = f"{tuple(a.shape)} with {a.dense_dim} dense dimensions, as of the other operand,"
        hint = "Sparse operands do not broadcast; make a vector dense with .to_dense()."
        raise checks.bad_shape(name, tuple(b.shape), accepted, hint)


def _entries(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Line pointers, and the index of each stored entry or block.

    COO is one line of linear indices, which asks for no memory by row.
    """
    if not pattern.is_coo:
        return pattern.indices[0], pattern.indices[1]
    keys = kept_linear_positions(pattern)
    return keys.new_tensor([0, keys.shape[0]]), keys


def _merged(merge: Any, a: Pattern, b: Pattern) -> _Joint:
    lines = [*_entries(a), *_entries(b)]
    dtype = torch.promote_types(lines[0].dtype, lines[2].dtype)
    if a.nse + b.nse > torch.iinfo(torch.int32).max:
        dtype = torch.int64
    ptr, idx, from_a, from_b, to_a, to_b = merge(*(t.to(dtype).contiguous() for t in lines))
    gathers = Gather(from_a, a.nse, place=to_a), Gather(from_b, b.nse, place=to_b)
    spec = a.spec._replace(coalesced=True, ordered=True)
    if not a.is_coo:
        return _Joint(Pattern.from_spec(spec, a.shape, (ptr, idx)), gathers)
    index = torch.promote_types(a.indices[0].dtype, b.indices[0].dtype)
    known, other = a.indices[0].to(index), b.indices[0].to(index)
    if known.shape[1] == 0:
        known, from_a = other, from_b
    else:
        known = torch.cat([known, other], 1)
        from_a = torch.where(from_a >= 0, from_a, from_b + a.nse)
    found = Pattern.from_spec(spec, a.shape, (known.index_select(1, from_a),))
    found.keep(kept.LINEAR, idx)
    return _Joint(found, gathers)


def _on_equal(a: Pattern, b: Pattern) -> _Joint | None:
    """Two patterns that have the same elements, each in order; None if they have not."""
    return _Joint(a, (Gather(None, a.nse), Gather(None, b.nse))) if a.same_as(b) else None


def _union(a: Pattern, b: Pattern) -> _Joint:
    return _on_equal(a, b) or _merged(kernels.union, a, b)


def _intersection(a: Pattern, b: Pattern) -> _Joint:
    return _on_equal(a, b) or _merged(kernels.intersection, a, b)


def _on_first(a: Pattern, b: Pattern) -> _Joint:
    """The pattern of a, and the entry of b that each of its elements is, if any."""
    if (joint := _on_equal(a, b)) is not None:
        return joint
    _, (in_a, in_b) = a.derive_with(kept.BOTH, b, _intersection)
    entry, place = _through(in_a, in_b), _through(in_b, in_a)
    return _Joint(a, (Gather(None, a.nse), Gather(entry, b.nse, place=place)))


def _through(first: Gather, then: Gather) -> torch.Tensor:
    """The old entry of `then` that each of `first` meets in the intersection, -1 for none."""
    index, place = then.index(), first.place
    assert index is not None
    assert place is not None
    return kernels.take(index + 1, place) - 1


_JOINTS = {
    "either": (kept.EITHER, _union),
    "both": (kept.BOTH, _intersection),
    "first": (kept.FIRST, _on_first),
}
