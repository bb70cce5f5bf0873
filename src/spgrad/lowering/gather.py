"""Values carried over to another pattern, and their gradients back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.lowering.sorting import inverse
from spgrad.lowering.spmm import plain, wants_grad
from spgrad.torch_protocol.compile import lasting
from spgrad.torch_protocol.func_transforms import Function


class Source(NamedTuple):
    """Where the values of one operand go in a joint pattern."""

    entry: torch.Tensor  # (u,) entry of the operand, -1 where it has none
    place: torch.Tensor  # (nse,) element of the joint pattern, -1 where it has none


class Pieces(NamedTuple):
    """Ranges of entries one behind the other, as `kernels.join_ranges` takes and gives them."""

    ptr: torch.Tensor  # (s + 1,)
    begin: torch.Tensor  # (s,)
    end: torch.Tensor  # (s,)
    count: int  # of the entries in all
    backward: bool

    def entry(self) -> torch.Tensor:
        """Which old entry each new one is (count,)."""
        line = kernels.expand(self.ptr, self.count)
        position = self.begin.new_ones(self.count).cumsum_(0, dtype=self.begin.dtype).sub_(1)
        if self.backward:
            return (self.end + self.ptr[:-1] - 1).index_select(0, line).sub_(position)
        return (self.begin - self.ptr[:-1]).index_select(0, line).add_(position)

    def of(self, vals: torch.Tensor) -> torch.Tensor:
        """The values (count, *dense) of the entries; not differentiable."""
        shape = (self.count, *vals.shape[1:])
        return kernels.take_ranges(_flat(vals), *self).view(shape)


class Carried:
    """Which old entry each new element is, -1 for a zero.

    What only a derivative needs is found when asked for: which entries are in pieces, and where
    each old entry went.

    Attributes:
        nse: Number of old entries.
        repeats: True where an old entry may be taken more than once.
    """

    __slots__ = ("_entry", "_place", "nse", "pieces", "repeats")

    def __init__(
        self, entry: torch.Tensor | Pieces | None, nse: int, repeats: bool = False
    ) -> None:
        self.pieces = entry if isinstance(entry, Pieces) else None
        self._entry = None if isinstance(entry, Pieces) else entry
        self.nse = nse
        self.repeats = repeats
        self._place: torch.Tensor | None = None

    @property
    def entry(self) -> torch.Tensor | None:
        """The old entry that each element is (u,); None where all are taken in order."""
        if self._entry is None and self.pieces is not None:
            with lasting(self.pieces.ptr):
                self._entry = self.pieces.entry()
        return self._entry

    @property
    def place(self) -> torch.Tensor | None:
        """The inverse of `entry` (nse,); None where it is None or an entry is taken twice."""
        if self._place is None and self.entry is not None and not self.repeats:
            with lasting(self.entry):
                self._place = inverse(self.entry, self.nse)
        return self._place


def carry(vals: torch.Tensor, how: Carried) -> torch.Tensor:
    """vals[entry], zero where entry is -1; differentiable."""
    if not wants_grad(vals):
        if how.pieces is not None:
            return how.pieces.of(vals)
        return vals if how.entry is None else taken(vals, how.entry)
    return gathered(vals, how.entry, how.place)


def gathered(
    vals: torch.Tensor, entry: torch.Tensor | None, place: torch.Tensor | None
) -> torch.Tensor:
    """vals[entry], zero where entry is -1; differentiable. `place` is its inverse, if any."""
    if entry is None:
        return vals
    if place is not None:
        return spread(vals, Source(entry, place))
    some = (entry >= 0).view(-1, *[1] * (vals.dim() - 1))
    if vals.shape[0] == 0:  # zeros with a place in the graph
        return vals.new_zeros(entry.shape[0], *vals.shape[1:]) + vals.sum(0)
    return torch.where(some, vals.index_select(0, entry.clamp(min=0)), 0)


def spread(vals: torch.Tensor, source: Source) -> torch.Tensor:
    """Stored values of one operand at the elements of a joint pattern, zero where it has none.

    Gradient: the cotangent at the elements that the operand has; the same with entry and place
    exchanged.
    """
    if wants_grad(vals):
        return _Spread.apply(vals, source)  # type: ignore[return-value]
    return taken(vals, source.entry)


def taken(vals: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    """vals[entry], zero where entry is -1; not differentiable."""
    found = kernels.take(_flat(vals), entry)
    if vals.dim() <= 2:
        return found
    # a view could not be changed in place
    return torch.ops.aten._unsafe_view.default(found, (entry.shape[0], *vals.shape[1:]))


def _flat(vals: torch.Tensor) -> torch.Tensor:
    """Values (n,) or (n, d), as kernels read them."""
    vals = plain(vals)
    return vals.flatten(1) if vals.dim() > 2 else vals


class _Spread(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, source: Source) -> torch.Tensor:  # type: ignore[override]
        ctx.source = source
        return taken(vals, source.entry)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        entry, place = ctx.source
        return spread(g, Source(place, entry)), None
