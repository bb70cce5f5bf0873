"""The process of one competitor: it measures the memory of a step, then times steps on demand."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spgrad.core.compressed import sparse_csr_tensor

RATE = 0.01
MOST = 4 << 30  # bytes that a step may need; beyond that it is not tried
Step = Callable[[], torch.Tensor]


class Competitor(NamedTuple):
    """One way to write the product."""

    library: str
    layout: str
    call: str
    dense: int = 0  # (m, k) float32 tensors in memory at the peak, as measured on small matrices


class Matrix(NamedTuple):
    """The parts of a CSR matrix as NumPy arrays, and the number of columns of the dense operand."""

    crow: Any
    col: Any
    val: Any
    shape: tuple[int, ...]
    width: int


def serve(pipe: Connection, competitor: Competitor, matrix: Matrix, threads: int) -> None:
    """Reports the memory of a step, then the times of steps on demand.

    Args:
        pipe: The connection. Through it the process sends a dict with `memory`, in bytes, and
            `gradient`, the number of values in the gradient of A. For each number of steps that it
            receives, it sends a dict with their `times`; 0 ends the process. A step that fails
            makes it send a dict with `failure`.
        competitor: The competitor whose steps are made.
        matrix: The sparse operand.
        threads: Number of torch's threads.
    """
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # torch's, of layouts in beta state
    with contextlib.suppress(KeyboardInterrupt):  # the demo itself reports the interrupt
        try:
            step = _prepare(competitor, matrix)
            pipe.send(_first_steps(step))
            while count := pipe.recv():
                pipe.send({"times": _times(step, count)})
        except (RuntimeError, MemoryError, ValueError) as error:
            pipe.send({"failure": str(error).splitlines()[0]})


def _prepare(competitor: Competitor, matrix: Matrix) -> Step:
    """A step of the competitor, after small steps have loaded what it loads on first use."""
    m, k = matrix.shape
    room = 4 * m * k * competitor.dense
    if room > min(MOST, _memory() // 2):
        raise MemoryError(f"not tried: {room / 1e9:.0f} GB")
    size = torch.arange(65).numpy()
    tiny = Matrix(size, size[:64], torch.ones(64).numpy(), (64, 64), matrix.width)
    warm = _step(competitor, tiny)
    for _ in range(3):
        warm()
    torch.ones(1 << 17).add_(1)  # starts torch's threads
    return _step(competitor, matrix)


def _memory() -> int:
    """Bytes of memory of the machine; 8 GB if the system can't tell."""
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 << 30


def _step(competitor: Competitor, matrix: Matrix) -> Step:
    """A function that makes one step of gradient descent on A and H, and returns A's gradient."""
    torch.manual_seed(0)
    crow, col, val = (torch.from_numpy(part).clone() for part in matrix[:3])
    A = _operand(competitor, crow, col, val, matrix.shape).requires_grad_()
    H = torch.randn(matrix.shape[1], matrix.width, requires_grad=True)
    G = torch.randn(matrix.shape[0], matrix.width)  # the gradient of the loss in A @ H
    row = torch.repeat_interleave(crow.diff())
    product = torch.sparse.mm if "mm" in competitor.call else torch.matmul
    stored = _sparse_values(A.detach())

    def step() -> torch.Tensor:
        product(A, H).backward(G)
        assert A.grad is not None
        assert H.grad is not None
        gradient, A.grad = A.grad, None
        stored.sub_(_on_elements(gradient, row, col), alpha=RATE)
        H.detach().sub_(H.grad, alpha=RATE)
        H.grad = None
        return gradient

    return step


def _operand(
    competitor: Competitor,
    crow: torch.Tensor,
    col: torch.Tensor,
    val: torch.Tensor,
    shape: tuple[int, ...],
) -> torch.Tensor:
    if competitor.library == "spgrad":
        return sparse_csr_tensor(crow, col, val, shape)
    if competitor.layout == "CSR":
        return torch.sparse_csr_tensor(crow, col, val, shape)
    row = torch.repeat_interleave(crow.diff())
    return torch.sparse_coo_tensor(torch.stack([row, col.long()]), val, shape, is_coalesced=True)


def _on_elements(gradient: torch.Tensor, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
    """The gradient at the specified elements of A, from a sparse or a dense gradient."""
    return gradient[row, col] if gradient.layout == torch.strided else _sparse_values(gradient)


def _sparse_values(A: torch.Tensor) -> torch.Tensor:
    return A._values() if A.layout == torch.sparse_coo else A.values()


def _first_steps(step: Step) -> dict[str, Any]:
    """The most memory that one of three steps takes, and the size of the gradient of A."""
    taken, size = 0, 0
    for _ in range(3):
        before = _reset_peak()
        gradient = step()
        taken = max(taken, _peak() - before)
        dense = gradient.layout == torch.strided
        size = (gradient if dense else _sparse_values(gradient)).numel()
    return {"memory": taken, "gradient": size}


def _times(step: Step, count: int) -> list[float]:
    step()  # wakes threads and caches up
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return times


def _reset_peak() -> int:
    """Returns free memory to the system and resets the peak; gives the bytes in use.

    Otherwise a step that reuses memory which an earlier step has freed would seem to need none.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # only Linux has it
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The peak of memory in use, in bytes, since it was last reset."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
