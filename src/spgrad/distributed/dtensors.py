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
)
from spgrad.distributed.plan import Plan, csr
from spgrad.distributed.sharded import Sharded, kind_in_words
from spgrad.distributed.shares import Shares, even_starts
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.torch_protocol.compile import lasting
from spgrad.torch_protocol.func_transforms import Derived


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
        with lasting():
            plan.kept[name] = find()
    return plan.kept[name]


def find_move(ids: torch.Tensor, total: int, plan: Plan) -> Move:
    """The move of rows with these numbers; a collective."""
    needed, place = ids.sort()
    starts = even_starts(total, len(plan.entries))
    return Move(find_exchange(needed, starts, plan.group), place, total)


def to_rows(x: DTensor, move: Move, plan: Plan) -> torch.Tensor:
    """The rows of a DTensor that the process owns; a collective."""
    local: torch.Tensor = _OwnRows.apply(x, plan.mesh)  # type: ignore[assignment]
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
    return _AllRows.apply(y, plan.mesh, shape)  # type: ignore[return-value]


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


def own_values(values: torch.Tensor, plan: Plan) -> torch.Tensor:
    """The values of the own entries; for a DTensor, a collective."""
    if not isinstance(values, DTensor):
        return values
    if values.placements[0].is_replicate():
        return local_copy(values).index_select(0, plan.entry_ids)
    return to_rows(values, entries(plan), plan)


def summed(part: torch.Tensor, D: Sharded) -> DTensor:
    """The sum of the parts of all processes as a replicated DTensor; a collective.

    The gradient of each part is that of the sum. torch's `from_local` has this gradient too, but
    takes second derivatives, which differ between processes, for those of one.
    """
    return _Summed.apply(part, D.mesh)  # type: ignore[return-value]


def local_copy(x: DTensor) -> torch.Tensor:
    """A replicated DTensor as a tensor of this process; its gradients are summed over all."""
    return _LocalCopy.apply(x, x.device_mesh)  # type: ignore[return-value]


class _Summed(Derived):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, mesh: DeviceMesh) -> DTensor:  # type: ignore[override]
        ctx.mesh = mesh
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=mesh.get_group())
        return DTensor.from_local(total, mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx: Any, g: DTensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _LocalCopy.apply(g, ctx.mesh), None  # type: ignore[return-value]


class _LocalCopy(Derived):
    @staticmethod
    def forward(ctx: Any, x: DTensor, mesh: DeviceMesh) -> torch.Tensor:  # type: ignore[override]
        ctx.mesh = mesh
        local = x.redistribute(mesh, [Replicate()]).to_local()
        return local.view_as(local)  # not the tensor itself, which would get a graph

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _Summed.apply(g, ctx.mesh), None  # type: ignore[return-value]


class _OwnRows(Derived):
    """The rows of a DTensor that `Shard(0)` gives this process.

    torch's `redistribute` and `to_local` give the same rows. Where a gradient has another placement
    than the tensor, as that of a single row has, they lose the graph of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: DTensor, mesh: DeviceMesh) -> torch.Tensor:  # type: ignore[override]
        ctx.mesh, ctx.shape = mesh, x.shape
        local = x.redistribute(mesh, [Shard(0)]).to_local()
        return local.view_as(local)  # not the tensor itself, which would get a graph

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _AllRows.apply(g, ctx.mesh, ctx.shape), None  # type: ignore[return-value]


class _AllRows(Derived):
    """The DTensor of this shape with `Shard(0)` of which each process has its rows."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, local: torch.Tensor, mesh: DeviceMesh, shape: torch.Size
    ) -> DTensor:
        ctx.mesh = mesh
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            in_memory(local), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, g: DTensor
    ) -> tuple[torch.Tensor, None, None]:
        return _OwnRows.apply(g, ctx.mesh), None, None  # type: ignore[return-value]


def is_dense(x: object) -> bool:
    """Whether x is a tensor in one block of memory; a DTensor is one in each process."""
    if not isinstance(x, torch.Tensor) or isinstance(x, SparseTensor):
        return False
    return x.layout == torch.strided and not x.is_nested


def require_dense(name: str, x: Any, D: Sharded) -> torch.Tensor:
    """Refuses what is not a dense tensor on the device of D."""
    if not is_dense(x):
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
    rows = x.shape[0]
    if not placement.is_replicate():
        starts = even_starts(rows, len(plan.entries))
        rows = starts[plan.rows.rank + 1] - starts[plan.rows.rank]
    local, wanted = tuple(x._local_tensor.shape), (rows, *x.shape[1:])
    if local != wanted:
        raise ArgumentValueError(
            f"`{name}` has shape {tuple(x.shape)}, and in this process {local}; {wanted} there, "
            f"as {placement} has it, is accepted. Make it with "
            "torch.distributed.tensor.distribute_tensor."
        )


def require_dtype_of(D: Sharded, name: str, x: torch.Tensor) -> None:
    """Refuses an operand of another dtype than D."""
    if x.dtype == D.dtype:
        return
    how = f"{name}.to({D.dtype})"
    if checks.reaches(x.dtype, D.dtype):
        how = f"D.map(lambda values: values.to({x.dtype}))"
    raise ArgumentValueError(
        f"`{name}` has dtype {checks.short(x.dtype)}; `D` has {checks.short(D.dtype)}, and one "
        f"dtype for all is accepted. Convert with {how}."
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
        require_dtype_of(D, name, dense)
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
    """What must be equal in all processes of a number by which values are multiplied.

    The number in a tensor is not compared, as that may lie in the memory of a GPU, or be one of
    several in a transform.
    """
    found = values.new_empty((), dtype=torch.result_type(values, x))
    if isinstance(x, torch.Tensor):
        return f"a number {kind_in_words(found.requires_grad_(x.requires_grad))}"
    return f"the number {x if isinstance(x, complex) else float(x)} {kind_in_words(found)}"


def local_rows(D: Sharded) -> SparseTensor:
    """The own rows (own rows, k), with the columns of the whole matrix."""
    plan = D.plan
    row, col = plan.coordinates()[0], plan.entry_columns
    shape = plan.rows.count, plan.shape[1]
    order = torch.argsort(row * max(shape[1], 1) + col)
    pattern = csr(row[order], col[order].to(index_dtype(torch.int32, (*shape, plan.nse))), shape)
    A = on_pattern(D.local_values()[order], pattern)
    return A.t() if D.transposed else A
