"""The pattern of one process's rows, split by who owns the columns, and the rows of x it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from spgrad.core.pattern import Pattern
from spgrad.distributed.exchange import Exchange, find_exchange
from spgrad.distributed.shares import Shares

_INT32 = torch.iinfo(torch.int32).max


@dataclass(frozen=True, eq=False)
class Plan:
    """The pattern of one process's rows; all matrices on the same pattern share one plan.

    Entries in columns that the process owns and entries in other columns are kept apart, as in
    PETSc's parallel matrices: the product with the former runs while rows of x travel.

    Attributes:
        mesh: The processes, in one dimension.
        rows: Who owns which rows of A, and of y = A x.
        columns: Who owns which columns of A, and rows of x.
        own: CSR pattern of the entries in own columns, (own rows, own columns).
        far: CSR pattern of the entries in columns of other processes, (far rows, rows of x that
            arrive).
        far_rows: The own rows that have entries in `far` (int64); None if `far` has all own rows.
        far_ids: Numbers of the columns of `far` in the whole matrix (int64).
        entry_starts: For each own row, its first entry in the whole matrix as CSR (int64).
        exchange: The rows of x that travel.
        entries: Number of entries of each process.
    """

    mesh: DeviceMesh
    rows: Shares
    columns: Shares
    own: Pattern
    far: Pattern
    far_rows: torch.Tensor | None
    far_ids: torch.Tensor
    entry_starts: torch.Tensor
    exchange: Exchange
    entries: list[int]
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> Any:
        """The process group of the mesh."""
        return self.exchange.group

    @property
    def device(self) -> torch.device:
        """Where the indices are."""
        return self.far_ids.device

    @property
    def nse(self) -> int:
        """Number of entries of this process."""
        return self.own.nse + self.far.nse

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole matrix."""
        return self.rows.total, self.columns.total

    def halves(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of `own` and of `far`."""
        return values[: self.own.nse], values[self.own.nse :]

    @cached_property
    def whole(self) -> tuple[Pattern, torch.Tensor]:
        """All own rows in one CSR pattern, and the position of its values among those of the plan.

        Its columns are the own columns and then those of `far`.
        """
        row, col = self.coordinates()
        order = torch.argsort(row * max(self.own.shape[1] + self.far.shape[1], 1) + col)
        shape = self.rows.count, self.own.shape[1] + self.far.shape[1]
        dtype = index_dtype(*shape, self.nse)
        return csr(row[order], col[order].to(dtype), shape), order

    @property
    def entry_columns(self) -> torch.Tensor:
        """For each entry, its column in the whole matrix (int64)."""
        return self._column_ids(self.coordinates()[1])

    def _column_ids(self, col: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.columns.numbers(self.device), self.far_ids])[col]

    @cached_property
    def entry_ids(self) -> torch.Tensor:
        """For each entry, its position among the entries of the whole matrix as CSR (int64)."""
        row, col = self.coordinates()
        order = torch.argsort(row * max(self.columns.total, 1) + self._column_ids(col))
        first = torch.bincount(row, minlength=self.rows.count).cumsum(0)
        first = torch.cat([first.new_zeros(1), first])
        place = torch.arange(self.nse, device=self.device) - first[row[order]]
        found = torch.empty_like(order)
        found[order] = self.entry_starts[row[order]] + place
        return found

    def coordinates(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Own row, and column as in `whole`, of each entry (int64)."""
        far = row_of_entries(self.far)
        far = far if self.far_rows is None else self.far_rows[far]
        col = torch.cat([self.own.indices[1].long(), self.far.indices[1] + self.own.shape[1]])
        return torch.cat([row_of_entries(self.own), far]), col


def find_plan(
    mesh: DeviceMesh,
    crow: torch.Tensor,
    col: torch.Tensor,
    rows: Shares,
    columns: Shares,
    entry_starts: torch.Tensor,
    places: torch.Tensor | None,
) -> tuple[Plan, torch.Tensor]:
    """The plan of a matrix whose own rows are given, and the order of its values; a collective.

    Args:
        mesh: The processes.
        crow: Row pointers of the own rows.
        col: Column of each entry; ascending in each row.
        rows: Who owns which rows.
        columns: Who owns which columns.
        entry_starts: First entry of each own row in the whole matrix.
        places: Where each column lies in the order of `columns`; None where it lies at its number.
    """
    group = mesh.get_group()
    place = col.long() if places is None else places[col]
    own = (place >= columns.begin) & (place < columns.end)
    counted = torch.cat([crow.new_zeros(1, dtype=torch.int64), own.cumsum(0)])
    own_crow = counted[crow]
    far_crow = crow - own_crow
    if places is None:
        needed = far_ids = place[~own].unique()
    else:
        needed, inverse = place[~own].unique(return_inverse=True)
        far_ids = torch.empty_like(needed).index_copy_(0, inverse, col[~own].long())
    far_col = torch.searchsorted(needed, place[~own])
    far_rows = torch.nonzero(far_crow.diff()).squeeze(1)
    if 2 * len(far_rows) > rows.count:
        far_rows = None
    else:
        far_crow = torch.cat([far_crow[far_rows], far_crow[-1:]])
    own_col = place[own] - columns.begin
    order = torch.cat([torch.nonzero(own).squeeze(1), torch.nonzero(~own).squeeze(1)])
    halves = []
    for ptr, idx, width in (own_crow, own_col, columns.count), (far_crow, far_col, len(needed)):
        # a permutation leaves the columns of a row unsorted, and a CSR pattern has them sorted
        sort = None if places is None else torch.argsort(_lines(ptr) * max(width, 1) + idx)
        halves.append((ptr, idx if sort is None else idx[sort], width, sort))
    if places is not None:
        split = len(own_col)
        order = torch.cat([order[:split][halves[0][3]], order[split:][halves[1][3]]])
    own_half, far_half = (_pattern(*half[:3]) for half in halves)
    exchange = find_exchange(needed, columns.starts, group)
    entries = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=col.device)
    entries[rows.rank] = len(col)
    dist.all_reduce(entries, group=group)
    halves_of = own_half, far_half, far_rows, far_ids
    plan = Plan(mesh, rows, columns, *halves_of, entry_starts, exchange, entries.tolist())
    return plan, order


def _pattern(ptr: torch.Tensor, idx: torch.Tensor, width: int) -> Pattern:
    shape = ptr.shape[0] - 1, width
    dtype = index_dtype(*shape, idx.shape[0])
    return Pattern(torch.sparse_csr, shape, (ptr.to(dtype), idx.to(dtype)))


def _lines(ptr: torch.Tensor) -> torch.Tensor:
    lines = torch.arange(ptr.shape[0] - 1, device=ptr.device)
    return torch.repeat_interleave(lines, ptr.diff())


def row_of_entries(pattern: Pattern) -> torch.Tensor:
    """The row of each entry of a CSR pattern (int64)."""
    return _lines(pattern.indices[0])


def csr(row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int]) -> Pattern:
    """The CSR pattern of entries in row-major order."""
    counts = torch.bincount(row, minlength=shape[0])
    ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(col.dtype)
    return Pattern(torch.sparse_csr, shape, (ptr, col))


def index_dtype(*sizes: int) -> torch.dtype:
    """int32, if it holds all of these numbers."""
    return torch.int32 if max(sizes) <= _INT32 else torch.int64
