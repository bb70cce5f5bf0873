"""Sends rows of a sharded tensor to the processes that need them, and back.

Every process owns a contiguous range of rows. An `Exchange` is found once for the rows that each
process needs. After that, one all-to-all sends each row to the processes that need it; its
transpose sends rows back to their owners, who add them up. Each of the two is the derivative of the
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, eq=False)
class Exchange:
    """What this process sends and receives.

    Attributes:
        group: The process group.
        rows: Number of rows that this process owns.
        send: The own rows that it sends, those for process 0 first (int64).
        sent: Number of rows that go to each process.
        received: Number of rows that come from each process.
    """

    group: Any
    rows: int
    send: torch.Tensor
    sent: list[int]
    received: list[int]

    @property
    def arriving(self) -> int:
        """Number of rows that come from all processes."""
        return sum(self.received)

    def start(self, x: torch.Tensor) -> Pending:
        """Begins to send own rows of x; the rows that arrive have the order of `needed`."""
        out = x.new_empty(self.arriving, *x.shape[1:])
        return Pending(self, out, x.index_select(0, self.send), self.received, self.sent)

    def start_back(self, y: torch.Tensor) -> Pending:
        """Begins to return rows to their owners, who receive them in the order of `send`."""
        out = y.new_empty(len(self.send), *y.shape[1:])
        return Pending(self, out, y.contiguous(), self.sent, self.received)

    def add(self, y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Adds rows that came back to own rows y, in place and one after the other."""
        return y.index_add_(0, self.send, rows)


class Pending:
    """Rows that are being sent; keeps their memory alive until they have been."""

    def __init__(
        self,
        exchange: Exchange,
        out: torch.Tensor,
        sent: torch.Tensor,
        arriving: list[int],
        leaving: list[int],
    ) -> None:
        self.out, self.sent = out, sent
        self.work = dist.all_to_all_single(
            numbers_of(out), numbers_of(sent), arriving, leaving, exchange.group, async_op=True
        )

    def wait(self) -> torch.Tensor:
        """The rows that arrived."""
        assert self.work is not None
        self.work.wait()
        return self.out


def numbers_of(t: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as collectives take it: complex numbers as pairs."""
    return torch.view_as_real(t) if t.is_complex() else t


def find_exchange(needed: torch.Tensor, starts: list[int], group: Any) -> Exchange:
    """The exchange by which every process gets the rows that it needs; a collective.

    Args:
        needed: Global numbers of the rows that this process needs, ascending and distinct (int64).
        starts: First row of each process, and the end of the last: (world + 1,).
        group: The process group.
    """
    rank = dist.get_rank(group)
    bounds = torch.tensor(starts, device=needed.device)
    counts = torch.searchsorted(needed, bounds).diff()
    asked = torch.empty_like(counts)
    dist.all_to_all_single(asked, counts, group=group)
    received, sent = counts.tolist(), asked.tolist()
    send = needed.new_empty(sum(sent))
    dist.all_to_all_single(send, needed.contiguous(), sent, received, group=group)
    return Exchange(group, starts[rank + 1] - starts[rank], send - starts[rank], sent, received)


def collect(x: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """The needed rows of x; its gradient goes back to the owners and is added up there."""
    return _Collect.apply(x, exchange)  # type: ignore[return-value]


def give_back(y: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """The sum over all processes of their parts of each own row: the transpose of `collect`."""
    return _GiveBack.apply(y, exchange)  # type: ignore[return-value]


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exchange: Exchange) -> torch.Tensor:  # type: ignore[override]
        ctx.exchange = exchange
        return exchange.start(x).wait()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return give_back(g, ctx.exchange), None


class _GiveBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, exchange: Exchange) -> torch.Tensor:  # type: ignore[override]
        ctx.exchange = exchange
        rows = exchange.start_back(y).wait()
        return exchange.add(y.new_zeros(exchange.rows, *y.shape[1:]), rows)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return collect(g, ctx.exchange), None
