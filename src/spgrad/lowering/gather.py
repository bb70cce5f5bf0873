"""Gathers, which take values to another pattern and gradients back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.values import as_result, plain
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.sorting import inverse
from spgrad.torch_protocol.compile import is_real, lasting
from spgrad.torch_protocol.func_transforms import Function, transforming


class Run(NamedTuple):
    """Entries start, start + 1, ..., `count` of them."""

    start: int
    count: int


class Ranges(NamedTuple):
    """Ranges of entries one after the other, as `kernels.join_ranges` takes and returns them."""

    ptr: torch.Tensor  # (s + 1,)
    begin: torch.Tensor  # (s,)
    end: torch.Tensor  # (s,)
    count: int  # of the entries in all
    backward: bool

    def index(self) -> torch.Tensor:
        """Which old entry each new one is (count,)."""
        line = kernels.expand(self.ptr, self.count)
        position = self.begin.new_ones(self.count).cumsum_(0, dtype=self.begin.dtype).sub_(1)
        if self.backward:
            return (self.end + self.ptr[:-1] - 1).index_select(0, line).sub_(position)
        return (self.begin - self.ptr[:-1]).index_select(0, line).add_(position)


Entries = torch.Tensor | Run | Ranges | None
"""Which old entry each new one is; None: all in order; -1: a new zero."""


def as_index(entries: Entries, like: torch.Tensor | None = None) -> torch.Tensor | None:
    """Entries as a tensor (count,), a run's on the device of `like`; None: all entries in order."""
    if isinstance(entries, Ranges):
        return entries.index()
    if isinstance(entries, Run):
        device = None if like is None else like.device
        return torch.arange(entries.start, entries.start + entries.count, device=device)
    return entries


def added_at(index: torch.Tensor, g: torch.Tensor, count: int) -> torch.Tensor:
    """The sum (count, ...) of the rows of g at each index; differentiable.

    16-bit rows are added in float32: bfloat16 cannot count beyond 256.
    """
    wide = torch.promote_types(g.dtype, torch.float32)
    return g.new_zeros(count, *g.shape[1:], dtype=wide).index_add(0, index, g.to(wide)).to(g.dtype)


class Gather:
    """Takes values to the elements of another pattern: the new values are ``vals[entries]``.

    One object is used in the first call and in later calls, with and without a gradient. Two things
    are computed only when code asks for them: the entries, if the kernel that made the pattern also
    moved the values, and the place of each old entry, which the derivative reads.

    Args:
        entries: Which old entry each new one is, or a function that finds them. None, which no
            function finds, says that all stay in order.
        nse: Number of old entries.
        repeats: True where an old entry may be taken more than once.
        place: The place of each old entry (nse,), -1 for an entry that is not taken, if known; or
            a function that finds the places.
    """

    __slots__ = ("_entries", "_place", "nse", "repeats")

    def __init__(
        self,
        entries: Entries | Callable[[], Entries],
        nse: int,
        repeats: bool = False,
        place: torch.Tensor | Callable[[], torch.Tensor] | None = None,
    ) -> None:
        self._entries = entries
        self._place = place
        self.nse = nse
        self.repeats = repeats

    @property
    def entries(self) -> Entries:
        """Which old entry each new one is."""
        entries = self._entries  # read once, as another thread may find them meanwhile
        if callable(entries):
            entries = self._entries = entries()
        return entries

    def index(self, like: torch.Tensor | None = None) -> torch.Tensor | None:
        """The entries as a tensor, a `Run`'s on the device of `like`; None: all in order."""
        entries = self.entries
        if entries is None or isinstance(entries, torch.Tensor):
            return entries
        with lasting(entries.ptr) if isinstance(entries, Ranges) else lasting():
            self._entries = index = as_index(entries, like)
        return index

    @property
    def place(self) -> torch.Tensor | None:
        """The place of each old entry, -1 if it is not taken; None if all entries stay in order."""
        place = self._place
        if isinstance(place, torch.Tensor):
            return place
        index = self.index()
        if index is None:
            return None
        with lasting(index):
            place = self._place = inverse(index, self.nse) if place is None else place()
        return place

    def __call__(self, vals: torch.Tensor, ready: torch.Tensor | None = None) -> torch.Tensor:
        """The new values of `vals` (nse, ...); differentiable.

        `ready` are these values, if a kernel computed them together with the pattern.
        """
        if self._entries is None:
            return vals
        if not wants_grad(vals):
            return self._gathered(vals) if ready is None else ready
        if isinstance(self._entries, Run):
            return self._gathered(vals)  # torch's own operations, whose derivative needs no index
        return _Gather.apply(vals, self, [] if ready is None else [ready])  # type: ignore[return-value]

    def _gathered(self, vals: torch.Tensor) -> torch.Tensor:
        entries = self._entries if isinstance(self._entries, torch.Tensor) else self.entries
        assert entries is not None  # what stays in order is not moved
        if isinstance(entries, Run):
            return vals[entries.start : entries.start + entries.count].clone()
        many = vals.dim() > 2
        flat = plain(vals)
        if many:  # (n,) or (n, d), as kernels read it
            flat = flat.reshape(flat.shape[0], math.prod(flat.shape[1:]))
        if isinstance(entries, Ranges):
            found = kernels.take_ranges(flat, *entries)
        else:
            found = kernels.take(flat, entries)
        if not many:
            return found
        return as_result(found, (found.shape[0], *vals.shape[1:]))

    def _derivative(self, g: torch.Tensor) -> torch.Tensor:
        """The gradient of the old values for the cotangent g of the new ones."""
        index = self.index(g)
        assert index is not None
        if self.repeats:
            last = torch.where(index < 0, self.nse, index)  # one more row, for the new zeros
            return added_at(last, g, self.nse + 1)[: self.nse]
        return Gather(self.place, g.shape[0], place=index)(g)


class Move(NamedTuple):
    """A pattern made from another pattern, and how values move to it and back.

    With `blocks`, values move by whole blocks; otherwise by single elements.
    """

    pattern: Pattern
    gather: Gather
    blocks: bool = False


def moves_along(vals: torch.Tensor, like: torch.Tensor) -> bool:
    """True where the kernel that moves the indices `like` can move the values in the same pass.

    Indices and values are both real tensors, or both traced. Tensors of a torch.func transform have
    no numbers that a kernel could read.
    """
    return vals.dim() == 1 and not transforming() and is_real(vals) == is_real(like)


class _Gather(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, gather: Gather, ready: list[torch.Tensor]
    ) -> torch.Tensor:
        ctx.gather = gather
        return ready[0] if ready else gather._gathered(vals)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return ctx.gather._derivative(g), None, None
