"""Adds up the repeated elements of COO tensors."""

from __future__ import annotations

import math

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.lowering.segments import Segments, segment_extremum, segment_sum


def without_repeats(A: SparseTensor) -> SparseTensor:
    """A with sorted unique indices, repeated values added up; A itself if it has such indices."""
    pattern = A._pattern
    if pattern.coalesced:
        return A
    unique, runs = pattern.derive(kept.COALESCED, _coalesced)
    vals = stored_values(A)
    if runs is not None:
        flat = vals.reshape(vals.shape[0], math.prod(vals.shape[1:]))  # -1 is unknown of none
        if vals.dtype == torch.bool:
            added = segment_extremum(flat.to(torch.uint8)[:, None], runs, None, largest=True) != 0
        else:
            added = segment_sum(flat, runs)
        vals = added.view(unique.values_shape)
    return on_pattern(vals, unique)


def pattern_without_repeats(pattern: Pattern) -> Pattern:
    """The pattern with sorted unique indices; the pattern itself if it has such indices."""
    return pattern if pattern.coalesced else pattern.derive(kept.COALESCED, _coalesced)[0]


def as_summands(A: SparseTensor) -> SparseTensor:
    """A, ready for a linear function: repeated elements may stay, but bools do not add up."""
    return without_repeats(A) if A._vals.dtype == torch.bool else A


def adds_up_in(old: torch.dtype, new: torch.dtype | None) -> bool:
    """Whether repeated elements may be converted to a dtype, if one is asked for, and then added.

    1.2 is 1 as an integer, but 0.6 + 0.6 is 0 if each is converted by itself.
    """
    return new is None or torch.promote_types(old, new) == new


def _coalesced(pattern: Pattern) -> tuple[Pattern, Segments | None]:
    """The coalesced pattern, and the entries of each of its elements (None: one each, in order)."""
    runs = None
    indices = pattern.indices[0]
    if not pattern.ordered:
        sparse_shape = pattern.shape[: pattern.sparse_dim]
        indices, ptr, order = kernels.sort_coo(indices.contiguous(), list(sparse_shape))
        runs = Segments(ptr, order, pattern.nse, 1)
    spec = pattern.spec._replace(coalesced=True, ordered=True)
    found = Pattern.from_spec(spec, pattern.shape, (indices,))
    return found.ascending(*(() if runs else (pattern,))), runs
