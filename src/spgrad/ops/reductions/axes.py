"""Which dimensions a reduction takes away, and the tensor that is left."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeGuard

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern, stored_values
from spgrad.errors import ArgumentIndexError, ArgumentKindError, ArgumentValueError
from spgrad.lowering.coalesce import as_summands, without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import sparse_operand
from spgrad.lowering.segments import Segments, segment_expand, segment_sum, segments_of

Dims = int | tuple[int, ...] | list[int] | None


class Axes(NamedTuple):
    """What a reduction of a pattern over some dimensions asks for."""

    dims: tuple[int, ...]  # the sparse ones among the reduced
    dense: tuple[int, ...]  # the dense ones, counted from the first dense dimension
    keepdim: bool
    shape: tuple[int, ...]  # of the result
    dense_dim: int  # of the result, if it is sparse
    segments: Segments


class Reduction(NamedTuple):
    """One call: the values, and what they are reduced to."""

    A: SparseTensor
    axes: Axes
    stored: torch.Tensor  # the values as the tensor has them

    @property
    def vals(self) -> torch.Tensor:
        """The values (elements, reduced, kept), by reduced and by kept dense dimensions."""
        return _by_reduced(self.A._pattern, self.stored, self.axes.dense)

    @property
    def summands(self) -> torch.Tensor:
        """The values for `sums`: without dense dimensions (elements,), which takes no view."""
        pattern = self.A._pattern
        if pattern.dense_dim:
            return self.vals
        return self.stored if pattern.blocksize is None else self.stored.reshape(-1)

    @property
    def inner(self) -> int:
        """Values of an element that become one: the product of its reduced dense dimensions."""
        sizes = self.A._pattern.dense_shape
        return math.prod(sizes[d] for d in self.axes.dense)

    @property
    def dims(self) -> tuple[int, ...]:
        """The sparse dimensions that are reduced."""
        return self.axes.dims

    @property
    def segments(self) -> Segments:
        """The elements by the element of the result that they belong to."""
        return self.axes.segments

    @property
    def size(self) -> int:
        """Elements of the dense tensor that become one."""
        return self.segments.size * self.inner

    @property
    def sparse(self) -> bool:
        """True if the result is sparse."""
        return self.segments.each_its_own or self.segments.unique is not None

    def numbers(self, specified: bool) -> torch.Tensor | int:
        """Elements of each segment (segments, 1): all of them, or those that are specified."""
        if self.segments.each_its_own or not specified:
            return self.size
        return self.segments.counts() * self.inner

    def missing(self, specified: bool) -> torch.Tensor | None:
        """Unspecified sparse elements of each segment (segments, 1); None if they don't count."""
        if specified:
            return None
        key = kept.MISSING.of(self.dims, self.segments.unique is not None)
        return self.A._pattern.derive(key, lambda _: self.segments.missing())

    def sums(self, vals: torch.Tensor) -> torch.Tensor:
        """Sum (segments, kept) of (elements, reduced, kept), or (segments,) of (elements,)."""
        if vals.dim() > 1:
            vals = vals.squeeze(1) if vals.shape[1] == 1 else vals.sum(1, dtype=vals.dtype)
        return segment_sum(vals, self.segments)

    def expanded(self, y: torch.Tensor) -> torch.Tensor:
        """What each segment has (segments, kept), as it joins the values (elements, 1, kept)."""
        return segment_expand(y, self.segments).unsqueeze(1)

    def on_elements(self, y: torch.Tensor) -> SparseTensor:
        """The tensor with other values (elements, reduced, kept)."""
        pattern = self.A._pattern
        if pattern.dense_dim:
            dense = self.axes.dense
            kept = [d for d in range(pattern.dense_dim) if d not in dense]
            order = [0, *(d + 1 for d in (*dense, *kept))]
            y = y.reshape(pattern.elements, *(pattern.dense_shape[d - 1] for d in order[1:]))
            y = y.permute(*(order.index(i) for i in range(len(order))))
        return on_pattern(y.reshape(pattern.values_shape), pattern)

    def result(self, y: torch.Tensor) -> torch.Tensor:
        """The result from its values (segments, kept) or (segments,)."""
        if not self.sparse:
            return y if y.shape == self.axes.shape else as_result(y, self.axes.shape)
        pattern = self.A._pattern
        left = pattern.derive(kept.LEFT.of(*self.axes[:4]), self._pattern_left)
        made = on_pattern(y.reshape(left.values_shape), left)
        if left.sparse_dim < 2 or not {*self.dims}.isdisjoint(_matrix_dims(pattern)):
            return made
        return convert(made, pattern.layout, pattern.blocksize)

    def _pattern_left(self, pattern: Pattern) -> Pattern:
        if self.segments.unique is None:
            spec = pattern.spec._replace(dense_dim=self.axes.dense_dim)
            found = Pattern.from_spec(spec, self.axes.shape, pattern.indices)
            for view_key in (kept.ROWS, kept.COLS):  # the views do not depend on dense dimensions
                if (view := pattern.derived(view_key)) is not None:
                    found.keep(view_key, view)
            return found
        indices = list(self.segments.unique)
        if self.axes.keepdim:
            for d in self.dims:
                indices.insert(d, torch.zeros_like(self.segments.unique[0]))
        stacked = torch.stack(indices)
        _, _, _, shape, dense_dim, _ = self.axes
        return Pattern(torch.sparse_coo, shape, (stacked,), dense_dim=dense_dim)


def _matrix_dims(pattern: Pattern) -> tuple[int, int]:
    last = len(pattern.shape) - pattern.dense_dim
    return last - 2, last - 1


