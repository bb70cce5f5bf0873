"""The pattern of one process's rows, split by who owns the columns, and the rows of x it needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from spgrad.core.pattern import Pattern, index_dtype
from spgrad.distributed.exchange import Exchange, find_exchange
from spgrad.distributed.shares import Shares
from spgrad.torch_protocol.compile import lasting

_PARTS = 4
"""Most parts of the entries in columns of other processes."""

_NUMBERS = itertools.count(1)
"""Numbers of the plans of groups whose first process is this one."""

_IN_A_LINE = 8
"""Entries of a part in one of its lines, on average, from which on its product is worth a pass over
the result of its own."""


T = TypeVar("T")


def _kept(find: Callable[[Any], T]) -> cached_property[T]:
    """A property that is computed once; outside of the modes of torch, which it outlives."""

    @wraps(find)
    def run(plan: Any) -> T:
        with lasting():
            return find(plan)

    return cached_property(run)


@dataclass(frozen=True, eq=False)
class Part:
    """Entries in columns of other processes; their rows of x are contiguous among those that come.

    The product with a part runs as soon as these rows have arrived, while others travel.

    Attributes:
        pattern: CSR pattern of the entries (lines, rows of x).
        rows: The own row of each line (int64); None if there is a line for each own row.
        begin: The first of its rows of x, among those that arrive.
    """

    pattern: Pattern
    rows: torch.Tensor | None
    begin: int

    @property
    def end(self) -> int:
        """The end of its rows of x, among those that arrive."""
        return self.begin + self.pattern.shape[1]

    def lines_of(self, x: torch.Tensor) -> torch.Tensor:
        """The own rows of x for which there is a line."""
        return x if self.rows is None else x.index_select(0, self.rows)


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
        far: The entries in columns of other processes, in parts by the rows of x that arrive.
            Values stand in the order of `own` and then of the parts.
        far_ids: Numbers of the columns of all parts in the whole matrix (int32 if that suffices).
        entry_starts: For each own row, its first entry in the whole matrix as CSR (int64); that of
            the first own row alone, if the own rows are a range.
        exchange: The rows of x that travel.
        entries: Number of entries of each process.
        number: Tells the plans of a group apart; the same in all of its processes.
    """

    mesh: DeviceMesh
    rows: Shares
    columns: Shares
    own: Pattern
    far: tuple[Part, ...]
    far_ids: torch.Tensor
    entry_starts: torch.Tensor
    exchange: Exchange
    entries: list[int]
    number: int
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
        return self.own.nse + sum(part.pattern.nse for part in self.far)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole matrix."""
        return self.rows.total, self.columns.total

    @property
    def patterns(self) -> list[Pattern]:
        """The patterns of `own` and of each part of `far`, in the order of the values."""
        return [self.own, *(part.pattern for part in self.far)]

    def split(self, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Values of `own` and of each part of `far`."""
        return values.split([pattern.nse for pattern in self.patterns])

    @_kept
    def whole(self) -> tuple[Pattern, torch.Tensor]:
        """All own rows in one CSR pattern, and the position of its values among those of the plan.

        Its columns are those of `column_order`, so that the first of equal elements of a row is
        the same one in any number of processes.
        """
        row, col = self.coordinates()
        shape = self.rows.count, len(self.column_order)
        place = torch.empty_like(self.column_order)
        place[self.column_order] = torch.arange(shape[1], device=self.device)
        col = place[col]
        order = torch.argsort(row * max(shape[1], 1) + col)
        dtype = index_dtype(torch.int32, (*shape, self.nse))
        return csr(row[order], col[order].to(dtype), shape), order

    @_kept
    def column_order(self) -> torch.Tensor:
        """The own columns and those of `far` as they stand in the whole matrix.

        Own columns are numbered first, then those of `far`.
        """
        return torch.argsort(self._column_ids())

    @property
    def entry_columns(self) -> torch.Tensor:
        """For each entry, its column in the whole matrix (int64)."""
        return self._column_ids()[self.coordinates()[1]]

    def _column_ids(self) -> torch.Tensor:
        return torch.cat([self.columns.numbers(self.device), self.far_ids])

    @_kept
    def entry_ids(self) -> torch.Tensor:
        """For each entry, its position among the entries of the whole matrix as CSR (int64)."""
        row, col = self.coordinates()
        order = torch.argsort(row * max(self.columns.total, 1) + self._column_ids()[col])
        place = torch.arange(self.nse, device=self.device)
        if self.rows.ids is not None:
            first = torch.bincount(row, minlength=self.rows.count).cumsum(0)
            place = place - torch.cat([first.new_zeros(1), first])[row[order]]
        found = torch.empty_like(order)
        starts = self.entry_starts
        found[order] = place + (starts if self.rows.ids is None else starts[row[order]])
        return found

    def coordinates(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Own row, and number among own and `far` columns, of each entry (int64)."""
        rows, cols = [row_of_entries(self.own)], [self.own.indices[1].long()]
        for part in self.far:
            line = row_of_entries(part.pattern)
            rows.append(line if part.rows is None else part.rows[line])
            cols.append(part.pattern.indices[1].long() + (self.own.shape[1] + part.begin))
        return torch.cat(rows), torch.cat(cols)


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
    row = _lines(crow)
    own = (place >= columns.begin) & (place < columns.end)
    needed, inverse = place[~own].unique(return_inverse=True)
    far_ids = needed
    if places is not None:
        far_ids = torch.empty_like(needed).index_copy_(0, inverse, col[~own].long())
    at_own, at_far = torch.nonzero(own).squeeze(1), torch.nonzero(~own).squeeze(1)
    found = _sorted(row[own], place[own] - columns.begin, columns.count, places is not None)
    own_half = csr(*_narrow(*found[:2], (rows.count, columns.count)))
    order = [at_own if found[2] is None else at_own[found[2]]]
    far = []
    for begin, end in _cuts(row[~own], len(needed)):
        inside = torch.nonzero((inverse >= begin) & (inverse < end)).squeeze(1)
        part_row, part_col, sort = _sorted(
            row[at_far[inside]], inverse[inside] - begin, end - begin, places is not None
        )
        far.append(_part(part_row, part_col, begin, end, rows.count))
        order.append(at_far[inside if sort is None else inside[sort]])
    exchange = find_exchange(needed, columns.starts, group)
    known = torch.zeros(dist.get_world_size(group) + 1, dtype=torch.int64, device=col.device)
    known[rows.rank] = len(col)
    if rows.rank == 0:  # the others add 0 to its number
        known[-1] = next(_NUMBERS)
    dist.all_reduce(known, group=group)
    *entries, number = known.tolist()
    far_ids = far_ids.to(index_dtype(torch.int32, (columns.total,)))
    starts = entry_starts if rows.ids is not None else entry_starts[:1].clone()
    parts = own_half, tuple(far), far_ids, starts
    return Plan(mesh, rows, columns, *parts, exchange, entries, number), torch.cat(order)


def _cuts(row: torch.Tensor, arriving: int) -> list[tuple[int, int]]:
    """Ranges of the rows of x that arrive, one for each part of the entries in these own rows.

    There is always one, as every process has to record that rows travel, also one that gets none.
    """
    lines = len(row.unique_consecutive())
    count = max(min(len(row) // (_IN_A_LINE * max(lines, 1)), _PARTS, arriving), 1)
    bounds = [arriving * i // count for i in range(count + 1)]
    return list(itertools.pairwise(bounds))


def _sorted(
    row: torch.Tensor, col: torch.Tensor, width: int, unsorted: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Entries in row-major order, and that order; a permutation leaves rows unsorted."""
    if not unsorted:
        return row, col, None
    order = torch.argsort(row * max(width, 1) + col)
    return row[order], col[order], order


def _part(row: torch.Tensor, col: torch.Tensor, begin: int, end: int, count: int) -> Part:
    """The part of entries in row-major order; with a line for each own row if most have entries."""
    rows, line = row.unique_consecutive(return_inverse=True)
    if 2 * len(rows) > count:
        return Part(csr(*_narrow(row, col, (count, end - begin))), None, begin)
    return Part(csr(*_narrow(line, col, (len(rows), end - begin))), rows, begin)


def _narrow(
    row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """The entries with columns of the smallest dtype."""
    return row, col.to(index_dtype(torch.int32, (*shape, len(col)))), shape


def _lines(ptr: torch.Tensor) -> torch.Tensor:
    lines = torch.arange(ptr.shape[0] - 1, device=ptr.device)
    return torch.repeat_interleave(lines, ptr.diff())


def row_of_entries(pattern: Pattern) -> torch.Tensor:
    """The row of each entry of a CSR pattern (int64)."""
    return _lines(pattern.indices[0])


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One vector of those of `own` and of each part of `far`: the inverse of `Plan.split`.

    They are joined as columns. `torch.cat` cuts a vector without elements from the graph of second
    derivatives, and a process that lacks a part of this graph would not take part in its exchange.
    """
    return torch.cat([part.unsqueeze(1) for part in parts]).squeeze(1)


def csr(row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int]) -> Pattern:
    """The CSR pattern of entries in row-major order."""
    counts = torch.bincount(row, minlength=shape[0])
    ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(col.dtype)
    return Pattern(torch.sparse_csr, shape, (ptr, col))
