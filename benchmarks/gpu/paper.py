"""Expected bytes and occupancy of the Triton kernels, computed without a GPU.

``python -m benchmarks.gpu.paper`` compiles every kernel for two GPUs and prints a table. It runs no
kernel and needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.gpu import ahead, traffic
from benchmarks.gpu.report import table
from benchmarks.gpu.traffic import Moved, Sizes

ROWS, ENTRIES, HEADS, BLOCK = 18_660, 1_581_554, 8, 16
"""As large as the graph `social`; the blocks have as many entries together."""
COLUMNS = (32, 64, 128, 256)


class Machine(NamedTuple):
    """A GPU as its maker describes it."""

    name: str
    target: str
    bandwidth: float  # bytes a second
    cache: int  # bytes of L2
    shared: int  # bytes of shared memory of a multiprocessor
    multiprocessors: int
    registers: int = 65_536  # of a multiprocessor
    warps: int = 64
    programs: int = 32


MACHINES = (
    Machine("H100 SXM", "sm_90", 3.35e12, 50_000_000, 228 * 1024, 132),
    Machine("A100 40 GB", "sm_80", 1.555e12, 40_000_000, 164 * 1024, 108),
)
_PARTS = 4  # of a multiprocessor, each with a quarter of the registers and of the warps
_OWN = 1024  # bytes of shared memory that the system takes of each program


def programs(machine: Machine, registers: int, shared: int, warps: int) -> int:
    """How many programs a multiprocessor holds at a time.

    Registers are given to a thread by 8, so to a warp by 256; shared memory by 128 bytes.
    """
    of_warp = 32 * -(-max(registers, 1) // 8) * 8
    by_registers = _PARTS * (machine.registers // _PARTS // of_warp) // warps
    by_shared = machine.shared // (-(-(shared + _OWN) // 128) * 128)
    return min(by_registers, by_shared, machine.warps // warps, machine.programs)


class Paper(NamedTuple):
    """A kernel: its operands, which stay empty, and the bytes that it moves."""

    operands: Callable[[Any, int], tuple[Any, ...]]
    moved: Callable[[Sizes], Moved]
    heads: int = 1
    blocked: bool = False
    dense: bool = True
    passes: int = 1  # one after the other, each of which gathers from arrays of its own


class _Empty:
    """Makes operands of a dtype on the default device, by name."""

    def __init__(self, dtype: torch.dtype, columns: int, blocked: bool) -> None:
        lines, entries = ROWS, ENTRIES
        if blocked:
            lines, entries = ROWS // BLOCK, ENTRIES // BLOCK**2
        index = torch.int32
        self.ptr = torch.empty(lines + 1, dtype=index)
        self.idx, self.perm = (torch.empty(entries, dtype=index) for _ in range(2))
        self.by_rows = self.ptr, self.idx, None
        self.by_cols = self.ptr, self.idx, self.perm
        self.val = torch.empty(entries * (BLOCK**2 if blocked else 1), dtype=dtype)
        self.by_head = torch.empty(entries, HEADS, dtype=dtype)
        self.rows = torch.empty(lines * (BLOCK if blocked else 1), columns, dtype=dtype)
        self.number = torch.empty(lines, HEADS, dtype=dtype)
        self.sums = torch.empty(lines, HEADS, dtype=torch.float32)
        self.one_head = torch.empty(1, lines, columns, dtype=dtype)
        self.of_row = torch.empty(1, lines, dtype=torch.float32)


def _gradients(e: Any, n: int) -> tuple[Any, ...]:
    views = *e.by_rows, *e.by_cols, None
    return *views, *[e.one_head] * 4, e.of_row, e.of_row, n**-0.5


def _additive(view: Any, e: Any) -> tuple[Any, ...]:
    return *view, None, e.number, e.number, e.rows, 0.2


def _additive_gradients(e: Any, n: int) -> tuple[Any, ...]:
    return *_additive(e.by_cols, e), e.rows, e.rows, e.sums, e.sums, e.rows, e.sums


KERNELS: dict[str, Paper] = {
    "spmm": Paper(lambda e, n: (*e.by_rows, e.val, e.rows), traffic.spmm),
    "sddmm": Paper(lambda e, n: (*e.by_rows, e.rows, e.rows), traffic.sddmm),
    "spmm_sddmm": Paper(
        lambda e, n: (*e.by_cols, e.val, e.rows, e.rows), traffic.spmm_sddmm
    ),
    "heads_spmm": Paper(lambda e, n: (*e.by_rows, e.by_head, e.rows), traffic.spmm, HEADS),
    "heads_sddmm": Paper(
        lambda e, n: (*e.by_rows, e.rows, e.rows, HEADS), traffic.sddmm, HEADS
    ),
    "segment_softmax": Paper(
        lambda e, n: (e.ptr, None, e.val, False), traffic.softmax, dense=False
    ),
    "segment_softmax_backward": Paper(
        lambda e, n: (e.ptr, None, e.val, e.val, False), traffic.softmax_backward, dense=False
    ),
    "attention": Paper(
        lambda e, n: (*e.by_rows, None, *[e.one_head] * 3, n**-0.5), traffic.attention
    ),
    "attention_backward": Paper(_gradients, traffic.attention_backward, passes=2),
    "additive_attention": Paper(
        lambda e, n: (*_additive(e.by_rows, e), True), traffic.additive_attention_split, HEADS
    ),
    "additive_attention_backward": Paper(
        _additive_gradients, traffic.additive_attention_backward, HEADS
    ),
    "block_spmm": Paper(
        lambda e, n: (*e.by_rows, e.val, e.rows, BLOCK, BLOCK, False), traffic.block_spmm,
        blocked=True,
    ),
    "block_sddmm": Paper(
        lambda e, n: (*e.by_rows, e.rows, e.rows, BLOCK, BLOCK, False), traffic.block_sddmm,
        blocked=True,
    ),
}  # fmt: skip


class Fits(NamedTuple):
    """The most that one of the kernels which a call launches takes, and how many programs fit."""

    registers: int
    programs: int
    warps: int  # of a program
    spilled: int


def fits(name: str, machine: Machine, dtype: torch.dtype, columns: int) -> Fits:
    """What the kernels of a call take when they are compiled for the machine."""
    paper = KERNELS[name]
    with torch.device("meta"):  # there is no data to read
        args = paper.operands(_Empty(dtype, columns, paper.blocked), columns)
    found = [
        ahead.taken(launch, machine.target, dtype, columns) for launch in ahead.launches(name, args)
    ]
    fewest = min(found, key=lambda t: programs(machine, t.registers, t.shared, t.warps) * t.warps)
    return Fits(
        max(t.registers for t in found),
        programs(machine, fewest.registers, fewest.shared, fewest.warps),
        fewest.warps,
        max(t.spilled for t in found),
    )


def sizes(name: str, dtype: torch.dtype, columns: int) -> Sizes:
    """Of the operands of a kernel."""
    paper, size = KERNELS[name], torch.empty(0, dtype=dtype).element_size()
    block = BLOCK if paper.blocked else 1
    return Sizes(ROWS, ROWS, ENTRIES, columns, size, paper.heads, block)


def _line(name: str, dtype: torch.dtype, columns: int) -> list[str]:
    moved = KERNELS[name].moved(sizes(name, dtype, columns))
    k = str(columns) if KERNELS[name].dense else "-"
    line = [name, k, f"{moved.far / 1e6:.0f}", f"{moved.near / 1e6:.0f}"]
    for machine in MACHINES:
        taken = fits(name, machine, dtype, columns)
        far, near = (1e6 * count / machine.bandwidth for count in (moved.far, moved.near))
        held = f"{taken.programs} x {taken.warps}"
        more = "*" if moved.source > machine.cache * KERNELS[name].passes else ""
        line += [f"{far:.0f}, {near:.0f}{more}", str(taken.registers), held, str(taken.spilled)]
    return line


def markdown(names: list[str], dtype: torch.dtype, columns: list[int]) -> str:
    """The table."""
    head = "kernel | k | MB, far | near"
    for machine in MACHINES:
        head += f" | {machine.name}: µs, far, near | registers | programs x warps | spilled"
    rows = (
        _line(name, dtype, k)
        for name in names
        for k in (columns if KERNELS[name].dense else columns[:1])
    )
    lines = table(head, rows)
    if any("*" in line for line in lines):
        lines += ["", "\\* The rows that entries ask for are more than the L2 holds."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the table, and the kernels whose bytes have no formula."""
    from spgrad.kernels.triton import MODULES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.paper", description=__doc__)
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--columns", nargs="+", type=int, default=list(COLUMNS))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    given = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)  # which leaves nothing to compile
    there = [name for name in given.kernel if name in MODULES]
    sys.stdout.write(markdown(there, getattr(torch, given.dtype), given.columns))
    others = sorted(MODULES.keys() - KERNELS.keys())
    if others:
        sys.stdout.write(f"\nWithout a line here: {', '.join(others)}.\n")


if __name__ == "__main__":
    main()
