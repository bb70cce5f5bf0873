"""Times and memory of products over several processes, beside one process with as many threads.

Rank 0 takes the step of one process in turns with the sharded one, while the others wait.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

import spgrad
from benchmarks.matrices import load
from spgrad.distributed import ShardedMatrix, distribute, exchange
from spgrad.distributed.products import add_far, multiply_own

COLUMNS = 64
"""Columns of x."""


@dataclass(frozen=True)
class Case:
    """What is measured: a matrix, the width of x, a partition, and how many processes."""

    matrix: str
    columns: int
    partition: str
    world: int


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Medians of a case, from a group of processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_work, (case, rounds, folder), nprocs=case.world)
        return {**asdict(case), **torch.load(Path(folder) / "found.pt")}


def _work(rank: int, case: Case, rounds: int, folder: str) -> None:
    cores = len(os.sched_getaffinity(0))
    threads = max(cores // case.world, 1)
    torch.set_num_threads(threads)
    start = f"file://{folder}/start"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=case.world)
    _warm()
    _huge_pages(False)
    before = _at_rest()
    memory = _memory(*_operands(case)[:2], before if rank else None)
    memory["left"] = _at_rest() - before
    _huge_pages(True)
    D, x, A, whole = _operands(case)
    D = D.with_values(D.local_values().requires_grad_())
    x.requires_grad_()
    names = "sharded", "forward", "exchange", "compute", "one"
    times: dict[str, list[float]] = {name: [] for name in names}
    one = _step(A.requires_grad_(), whole.requires_grad_()) if rank == 0 else None
    step = _step(D, x)
    arrived = torch.randn(D.plan.exchange.arriving, case.columns)
    for turn in range(rounds + 1):
        times["sharded"].append(_together(step))
        times["forward"].append(_together(lambda: D.detach() @ x.detach()))
        times["exchange"].append(_together(lambda: D.plan.exchange.start(x.detach()).wait()))
        times["compute"].append(_together(lambda: _multiplied(D, x.detach(), arrived)))
        if one is not None:
            torch.set_num_threads(cores)
            times["one"].append(_timed(one))
            torch.set_num_threads(threads)
        dist.barrier()
        if turn == 0:
            times = {name: [] for name in times}
    delays = _overlaps(step, *(statistics.median(times[name]) for name in ("sharded", "forward")))
    gathered: list[Any] = [None] * case.world
    dist.all_gather_object(gathered, memory)
    if rank == 0:
        ratios = [a / b for a, b in zip(times["one"], times["sharded"], strict=True)]
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        found = {
            "nse": D.nse,
            **medians,
            "model": _modelled(case.world, medians["compute"], medians["exchange"], cores),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "memory": gathered,
            "delays": delays,
            "arriving": D.plan.exchange.arriving,
        }
        torch.save(found, Path(folder) / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def _operands(case: Case) -> tuple[ShardedMatrix, torch.Tensor, Any, torch.Tensor]:
    """A matrix and x on shards, and both of them whole on rank 0."""
    A = spgrad.from_scipy(load(case.matrix, "float32"))
    whole = torch.randn(A.shape[1], case.columns)
    D = distribute(A, partition=case.partition)
    x = D.scatter(whole)
    if dist.get_rank() == 0:
        return D, x, A, whole
    return D, x, None, torch.empty(0)


def _multiplied(D: ShardedMatrix, x: torch.Tensor, arrived: torch.Tensor) -> None:
    """What a product computes, without its exchange."""
    own, *far = D.plan.split(D.local_values().detach())
    add_far(multiply_own(own, x, D.plan), far, _Arrived(arrived), D.plan)  # type: ignore[arg-type]


class _Arrived:
    """Rows that are all there."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.out = rows

    def arrivals(self) -> Iterator[tuple[int, int]]:
        yield 0, len(self.out)


def _modelled(world: int, compute: float, exchange: float, cores: int) -> float:
    """The forward from its parts, which overlap only where cores are free for the exchange."""
    return max(compute, exchange) if world < cores else compute + exchange


def _step(A: Any, x: torch.Tensor) -> Callable[[], None]:
    """Forward and backward, with both gradients."""
    values = A.local_values() if isinstance(A, ShardedMatrix) else A
    g: list[torch.Tensor] = []

    def run() -> None:
        x.grad = values.grad = None
        y = A @ x
        if not g:
            g.append(torch.randn_like(y))
        y.backward(g[0])

    return run


