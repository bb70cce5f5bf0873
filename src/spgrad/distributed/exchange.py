"""Sends rows of a sharded tensor to the processes that need them, and back.

Every process owns a contiguous range of rows. An `Exchange` is found once for the rows that each
process needs. After that, rows travel from their owners to the processes that need them; the
transpose sends rows back to their owners, which add them up. Each of these two operations is the
derivative of the other.

Few rows travel in one all-to-all. If there are more, and they are in the memory of a CPU, they
travel in messages, so that products with the first rows run while the last rows travel. If the
rows of a message are contiguous, they are sent without a copy. This holds for most messages of
meshes, and of graphs of which nearly every row is sent. It holds for all messages that go back,
because a product computes their rows one after the other. The rows of other messages are copied,
one message at a time.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from spgrad.core.pattern import index_dtype
from spgrad.torch_protocol.func_transforms import Function

_MESSAGE = 1 << 20
"""Bytes of a message, unless a share of the rows for one process are more."""

_SHARE = 16
"""Most messages from one process to another."""

_FEW = 1
"""Rows of so many messages or fewer travel in one all-to-all: dividing them would take longer."""

_TAG = 0x59A2
"""Tells these messages from others between the same processes; their numbers are added."""

_SENT = {
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
"""The dtypes that gloo and NCCL both send."""


class Message(NamedTuple):
    """Rows `begin` to `end` of a buffer, which go to or come from one process.

    `number` counts the messages between two processes, which may leave in another order.
    """

    peer: int
    begin: int
    end: int
    number: int


def messages(counts: list[int], like: torch.Tensor, first: int = 0) -> list[Message]:
    """The messages of rows of which `counts` go to or come from each process, in their order.

    Sender and receiver find the same messages, because both know the number of rows that are sent.

    Args:
        counts: Number of rows of each process; those of process 0 are first in the buffer.
        like: Tells the bytes of a row.
        first: The process whose messages are first.
    """
    ends, size = list(accumulate(counts)), _row_bytes(like)
    if size == 0:
        return []
    found = []
    for i in range(len(counts)):
        peer = (first + i) % len(counts)
        begin, end = ends[peer] - counts[peer], ends[peer]
        most = max(_MESSAGE // size, -(-counts[peer] // _SHARE), 1)
        step = -(-counts[peer] // max(-(-counts[peer] // most), 1))  # about equal sizes
        for number, at in enumerate(range(begin, end, max(step, 1))):
            found.append(Message(peer, at, min(at + step, end), number))
    return found


def _row_bytes(t: torch.Tensor) -> int:
    return t.element_size() * t.shape[1:].numel()


@dataclass(frozen=True, eq=False)
class Exchange:
    """What this process sends and receives.

    Attributes:
        group: The process group.
        rows: Number of rows that this process owns.
        send: The own rows that it sends, those for process 0 first (int32 if that suffices).
        sent: Number of rows that go to each process.
        received: Number of rows that come from each process.
        most: Number of rows that the process sends or receives that sends or receives most.
    """

    group: Any
    rows: int
    send: torch.Tensor
    sent: list[int]
    received: list[int]
    most: int

    @property
    def arriving(self) -> int:
        """Number of rows that come from all processes."""
        return sum(self.received)

    def start(self, x: torch.Tensor) -> Pending:
        """Begins to send own rows of x; the rows that arrive have the order of `needed`."""
        out = x.new_empty(self.arriving, *x.shape[1:])
        pending = Pending(self.group, out, self.received, self.sent)
        if self._few(x):
            pending.send(in_memory(x.index_select(0, self.send)))
        else:
            pending.send_messages(in_memory(x.detach()), self.send)
        return pending

    def start_back(self, rows: torch.Tensor, ends: Iterable[int] = ()) -> Pending:
        """Begins to return rows to their owners, who receive them in the order of `send`.

        Args:
            rows: The rows, contiguous.
            ends: Computes the rows: those before each number are there when it is given. Empty if
                all rows are there.
        """
        out = rows.new_empty(len(self.send), *rows.shape[1:])
        pending = Pending(self.group, out, self.sent, self.received)
        if self._few(rows):
            for _ in ends:
                pass
            pending.send(in_memory(rows))
        else:
            pending.send_computed(rows, itertools.chain(ends, [len(rows)]))
        return pending

    def add(self, y: torch.Tensor, pending: Pending) -> torch.Tensor:
        """Adds rows that come back to own rows y, in place, in the order of `send`."""
        for begin, end in pending.arrivals():
            y.index_add_(0, self.send[begin:end], pending.out[begin:end])
        return y

    def _few(self, x: torch.Tensor) -> bool:
        """Whether rows like these travel together; all processes find the same."""
        return self.most * _row_bytes(x) <= _FEW * _MESSAGE or x.device.type != "cpu"


class Pending:
    """Rows that are being sent, and memory for those that arrive.

    Attributes:
        out: The rows that arrive; those of `arrivals` are there.
    """

    def __init__(
        self, group: Any, out: torch.Tensor, arriving: list[int], leaving: list[int]
    ) -> None:
        self.group, self.out = group, out
        self._arriving, self._leaving = arriving, leaving
        self._receives: deque[tuple[Message, Any]] = deque()
        self._sends: deque[Any] = deque()
        self._copying: Future[None] | None = None

    def send(self, rows: torch.Tensor) -> None:
        """Sends all rows that leave, in one all-to-all."""
        self._rows = rows  # in memory until they have left
        work = dist.all_to_all_single(
            numbers_of(self.out),
            numbers_of(rows),
            self._arriving,
            self._leaving,
            self.group,
            async_op=True,
        )
        self._receives.append((Message(0, 0, len(self.out), 0), work))

    def send_messages(self, x: torch.Tensor, rows: torch.Tensor) -> None:
        """Sends these rows of x in messages; another thread copies those that lie apart."""
        self._rows = x
        self._receive()
        # those for the next process are first, so that not all processes send to the first
        leaving = messages(self._leaving, self.out, dist.get_rank(self.group) + 1)
        apart: list[Message] = []
        for message, first in zip(leaving, _firsts(leaving, rows), strict=True):
            if first is None:
                apart.append(message)
            else:
                self._isend(x[first : first + message.end - message.begin], message)
        if apart:
            self._send_copies(x, rows, apart)

    def _send_copies(self, x: torch.Tensor, rows: torch.Tensor, leaving: list[Message]) -> None:
        most = max(message.end - message.begin for message in leaving)
        with torch.inference_mode(mode=False):  # the other thread is not in that mode
            room = torch.empty(most, *x.shape[1:], dtype=x.dtype, device=x.device)

        def run() -> None:
            for message in leaving:
                copy = room[: message.end - message.begin]
                torch.index_select(x, 0, rows[message.begin : message.end], out=copy)
                _isend(copy, self.group, message).wait()

        self._copying = _background(os.getpid()).submit(run)

    def send_computed(self, rows: torch.Tensor, ends: Iterable[int]) -> None:
        """Sends rows in messages, those before each of `ends` when it is given."""
        self._rows = rows
        self._receive()
        leaving = deque(messages(self._leaving, rows))
        for end in ends:
            while leaving and leaving[0].end <= end:
                message = leaving.popleft()
                self._isend(rows[message.begin : message.end], message)

    def arrivals(self) -> Iterator[tuple[int, int]]:
        """Rows [begin, end) of `out` as they arrive, in the order of their numbers, each once.

        That order is the same in every call. It ends when all rows have left, too.
        """
        while self._receives:
            message, work = self._receives.popleft()
            work.wait()
            yield message.begin, message.end
        if self._copying is not None:
            self._copying.result()
            self._copying = None
        while self._sends:
            self._sends.popleft().wait()

    def wait(self) -> torch.Tensor:
        """The rows that arrived."""
        for _ in self.arrivals():
            pass
        return self.out

    def _receive(self) -> None:
        numbers = numbers_of(self.out)
        for message in messages(self._arriving, self.out):
            rows = numbers[message.begin : message.end]
            tag = _TAG + message.number
            work = dist.irecv(rows, group=self.group, tag=tag, group_src=message.peer)
            self._receives.append((message, work))

    def _isend(self, rows: torch.Tensor, message: Message) -> None:
        self._sends.append(_isend(rows, self.group, message))


class _Background(threading.Thread):
    """Runs functions one after the other, as long as the process lives.

    A daemon: a process that fails does not wait for rows that no other process will take. Python
    ends such a thread wherever it is, and the process with it if that is in code of torch, so the
    process waits two seconds for it.
    """

    def __init__(self) -> None:
        super().__init__(name="spgrad-exchange", daemon=True)
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self.start()
        atexit.register(self._end)

    def _end(self) -> None:
        self._calls.put(None)
        self.join(timeout=2)

    def submit(self, function: Callable[[], None]) -> Future[None]:
        """Runs a function soon; the result of the future raises what it raised."""
        future: Future[None] = Future()
        self._calls.put((function, future))
        return future

    def run(self) -> None:
        """Runs the functions."""
        while (call := self._calls.get()) is not None:
            function, future = call
            try:
                with torch.no_grad():
                    function()
                future.set_result(None)
            except BaseException as error:  # noqa: BLE001  # raised where the future is asked
                future.set_exception(error)
            del call, function, future


@cache
def _background(_: int) -> _Background:
    """The thread of the process with this number; a forked process has none."""
    return _Background()


def in_memory(t: torch.Tensor) -> torch.Tensor:
    """The numbers as they are sent: side by side, and conjugated where that was put off."""
    return t.resolve_conj().resolve_neg().contiguous()


def _isend(rows: torch.Tensor, group: Any, message: Message) -> Any:
    tag = _TAG + message.number
    return dist.isend(numbers_of(rows), group=group, tag=tag, group_dst=message.peer)


def _firsts(leaving: list[Message], rows: torch.Tensor) -> list[int | None]:
    """The first row of each message whose rows lie side by side; None for the others."""
    begins, ends = (rows.new_tensor([message[i] for message in leaving]) for i in (1, 2))
    first, last = rows[begins].tolist(), rows[ends - 1].tolist()  # the rows of a message ascend
    return [
        low if high - low == message.end - message.begin - 1 else None
        for message, low, high in zip(leaving, first, last, strict=True)
    ]


def numbers_of(t: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as it is sent: complex numbers as pairs, others as bytes.

    Collectives send these bytes and do not compute with them.
    """
    if t.is_complex():
        return torch.view_as_real(t)
    return t if t.dtype in _SENT else t.unsqueeze(-1).view(torch.uint8)


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
    most = torch.tensor(max(sum(sent), sum(received)), device=needed.device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group)
    rows = starts[rank + 1] - starts[rank]
    send = (send - starts[rank]).to(index_dtype(torch.int32, (rows,)))
    return Exchange(group, rows, send, sent, received, int(most))


def collect(x: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """The needed rows of x; its gradient goes back to the owners and is added up there."""
    return _Collect.apply(x, exchange)  # type: ignore[return-value]


def give_back(y: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """The sum over all processes of their parts of each own row: the transpose of `collect`."""
    return _GiveBack.apply(y, exchange)  # type: ignore[return-value]


class _Collect(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exchange: Exchange) -> torch.Tensor:  # type: ignore[override]
        ctx.exchange = exchange
        return exchange.start(x).wait()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return give_back(g, ctx.exchange), None


class _GiveBack(Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, exchange: Exchange) -> torch.Tensor:  # type: ignore[override]
        ctx.exchange = exchange
        pending = exchange.start_back(in_memory(y))
        return exchange.add(y.new_zeros(exchange.rows, *y.shape[1:]), pending)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return collect(g, ctx.exchange), None