def reduction(
    input: Any,
    dim: Dims,
    keepdim: bool = False,
    *,
    linear: bool = False,
    compact: bool = False,
    arg: str = "input",
) -> Reduction:
    """The parts of a call; repeated elements are added first, unless the reduction is `linear`.

    With `compact` the result is sparse wherever a sparse dimension stays.
    """
    A = sparse_operand(arg, input)
    A = as_summands(A) if linear else without_repeats(A)
    dim = tuple(dim) if isinstance(dim, list) else dim
    ints = isinstance(dim, tuple) and all(map(_is_int, dim))
    if not (ints or dim is None or _is_int(dim)):
        require_dims(dim, 0)
    axes = A._pattern.derive(
        kept.AXES.of(dim, keepdim, compact), lambda p: _axes(p, dim, keepdim, compact)
    )
    return Reduction(A, axes, stored_values(A))


def _axes(pattern: Pattern, dim: Dims, keepdim: bool, compact: bool) -> Axes:
    shape = pattern.shape
    reduced = require_dims(dim, len(shape))
    left = [1 if d in reduced else n for d, n in enumerate(shape) if keepdim or d not in reduced]
    first = len(shape) - pattern.dense_dim
    dense = tuple(d - first for d in reduced if d >= first)
    dims = tuple(d for d in reduced if d < first)
    dense_dim = pattern.dense_dim - (0 if keepdim else len(dense))
    found = segments_of(pattern, dims, compact)
    return Axes(dims, dense, keepdim, tuple(left), dense_dim, found)


def _by_reduced(pattern: Pattern, stored: torch.Tensor, dense: tuple[int, ...]) -> torch.Tensor:
    """Values (elements, reduced, kept) for these of the dense dimensions."""
    if not pattern.dense_dim:
        return stored.reshape(pattern.elements, 1, 1)
    vals = stored.reshape(pattern.elements, *pattern.dense_shape)
    vals = vals.movedim([d + 1 for d in dense], list(range(1, len(dense) + 1)))
    split = len(dense) + 1
    return vals.reshape(
        pattern.elements, math.prod(vals.shape[1:split]), math.prod(vals.shape[split:])
    )


def require_dims(dim: Dims, ndim: int) -> tuple[int, ...]:
    """`dim` as ascending numbers from 0; all dimensions for None and ()."""
    given: Any = (dim,) if _is_int(dim) else dim
    if given is None or (isinstance(given, (tuple, list)) and not given):
        return tuple(range(ndim))
    if not isinstance(given, (tuple, list)) or not all(map(_is_int, given)):
        raise ArgumentKindError(
            f"`dim` is {dim!r}; an int, a tuple of ints or None is accepted. For example -1."
        )
    found = tuple(sorted(d % ndim if -ndim <= d < ndim else _refuse(d, ndim) for d in given))
    if len(set(found)) < len(found):
        raise ArgumentValueError(
            f"`dim` is {dim}; each dimension once is accepted. Leave out one of the repeated."
        )
    return found


def _is_int(d: Any) -> TypeGuard[int]:
    """Whether this is an int other than True and False."""
    return type(d) is int or (isinstance(d, int) and not isinstance(d, bool))


def one_dim(dim: Any) -> int:
    """`dim` if it is an int."""
    if not _is_int(dim):
        raise ArgumentKindError(f"`dim` is {dim!r}; an int is accepted. For example -1.")
    return dim


def _refuse(dim: int, ndim: int) -> int:
    raise ArgumentIndexError(
        f"`dim` is {dim} for a tensor of {ndim} dimension(s); numbers from {-ndim} to {ndim - 1} "
        "are accepted. Count from the end with negative ones."
    )


def require_elements(call: Reduction) -> None:
    """Refuses reductions over dimensions of size 0, where there is nothing to choose from."""
    if call.size == 0:
        raise ArgumentValueError(
            f"`input` has shape {tuple(call.A._pattern.shape)}, of which `dim` takes dimensions "
            "without elements; reduced dimensions of size 1 or more are accepted. Check the size "
            "of the input."
        )


def require_zero_of_nothing(call: Reduction) -> None:
    """Refuses dimensions of size 0 where a result that is not 0 would stand unspecified."""
    if call.inner == 0 or call.sparse:
        require_elements(call)


def converted(vals: torch.Tensor, dtype: Any) -> torch.Tensor:
    """Values in the dtype that a caller asks for, if one does."""
    if dtype is None:
        return vals
    if not isinstance(dtype, torch.dtype):
        raise ArgumentKindError(
            f"`dtype` is {dtype!r}; a torch.dtype or None is accepted. For example torch.float32."
        )
    return vals.to(dtype)


def wide(vals: torch.Tensor) -> torch.Tensor:
    """Values in a dtype for more than one step of calculation."""
    return vals.float() if vals.dtype in (torch.bfloat16, torch.float16) else vals


def require_dtype(dtype: torch.dtype, *, arg: str = "input", accepted: str) -> None:
    """Refuses dtypes other than those of the kinds in `accepted`, such as "real integer"."""
    kind = "complex" if dtype.is_complex else "real" if dtype.is_floating_point else "integer"
    kind = "bool" if dtype == torch.bool else kind
    kinds = accepted.split()
    if kind not in kinds:
        named = " and ".join("floating-point" if name == "real" else name for name in kinds)
        raise ArgumentValueError(
            f"`{arg}` has dtype {checks.short(dtype)}; {named} dtypes are accepted. Convert it "
            "with .to(torch.float32)."
        )
