"""Which process owns which rows of a matrix, or which elements of a vector."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.data import partition
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.views import rows as row_view

PARTITIONS = "nse", "rows", "metis"


@dataclass(frozen=True, eq=False)
class Shares:
    """The rows of all processes, numbered so that each process has one range of them.

    Attributes:
        starts: First row of each process, and the end of the last (world + 1,).
        rank: The number of this process.
        ids: Numbers of the own rows in the whole matrix (int64); None if they are those of the
            range.
    """

    starts: list[int]
    rank: int
    ids: torch.Tensor | None = None

    @property
    def begin(self) -> int:
        """First row of this process."""
        return self.starts[self.rank]

    @property
    def end(self) -> int:
        """End of the rows of this process."""
        return self.starts[self.rank + 1]

    @property
    def count(self) -> int:
        """Number of rows of this process."""
        return self.end - self.begin

    @property
    def total(self) -> int:
        """Number of rows of all processes."""
        return self.starts[-1]

    @property
    def sizes(self) -> list[int]:
        """Number of rows of each process."""
        return [end - start for start, end in itertools.pairwise(self.starts)]

    def numbers(self, device: torch.device) -> torch.Tensor:
        """Numbers of the own rows in the whole matrix (int64)."""
        if self.ids is not None:
            return self.ids
        return torch.arange(self.begin, self.end, device=device)


def even_starts(total: int, world: int) -> list[int]:
    """Equal shares of rows, as `Shard(0)` of a DTensor has them: the last ones may be empty."""
    step = -(-total // world)
    return [min(rank * step, total) for rank in range(world + 1)]


def starts_by_entries(crow: torch.Tensor, world: int) -> list[int]:
    """Contiguous rows with about equal numbers of entries, from the row pointers (m + 1,)."""
    m, nse = crow.shape[0] - 1, int(crow[-1])
    if nse == 0:
        return even_starts(m, world)
    wanted = torch.arange(1, world, device=crow.device) * nse // world
    inner = torch.searchsorted(crow.to(torch.int64), wanted).clamp(max=m)
    before = (inner - 1).clamp(min=0)
    nearer = (wanted - crow[before]).abs() < (crow[inner] - wanted).abs()
    return [0, *torch.where(nearer, before, inner).tolist(), m]


def starts_of_sizes(name: str, sizes: Sequence[int], total: int, world: int) -> list[int]:
    """The starts of ranges of given sizes, which must add up to `total`."""
    accepted = f"{world} numbers of rows, one for each process, that add up to {total} are accepted"
    hint = "Leave it out for shares of equal size."
    try:
        given = [operator.index(size) for size in sizes]
    except TypeError as error:
        what = checks.describe_kind(sizes)
        raise ArgumentKindError(f"`{name}` is {what}; {accepted}. {hint}") from error
    if len(given) != world or sum(given) != total or min(given, default=0) < 0:
        raise ArgumentValueError(f"`{name}` is {given}; {accepted}. {hint}")
    return [0, *itertools.accumulate(given)]


def parts_by_metis(A: SparseTensor, world: int) -> torch.Tensor:
    """The process of each row, for few rows of x that travel and about equally many entries."""
    if A.shape[0] <= world:
        return torch.arange(A.shape[0], device=A.device)
    weights = row_view(A._pattern).ptr.diff() + 1
    return partition(SparseTensor(A._vals.detach(), A._pattern), world, weights=weights)


def parts_to_order(parts: torch.Tensor, world: int) -> tuple[torch.Tensor, list[int]]:
    """The rows, those of process 0 first, and where the rows of each process begin."""
    order = torch.argsort(parts, stable=True)
    counts = torch.bincount(parts, minlength=world)
    return order, [0, *counts.cumsum(0).tolist()]
