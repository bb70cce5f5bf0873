"""The whole matrix, or all rows of a result, from the rows of all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from spgrad.core import checks
from spgrad.core.pattern import index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.distributed.dtensors import describe, local_rows, require_own
from spgrad.distributed.exchange import in_memory, numbers_of
from spgrad.distributed.plan import csr
from spgrad.distributed.sharded import Sharded
from spgrad.errors import ArgumentValueError


def full(D: Sharded, rank: int | None) -> SparseTensor | None:
    """The whole matrix, from the rows of all processes."""
    plan = D.plan

    def check() -> dict[str, object]:
        of_a_rank = isinstance(rank, int) and not isinstance(rank, bool)
        if rank is not None and not (of_a_rank and 0 <= rank < len(plan.entries)):
            given = repr(rank) if isinstance(rank, (int, str)) else checks.describe_kind(rank)
            raise ArgumentValueError(
                f"`rank` is {given}; 0 to {len(plan.entries) - 1}, or None for all ranks, is "
                "accepted. It counts within the group of D."
            )
        return {"call": "full", "rank": rank}

    D.agree(check)
    local = local_rows((D.T if D.transposed else D).detach())
    numbers = plan.rows.numbers(plan.device)
    sizes = [
        end - start for start, end in zip(plan.rows.starts, plan.rows.starts[1:], strict=False)
    ]
    same_on_all = index_dtype(torch.int32, (*plan.shape, max(plan.entries)))
    columns = local._pattern.indices[1].to(same_on_all)
    gathered = [
        gather(t, of, plan.group, rank)
        for t, of in (
            (numbers, sizes),
            (local._pattern.indices[0].diff().long(), sizes),
            (columns, plan.entries),
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