def _timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _together(run: Callable[[], Any]) -> float:
    """The time of the slowest process."""
    dist.barrier()
    taken = torch.tensor(_timed(run), dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def _overlaps(step: Callable[[], None], whole: float, forward: float) -> list[dict[str, float]]:
    """The step where rows arrive late, by shares of the time of a step without delay.

    Steps with and without delay take turns, because the load of a machine changes. A delay can only
    be hidden behind what its own pass computes, so no step is shorter than the longer of delay and
    computation, added up over the passes: `bound` is the step over this.
    """
    found = []
    for share in (0.125, 0.25, 0.5):
        delay = share * whole
        exchanges = 2 * delay  # one forwards and one backwards
        pairs = []
        for _ in range(9):
            plain = _together(step)
            first = forward / whole * plain
            least = max(first, delay) + max(plain - first, delay)
            with _late(delay):
                pairs.append((_together(step), max(plain, exchanges), least))
        ratio = statistics.median(taken / longest for taken, longest, _ in pairs)
        bound = statistics.median(taken / least for taken, _, least in pairs)
        taken = statistics.median(taken for taken, _, _ in pairs)
        found.append({"exchange": exchanges, "step": taken, "ratio": ratio, "bound": bound})
    return found


class _late:  # noqa: N801  # a context manager that reads as a function
    """Rows are taken as arrived later: the last of them some seconds after the first was sent.

    A message is due at its share of this time, as on a network that is slower than this machine.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        seconds, plain = self.seconds, exchange.Pending
        self.plain = plain

        class Late(plain):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                self.begun = time.perf_counter()

            def arrivals(self) -> Iterator[tuple[int, int]]:
                for begin, end in super().arrivals():
                    due = self.begun + seconds * end / len(self.out)
                    time.sleep(max(due - time.perf_counter(), 0))
                    yield begin, end

        exchange.Pending = Late  # type: ignore[misc]

    def __exit__(self, *_: object) -> None:
        exchange.Pending = self.plain  # type: ignore[misc]


def _warm() -> None:
    """Runs products and steps of a small graph, so that what they load is not measured later."""
    generator = torch.Generator().manual_seed(0)
    graph = (torch.rand(600, 600, generator=generator) < 0.1).float()
    D = distribute(spgrad.from_dense(graph).to_sparse_csr())
    x = D.scatter(torch.ones(600, COLUMNS)).requires_grad_()
    size = exchange._MESSAGE
    for bytes_of_message in (size, 1 << 10):
        exchange._MESSAGE = bytes_of_message
        leaf = D.local_values().detach().requires_grad_()
        _step(D.with_values(leaf), x)()
    exchange._MESSAGE = size
    load("tiny", "float32")


def _memory(D: ShardedMatrix, x: torch.Tensor, before: int | None) -> dict[str, float]:
    """Bytes of a rank: what it has to have, what it has at rest, and the peaks; {} on rank 0.

    A product has to have the rows of A, as one CSR matrix with int32 indices, those of x and y, and
    those that arrive. A step has to have the gradients of all of them besides, and for these the
    rows that go back and come back, and a view of A by columns.
    """
    row, value = x.shape[1] * x.element_size(), x.element_size()
    plan, (rows, columns) = D.plan, D.local_shape
    product = (
        plan.nse * (4 + value) + (rows + 1) * 4 + (rows + columns + plan.exchange.arriving) * row
    )
    travelling = len(plan.exchange.send) + plan.exchange.arriving
    gradients = plan.nse * value + (rows + columns + travelling) * row
    views = plan.nse * (4 + 4) + (columns + plan.exchange.arriving) * 4
    rest = _at_rest()
    peaks = []
    leaf, wanted = D.local_values().detach().requires_grad_(), x.detach().requires_grad_()
    step = _step(D.with_values(leaf), wanted)
    step()  # makes the views
    for run in (lambda: D @ x, step):
        leaf.grad = wanted.grad = None
        at = _at_rest()
        Path("/proc/self/clear_refs").write_text("5")
        dist.barrier()
        run()
        peaks.append((_resident("VmHWM"), at))
    if before is None:
        return {}
    return {
        "product": product,
        "step": product + gradients + views,
        "rest": rest - before,
        "product peak": rest - before + peaks[0][0] - peaks[0][1],
        "step peak": peaks[1][0] - before,
    }


def _at_rest() -> int:
    """Resident bytes after all that is free went back to the system."""
    import ctypes

    gc.collect()
    spgrad.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)
    return _resident()


def _huge_pages(wanted: bool) -> None:
    """Whether the system may give pages of 2 MB, by which memory counts in steps of as much."""
    import ctypes

    set_disabled = 41
    ctypes.CDLL(None).prctl(set_disabled, not wanted, 0, 0, 0)


def _resident(field: str = "VmRSS") -> int:
    text = Path("/proc/self/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
