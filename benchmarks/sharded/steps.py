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
from spgrad.distributed.products import add_far
from spgrad.lowering.spmm import spmm


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
    before = _resident()
    A = spgrad.from_scipy(load(case.matrix, "float32"))
    whole = torch.randn(A.shape[1], case.columns)
    D = distribute(A, partition=case.partition)
    x = D.scatter(whole)
    if rank:
        del A, whole
    memory = _memory(D, x, before if rank else None)
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
    delays = _overlaps(step, statistics.median(times["sharded"]))
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


def _multiplied(D: ShardedMatrix, x: torch.Tensor, arrived: torch.Tensor) -> None:
    """What a product computes, without its exchange."""
    own, far = D.plan.halves(D.local_values().detach())
    y = spmm(own, x, D.plan.own)
    add_far(y, far, arrived, D.plan)


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


def _overlaps(step: Callable[[], None], whole: float) -> list[dict[str, float]]:
    """The step where rows arrive late, by shares of the time of a step without delay."""
    found = []
    for share in (0.125, 0.25, 0.5):
        with _late(share * whole):
            times = [_together(step) for _ in range(5)]
        taken = statistics.median(times)
        exchanges = 2 * share * whole  # one forwards and one backwards
        found.append({"exchange": exchanges, "step": taken, "ratio": taken / max(whole, exchanges)})
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
    """Runs a first product, which loads libraries."""
    D = distribute(spgrad.eye(8 * dist.get_world_size()))
    D @ D.scatter(torch.ones(D.shape[1], 4))
    load("tiny", "float32")


def _memory(D: ShardedMatrix, x: torch.Tensor, before: int | None) -> dict[str, float] | None:
    """Bytes of a rank at the peak of a product, and of its rows of A, x, y and those received."""
    row = x.shape[1] * x.element_size()
    parts = [*D.plan.own.indices, *D.plan.far.indices, D.local_values()]
    ideal = sum(t.numel() * t.element_size() for t in parts)
    arriving = D.plan.exchange.arriving
    ideal += (D.local_shape[0] + D.local_shape[1] + arriving) * row
    if before is None:
        dist.barrier()
        D @ x
        return None
    gc.collect()
    _trim()
    Path("/proc/self/clear_refs").write_text("5")
    dist.barrier()
    D @ x
    return {"peak": _resident("VmHWM") - before, "ideal": ideal}


def _trim() -> None:
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)


def _resident(field: str = "VmRSS") -> int:
    text = Path("/proc/self/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
