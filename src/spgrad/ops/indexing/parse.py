"""Index expressions, read as torch reads them for a dense tensor."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentIndexError, ArgumentKindError, ArgumentValueError
from spgrad.lowering.operands import is_sparse
from spgrad.ops.indexing.nonzero import nonzero
from spgrad.torch_protocol.compile import of_trace

NEW, GROUP = -1, -2
"""Dimensions of a result that are none of the operand: of size 1, and of the index tensors."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


class Slice(NamedTuple):
    """The indices start, start + step, ..., `count` of them."""

    start: int
    step: int
    count: int


class Group(NamedTuple):
    """Index tensors that go together, element by element."""

    dims: tuple[int, ...]  # of the operand, one for each tensor
    index: tuple[torch.Tensor, ...]  # (points,) each, int64, from 0
    shape: tuple[int, ...]  # that they had
    points: int


class Subscript(NamedTuple):
    """What an index expression takes of each dimension, and where it goes.

    Attributes:
        taken: For each dimension of the operand a Slice, or an int that takes it away; None where
            the group has it.
        out: Dimensions of the result: those of the operand, NEW, or GROUP for all of the group's.
        group: The index tensors, if any.
    """

    taken: tuple[Slice | int | None, ...]
    out: tuple[int, ...]
    group: Group | None


def full_slices(shape: Sequence[int]) -> list[Slice | int | None]:
    """What takes all of each dimension."""
    return [Slice(0, 1, size) for size in shape]


def read(index: Any, shape: Sequence[int], device: torch.device) -> Subscript:
    """What an index expression takes of a tensor of this shape, or the refusal."""
    given = index if isinstance(index, tuple) else (index,)
    parts, of_masks = _masks_as_tensors(given, shape, device)
    used = sum(part is not None and part is not ... and not _is_flag(part) for part in parts)
    ellipses = sum(part is ... for part in parts)
    if ellipses > 1 or used > len(shape):
        raise ArgumentIndexError(
            f"`index` has {used} indices and {ellipses} ellipses for {len(shape)} dimension(s); "
            "one index for each at most, and one ellipsis, are accepted. Leave some out."
        )
    if not ellipses:
        parts.append(...)
    taken = full_slices(shape)
    out: list[int] = []
    tensors: list[tuple[int, torch.Tensor]] = []  # place in out
    dim = 0
    for i, part in enumerate(parts):
        if part is ...:
            more = len(shape) - used
            out += range(dim, dim + more)
            dim += more
        elif part is None:
            out.append(NEW)
        elif _is_flag(part):
            tensors.append((len(out), torch.zeros(int(part), dtype=torch.int64, device=device)))
            out.append(NEW)
        elif isinstance(part, torch.Tensor):
            known = part if i in of_masks else in_range(part, dim, shape[dim])
            tensors.append((len(out), known))
            taken[dim] = None
            out.append(dim)
            dim += 1
        elif isinstance(part, slice):
            taken[dim] = _sliced(part, dim, shape[dim])
            out.append(dim)
            dim += 1
        else:
            taken[dim] = one("index", part, dim, shape[dim])
            dim += 1
    if not tensors:
        return Subscript(tuple(taken), tuple(out), None)
    return _with_index_group(taken, out, tensors)


def _with_index_group(
    taken: list[Slice | int | None], out: list[int], tensors: list[tuple[int, Any]]
) -> Subscript:
    """The dimensions of index tensors stand where these do if they are neighbours, or in front."""
    places = [place for place, _ in tensors]
    try:
        full = torch.broadcast_tensors(*(t for _, t in tensors))
    except RuntimeError:
        shapes = ", ".join(str(tuple(t.shape)) for _, t in tensors)
        raise ArgumentValueError(
            f"`index` has index tensors of shapes {shapes}; shapes that broadcast together are "
            "accepted. Index one dimension after the other for all combinations."
        ) from None
    neighbours = places[-1] - places[0] == len(places) - 1
    left = [d for place, d in enumerate(out) if place not in places]
    left.insert(places[0] if neighbours else 0, GROUP)
    named = [
        (out[place], t.reshape(-1).contiguous()) for place, t in zip(places, full, strict=True)
    ]
    named = [(d, t) for d, t in named if d != NEW]
    dims, index = tuple(d for d, _ in named), tuple(t for _, t in named)
    group = Group(dims, index, tuple(full[0].shape), full[0].numel())
    return Subscript(tuple(taken), tuple(left), group)


