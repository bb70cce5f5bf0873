"""Moves rows between a DTensor, or a replicated tensor, and the shares of a sharded matrix.

A DTensor with `Shard(0)` has equal shares of rows in their order. A matrix has other shares if they
were made by entries, by METIS or by the user; an `Exchange` then moves the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from spgrad.core import checks
from spgrad.core.pattern import index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.distributed.exchange import (
    Exchange,
    collect,
    find_exchange,
    give_back,
    in_memory,
    numbers_of,
)
from spgrad.distributed.plan import Plan, csr
from spgrad.distributed.sharded import Sharded, kind_in_words
from spgrad.distributed.shares import Shares, even_starts
from spgrad.errors import ArgumentKindError, ArgumentValueError


@dataclass(frozen=True)
class Move:
    """How rows get from the shares of a DTensor to those of a matrix.

    Attributes:
        exchange: Brings the rows of this process from the DTensor, in ascending order of their
            numbers; None if both have equal shares.
        place: Where the rows in ascending order stand among those of the process; None likewise.
        total: Number of rows of all processes.
    """

    exchange: Exchange | None
    place: torch.Tensor | None
    total: int


def entries(plan: Plan) -> Move:
    """The move of values; found once for a pattern. A collective."""
    return _kept(plan, "entries", lambda: find_move(plan.entry_ids, sum(plan.entries), plan))


def rows(shares: Shares, plan: Plan) -> Move:
    """The move of rows of operands and results; found once for a pattern. A collective."""

    def find() -> Move:
        equal = shares.ids is None and shares.starts == even_starts(shares.total, len(plan.entries))
        if equal:
            return Move(None, None, shares.total)
        return find_move(shares.numbers(plan.device), shares.total, plan)

    return _kept(plan, "rows" if shares is plan.rows else "columns", find)


def _kept(plan: Plan, name: str, find: Callable[[], Move]) -> Move:
    if name not in plan.kept:
        with torch._C._DisableFuncTorch():  # the move outlives the transforms of torch.func
            plan.kept[name] = find()
    return plan.kept[name]


def find_move(ids: torch.Tensor, total: int, plan: Plan) -> Move:
    """The move of rows with these numbers; a collective."""
    needed, place = ids.sort()
    starts = even_starts(total, len(plan.entries))
    return Move(find_exchange(needed, starts, plan.group), place, total)


def to_rows(x: DTensor, move: Move, plan: Plan) -> torch.Tensor:
    """The rows of a DTensor that the process owns; a collective."""
    local = x.redistribute(plan.mesh, [Shard(0)]).to_local()
    if move.exchange is None or move.place is None:
        return local
    arrived = collect(local, move.exchange)
    inverse = torch.empty_like(move.place)
    inverse[move.place] = torch.arange(len(inverse), device=inverse.device)
    return arrived.index_select(0, inverse)


def from_rows(y: torch.Tensor, move: Move, plan: Plan) -> DTensor:
    """The DTensor of the own rows of all processes; a collective."""
    if move.exchange is not None and move.place is not None:
        y = give_back(y.index_select(0, move.place), move.exchange)
    shape = torch.Size((move.total, *y.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        in_memory(y), plan.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
    )


def on_rows(function: Callable[[torch.Tensor], Any], x: torch.Tensor, D: Sharded) -> Any:
    """Applies a function of own rows to x; for a DTensor x, the result is a DTensor."""
    if not isinstance(x, DTensor):
        return function(x)
    result = D.plan.columns if D.transposed else D.plan.rows
    return from_rows(function(own_rows(x, D)), rows(result, D.plan), D.plan)


def own_rows(x: torch.Tensor, D: Sharded) -> torch.Tensor:
    """The rows of an operand of ``D @ x`` that the process owns; for a DTensor, a collective."""
    return of_shares(x, D.plan.rows if D.transposed else D.plan.columns, D.plan)


def of_shares(x: torch.Tensor, source: Shares, plan: Plan) -> torch.Tensor:
    """The rows that the process owns; for a DTensor, a collective."""
    if not isinstance(x, DTensor):
        return x
    if x.placements[0].is_replicate():
        return local_copy(x).index_select(0, source.numbers(plan.device))
    return to_rows(x, rows(source, plan), plan)


def summed(part: torch.Tensor, D: Sharded) -> DTensor:
    """The sum of the parts of all processes as a replicated DTensor; a collective.

    The gradient of each part is that of the sum. torch's `from_local` has this gradient too, but
    takes second derivatives, which differ between processes, for those of one.
    """
    return _Summed.apply(part, D.mesh)  # type: ignore[return-value]


def local_copy(x: DTensor) -> torch.Tensor:
    """A replicated DTensor as a tensor of this process; its gradients are summed over all."""
    return _LocalCopy.apply(x, x.device_mesh)  # type: ignore[return-value]


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, mesh: DeviceMesh) -> DTensor:  # type: ignore[override]
        ctx.mesh = mesh
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=mesh.get_group())
        return DTensor.from_local(total, mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx: Any, g: DTensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _LocalCopy.apply(g, ctx.mesh), None  # type: ignore[return-value]


class _LocalCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: DTensor, mesh: DeviceMesh) -> torch.Tensor:  # type: ignore[override]
        ctx.mesh = mesh
        local = x.redistribute(mesh, [Replicate()]).to_local()
        return local.view_as(local)  # not the tensor itself, which would get a graph

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _Summed.apply(g, ctx.mesh), None  # type: ignore[return-value]


def require_dense(name: str, x: Any, D: Sharded) -> torch.Tensor:
    """Refuses what is not a dense tensor on the device of D."""
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or isinstance(x, SparseTensor):
        raise ArgumentKindError(
            f"`{name}` is {checks.describe_kind(x)}; a dense tensor with the rows of this process, "
            "or a DTensor, is accepted. Take the rows of D.column_ids."
        )
    checks.require_same_device(**{"D": D.local_values(), name: x})
    return x


def require_rows(name: str, x: torch.Tensor, own: int, total: int, plan: Plan) -> None:
    """Refuses operands whose number of rows, mesh or placement does not fit."""
    if x.dim() not in (1, 2):
        hint = "Operands are vectors or matrices."
        raise checks.bad_shape(name, tuple(x.shape), "a vector or matrix", hint)
    if isinstance(x, DTensor):
        require_placement(name, x, plan)
        wanted, hint = total, "A DTensor has the rows of all processes."
    else:
        wanted, hint = own, "A process passes the rows of D.column_ids, or a DTensor."
    if x.shape[0] != wanted:
        raise checks.bad_shape(name, tuple(x.shape), f"{wanted} rows", hint)


def require_placement(name: str, x: DTensor, plan: Plan) -> None:
    """Refuses a DTensor on another mesh, or one that is neither replicated nor shared by rows."""
    if x.device_mesh != plan.mesh:
        raise ArgumentValueError(
            f"`{name}` is on {x.device_mesh}; a DTensor on {plan.mesh} is accepted. Make both "
            "on one mesh."
        )
    placement = x.placements[0]
    if not (isinstance(placement, Replicate) or placement.is_shard(0)):
        raise ArgumentValueError(
            f"`{name}` has the placement {placement}; Shard(0) and Replicate() are accepted. "
            f"Call {name}.redistribute(placements=[Shard(0)])."
        )


def require_number(name: str, x: Any, D: Sharded, accepted: str) -> None:
    """Refuses what is not a number, as a tensor or not, or is on another device than D."""
    if isinstance(x, DTensor):
        _require_replicated(name, x, D.plan)
    elif not isinstance(x, (torch.Tensor, int, float, complex)) or (
        isinstance(x, torch.Tensor) and x.dim()
    ):
        raise ArgumentKindError(f"`{name}` is {checks.describe_kind(x)}; {accepted}")
    elif isinstance(x, torch.Tensor) and x.device.type != "cpu":
        checks.require_same_device(**{"D": D.local_values(), name: x})


def _require_replicated(name: str, x: DTensor, plan: Plan) -> None:
    """Refuses a DTensor that is not a number, or not known to every process of the mesh."""
    if x.dim() or x.device_mesh != plan.mesh or not x.placements[0].is_replicate():
        raise ArgumentValueError(
            f"`{name}` is a DTensor of shape {tuple(x.shape)} with {x.placements} on "
            f"{x.device_mesh}; a replicated number on {plan.mesh} is accepted. Such is D.sum()."
        )


def require_own(name: str, x: Any, D: Sharded, hint: str) -> torch.Tensor:
    """Refuses what is not a dense tensor of one process."""
    dense = require_dense(name, x, D)
    if isinstance(dense, DTensor):
        raise ArgumentKindError(
            f"`{name}` is a DTensor; a dense tensor of this process is accepted. {hint}"
        )
    return dense


def agree_on(D: Sharded, name: str, x: Any, *more: object) -> None:
    """Raises in all processes unless each has an operand that fits, of equal columns in all."""

    def check() -> dict[str, object]:
        dense = require_dense(name, x, D)
        require_rows(name, dense, D.local_shape[1], D.shape[1], D.plan)
        checks.require_same_dtype(**{"D": D.local_values(), name: dense})
        return {
            name: describe(dense, tuple(dense.shape[1:])),
            "D": D.in_words(),
            "call": more,
        }

    D.agree(check)


def describe(x: torch.Tensor, columns: tuple[int, ...]) -> str:
    """What must be equal in all processes: kind, dtype, and the sizes of a row."""
    kind = "own rows"
    if isinstance(x, DTensor):
        kind = "a replicated DTensor" if x.placements[0].is_replicate() else "a DTensor"
    width = f" with {columns[0]} columns" if columns else ""
    return f"{kind}{width} {kind_in_words(x)}"


def describe_number(x: Any, values: torch.Tensor) -> str:
    """What must be equal in all processes of a number by which values are multiplied."""
    found = values.new_empty((), dtype=torch.result_type(values, x))
    recorded = isinstance(x, torch.Tensor) and x.requires_grad
    return f"a number {kind_in_words(found.requires_grad_(recorded))}"


def local_rows(D: Sharded) -> SparseTensor:
    """The own rows (own rows, k), with the columns of the whole matrix."""
    plan = D.plan
    row, col = plan.coordinates()[0], plan.entry_columns
    shape = plan.rows.count, plan.shape[1]
    order = torch.argsort(row * max(shape[1], 1) + col)
    pattern = csr(row[order], col[order].to(index_dtype(torch.int32, (*shape, plan.nse))), shape)
    A = on_pattern(D.local_values()[order], pattern)
    return A.t() if D.transposed else A


def full(D: Sharded, rank: int | None) -> SparseTensor | None:
    """The whole matrix, from the rows of all processes."""
    plan = D.plan

    def check() -> dict[str, object]:
        if rank is not None and not (isinstance(rank, int) and 0 <= rank < len(plan.entries)):
            raise ArgumentValueError(
                f"`rank` is {rank!r}; 0 to {len(plan.entries) - 1}, or None for all ranks, is "
                "accepted. It counts within the group of D."
            )
        return {"call": "full", "rank": rank}

    D.agree(check)
    local = local_rows((D.T if D.transposed else D).detach())
    numbers = plan.rows.numbers(plan.device)
    sizes = [
        end - start for start, end in zip(plan.rows.starts, plan.rows.starts[1:], strict=False)
    ]
    gathered = [
        gather(t, of, plan.group, rank)
        for t, of in (
            (numbers, sizes),
            (local._pattern.indices[0].diff().long(), sizes),
            (local._pattern.indices[1], plan.entries),
            (local._vals, plan.entries),
        )
    ]
    if any(t is None for t in gathered):
        return None
    ids, count, col, vals = (t for t in gathered if t is not None)
    row = torch.repeat_interleave(ids, count)
    place = torch.argsort(row, stable=True)
    A = SparseTensor(vals[place], csr(row[place], col[place], plan.shape))
    return A.t() if D.transposed else A


def gather(t: torch.Tensor, sizes: list[int], group: Any, rank: int | None) -> torch.Tensor | None:
    """The rows of all processes, on every process or only on `rank`; a collective."""
    me, t = dist.get_rank(group), in_memory(t)
    parts = []
    for source, size in enumerate(sizes):
        if rank is None:
            part = t if source == me else t.new_empty(size, *t.shape[1:])
            dist.broadcast(numbers_of(part), group=group, group_src=source)
        elif me in (source, rank):
            part = t if source == me else t.new_empty(size, *t.shape[1:])
            if source != rank and me == source:
                dist.send(numbers_of(part), group=group, group_dst=rank)
            elif source != rank:
                dist.recv(numbers_of(part), group=group, group_src=source)
        else:
            continue
        parts.append(part)
    return torch.cat(parts) if rank in (None, me) else None


def gather_rows(D: Sharded, y: torch.Tensor) -> torch.Tensor:
    """All rows of a result, in the order of the whole matrix."""
    plan = D.plan
    shares = plan.columns if D.transposed else plan.rows

    def check() -> dict[str, object]:
        dense = require_own("y", y, D, "Call y.full_tensor().")
        if dense.shape[:1] != (shares.count,):
            hint = "It is a result of D, with the rows of D.row_ids."
            raise checks.bad_shape("y", tuple(dense.shape), f"({shares.count}, n)", hint)
        return {"call": "gather", "y": describe(dense, tuple(dense.shape[1:]))}

    D.agree(check)
    sizes = shares.sizes
    found = gather(y.detach(), sizes, plan.group, None)
    assert found is not None
    if shares.ids is None:
        return found
    ids = gather(shares.ids, sizes, plan.group, None)
    assert ids is not None
    return torch.empty_like(found).index_copy_(0, ids, found)