def _masks_as_tensors(
    parts: tuple[Any, ...], shape: Sequence[int], device: torch.device
) -> tuple[list[Any], set[int]]:
    """The parts, with lists made tensors, numbers ints, and masks the indices where they are True.

    A mask is indexed by as many tensors as it has dimensions; one without any is a bool. Which
    parts these tensors are is given too, because they need no look at their range.
    """
    found: list[Any] = []
    of_masks: set[int] = set()
    dims = [0 if part is None or part is ... or _is_flag(part) else 1 for part in parts]
    for i, given in enumerate(parts):
        part = _as_tensor(given, device)
        if not isinstance(part, torch.Tensor):
            found.append(part)
            continue
        if part.dtype != torch.bool:
            _require_integers(part)
            found.append(int(part) if part.dim() == 0 else part.to(torch.int64))
            continue
        if part.dim() == 0:
            found.append(bool(part))
            dims[i] = 0
            continue
        dims[i] = part.dim()
        at = sum(dims[:i])
        if any(before is ... for before in parts[:i]):
            behind = sum(_width(p) for p in parts[i + 1 :])
            at = len(shape) - behind - part.dim()
        _require_mask(part, at, shape)
        of_masks.update(range(len(found), len(found) + part.dim()))
        found += nonzero(part, as_tuple=True) if is_sparse(part) else part.nonzero(as_tuple=True)
    return found, of_masks


def _width(part: Any) -> int:
    """Number of dimensions that a part takes."""
    if part is None or part is ... or _is_flag(part):
        return 0
    if isinstance(part, (list, range)) or type(part).__module__ == "numpy":
        part = torch.as_tensor(list(part) if isinstance(part, range) else part)
    masks = isinstance(part, torch.Tensor) and part.dtype == torch.bool
    return part.dim() if masks else 1


def _as_tensor(part: Any, device: torch.device) -> Any:
    """Lists and arrays as tensors on `device`; anything else as it is."""
    if isinstance(part, torch.Tensor):
        if part.is_meta and device.type != "meta":
            raise ArgumentValueError(
                f"`index` has a tensor on meta, which holds no numbers; tensors on {device} are "
                "accepted."
            )
        return part if part.device == device else part.to(device)
    if isinstance(part, (list, tuple, range)) or type(part).__module__ == "numpy":
        try:
            made = torch.as_tensor(list(part) if isinstance(part, range) else part, device=device)
        except (TypeError, ValueError, RuntimeError):
            raise _no_index(part) from None
        empty = made.numel() == 0 and made.dtype.is_floating_point
        return made.to(torch.int64) if empty else made
    return part


def _is_flag(part: Any) -> bool:
    return isinstance(part, bool)


def _no_index(part: Any) -> ArgumentKindError:
    what = checks.describe_kind(part)
    if isinstance(part, torch.Tensor):
        what = f"a tensor of dtype {checks.short(part.dtype)}"
    return ArgumentKindError(
        f"`index` has {what} in it; ints, slices, None, ..., lists and tensors of ints, and masks "
        "of dtype bool are accepted. Convert with .long() or .bool()."
    )


def _require_integers(t: torch.Tensor) -> None:
    if is_sparse(t) or t.dtype not in _INTEGERS:
        raise _no_index(t)


def _require_mask(mask: torch.Tensor, at: int, shape: Sequence[int]) -> None:
    for d, size in enumerate(mask.shape):
        if at + d >= len(shape) or shape[at + d] != size:
            sizes = tuple(shape[at : at + mask.dim()])
            raise ArgumentIndexError(
                f"`index` has a mask of shape {tuple(mask.shape)} for the dimensions from {at} on, "
                f"of sizes {sizes}; a mask of those sizes is accepted. Check its place in the "
                "index."
            )


def in_range(t: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Index tensor with indices from the end counted from 0, or the refusal."""
    if t.numel() == 0:
        return t
    if of_trace(t):
        return torch.where(t < 0, t + size, _asserted(t, -size, dim, size))
    low, high = torch.stack(t.aminmax()).tolist()  # read once
    if low < -size or high >= size:
        raise _outside("index", low if low < -size else high, dim, size)
    return torch.where(t < 0, t + size, t) if low < 0 else t


def _asserted(t: torch.Tensor, low: int, dim: int, size: int) -> torch.Tensor:
    """The index tensor of a trace, whose runs raise if a number is outside of the shape."""
    text = f"spgrad: an index tensor for dimension {dim} has a number outside of the shape"
    torch._assert_async(((t >= low) & (t < size)).all(), text)
    return t


def one(arg: str, part: Any, dim: int, size: int) -> int:
    """An index counted from 0, or the refusal."""
    try:
        at = operator.index(part)
    except TypeError:
        raise _no_index(part) from None
    if not -size <= at < size:
        raise _outside(arg, at, dim, size)
    return at if at >= 0 else at + size


def _outside(arg: str, at: int, dim: int, size: int) -> ArgumentValueError:
    accepted = f"indices from {-size} to {size - 1} are" if size else "no index is"
    return ArgumentIndexError(
        f"`{arg}` has {at} for dimension {dim} of size {size}; {accepted} accepted. Check the "
        "shape."
    )


def _sliced(part: slice, dim: int, size: int) -> Slice:
    try:
        start, step, count = slice_of(part, size)
    except (TypeError, ValueError) as error:
        raise ArgumentValueError(
            f"`index` has {part} for dimension {dim}; ints, or none, and a step other than 0 are "
            f"accepted. Python says: {error}."
        ) from None
    if count == 0:
        return Slice(0, 1, 0)
    return Slice(start, step if count > 1 else 1, count)


def slice_of(part: slice, size: int) -> Slice:
    """The first index, the step and the number of indices of a slice, as Python counts them."""
    if not any(isinstance(n, torch.SymInt) for n in (part.start, part.stop, size)):
        start, stop, step = part.indices(size)
        return Slice(start, step, len(range(start, stop, step)))
    # Python would ask a trace for the number of a symbol, and the graph would hold for it alone
    step = slice(None, None, part.step).indices(1)[2]
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def within(at: Any, default: int) -> int:
        if at is None:
            return default
        at = at if isinstance(at, torch.SymInt) else operator.index(at)
        at = at + size if at < 0 else at
        return low if at < low else min(at, high)

    ends = (low, high) if step > 0 else (high, low)
    start, stop = (within(at, end) for at, end in zip((part.start, part.stop), ends, strict=True))
    length = (stop - start if step > 0 else start - stop) + abs(step) - 1
    return Slice(start, step, length // abs(step) if length > 0 else 0)


def vector(index: Any, A: SparseTensor, dim: int) -> torch.Tensor:
    """A vector of indices from 0 on for one dimension, as int64, or the refusal."""
    if not isinstance(index, torch.Tensor) or is_sparse(index):
        raise ArgumentKindError(
            f"`index` is {checks.describe_kind(index)}; a dense tensor of ints is accepted. "
            "Convert it with torch.as_tensor."
        )
    checks.require_index("index", index)
    checks.require_same_device(input=A._vals, index=index)
    if index.dim() > 1:
        raise checks.bad_shape("index", tuple(index.shape), "a vector", "Use A[index].")
    index = index.reshape(-1).to(torch.int64)
    size = A._pattern.shape[dim]
    if of_trace(index):
        return _asserted(index, 0, dim, size)
    found = in_range(index, dim, size)
    if found is not index:
        raise ArgumentIndexError(
            f"`index` has {int(index.min())} for dimension {dim} of size {size}; indices from 0 on "
            "are accepted. Use A[index] to count from the end."
        )
    return index
