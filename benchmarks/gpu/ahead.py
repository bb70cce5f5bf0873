"""Compiles the Triton kernels without running them, and prints the registers and memory they take.

The functions of the kernels run on operands without data. Each launch is recorded and compiled for
the target GPU. ``python -m benchmarks.gpu.ahead`` prints a line of JSON for each launch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
_DTYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
_ROWS, _ENTRIES, _HEADS = 512, 8192, 8


class Launch(NamedTuple):
    """A kernel as it was launched: its arguments by name, and options of the compiler."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]


class Taken(NamedTuple):
    """Registers and memory of a program of a compiled kernel."""

    kernel: str
    target: str
    dtype: str
    columns: int
    warps: int
    registers: int  # of a thread
    spilled: int  # bytes of a thread
    shared: int  # bytes


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Kernels that are launched in the block are noted, and not run."""
    from triton.runtime.jit import JITFunction

    launches: list[Launch] = []
    options = ("num_warps", "num_stages", "enable_fp_fusion")

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        of_compiler = {name: kwargs.pop(name) for name in options if name in kwargs}
        launches.append(
            Launch(self, {**dict(zip(self.arg_names, args, strict=False)), **kwargs}, of_compiler)
        )

    run, JITFunction.run = JITFunction.run, note
    try:
        yield launches
    finally:
        JITFunction.run = run


def _type_of(value: Any, path: tuple[int, ...], constants: dict[Any, Any], attrs: Any) -> Any:
    """The type of an argument as Triton writes it; notes constants, and pointers to whole lines."""
    if isinstance(value, torch.Tensor):
        attrs[path] = [["tt.divisibility", 16]]
        return f"*{_DTYPES[value.dtype]}"
    if isinstance(value, tuple):
        types = [_type_of(v, (*path, at), constants, attrs) for at, v in enumerate(value)]
        return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
    if isinstance(value, bool) or value is None:
        constants[path] = value
        return "constexpr"
    return "i32" if isinstance(value, int) else "fp32"


def compiled(launch: Launch, target: str) -> Any:
    """The kernel of a launch, compiled for a target."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, Any] = {}
    constants: dict[Any, Any] = {}
    attrs: dict[Any, Any] = {}
    for at, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr:
            constants[at,] = value
            signature[parameter.name] = "constexpr"
        else:
            signature[parameter.name] = _type_of(value, (at,), constants, attrs)
    source = ASTSource(launch.kernel, signature, constants, attrs)
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=launch.options)


def _of_cubin(cubin: bytes) -> tuple[int, int, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = {name: int(size) for name, size in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", text)}
    return found["REG"], found["STACK"] + found["LOCAL"], found["SHARED"]


def _of_amdgcn(text: str) -> tuple[int, int, int]:
    def field(name: str) -> int:
        return max(int(size) for size in re.findall(rf"\.{name}:\s+(\d+)", text))

    return field("vgpr_count"), field("private_segment_fixed_size"), 0


def taken(launch: Launch, target: str, dtype: torch.dtype, columns: int) -> Taken:
    """Registers and memory of the kernel of a launch on a target."""
    made = compiled(launch, target)
    if "cubin" in made.asm:
        registers, spilled, shared = _of_cubin(made.asm["cubin"])
    else:
        registers, spilled, shared = _of_amdgcn(made.asm["amdgcn"])
    shared = max(shared, made.metadata.shared)
    name = launch.kernel.__name__
    args = name, target, _DTYPES[dtype], columns, made.metadata.num_warps
    return Taken(*args, registers, spilled, shared)


def calls(
    dtype: torch.dtype, index: torch.dtype, n: int, block: int = 16
) -> dict[str, tuple[Any, ...]]:
    """{kernel: operands} with rows of n columns, on the meta device: there is no data to read.

    Without products of blocks for float64, which no Triton kernel has.
    """
    with torch.device("meta"):
        found = _operands(dtype, index, n, block)
    if dtype == torch.float64:
        return {name: args for name, args in found.items() if not name.startswith("block")}
    return found


def _operands(
    dtype: torch.dtype, index: torch.dtype, n: int, block: int
) -> dict[str, tuple[Any, ...]]:
    """What `calls` gives, on the default device."""
    m, nse, heads = _ROWS, _ENTRIES, _HEADS
    ptr, idx, perm = (torch.empty(size, dtype=index) for size in (m + 1, nse, nse))
    val, rows = torch.empty(nse, dtype=dtype), torch.empty(m, n, dtype=dtype)
    by_head, wide = torch.empty(nse, heads, dtype=dtype), torch.empty(m, heads * n, dtype=dtype)
    view = ptr, idx, perm
    q, lse = torch.empty(heads, m, min(n, 256), dtype=dtype), torch.empty(heads, m, dtype=dtype)
    lse = lse if dtype == torch.float64 else lse.float()
    bias = torch.empty(heads // 2, nse, dtype=dtype)
    values = torch.empty(nse, n, dtype=dtype)
    number = torch.empty(m, heads, dtype=dtype)
    features = torch.empty(m, heads * min(n, 256), dtype=dtype)
    scored = *view, by_head, number, number, features
    sums = torch.empty(m, heads, dtype=lse.dtype)
    of_results = features, features, sums, sums, features, sums
    of_blocks = torch.empty(block**2 * nse, dtype=dtype)
    tall = torch.empty(block * m, n, dtype=dtype)
    return {
        "spmm": (*view, val, rows),
        "sddmm": (*view, rows, rows),
        "spmm_sddmm": (*view, val, rows, rows),
        "heads_spmm": (*view, by_head, wide),
        "heads_sddmm": (*view, wide, wide, heads),
        "attention": (*view, bias, *[q] * 3, 0.5),
        "attention_backward": (*view, *view, bias, *[q] * 4, lse, lse, 0.5),
        "additive_attention": (*scored, 0.2, True),
        "additive_attention_backward": (*scored, 0.2, *of_results),
        "segment_softmax": (ptr, perm, values, False),
        "segment_softmax_backward": (ptr, perm, values, values, False),
        "block_spmm": (*view, of_blocks, tall, block, block, True),
        "block_sddmm": (*view, tall, tall, block, block, True),
    }


def launches(name: str, args: tuple[Any, ...]) -> list[Launch]:
    """The different kernels that the function of this name launches."""
    from spgrad.kernels.declare import LAUNCHED
    from spgrad.kernels.triton import MODULES

    importlib.import_module(MODULES[name])
    with recorded() as made:
        LAUNCHED[name](*args)
    different: dict[Any, Launch] = {}
    for launch in made:
        fixed = [launch.arguments[p.name] for p in launch.kernel.params if p.is_constexpr]
        different.setdefault((launch.kernel.__name__, *fixed), launch)
    return list(different.values())


def everything(
    target: str,
    names: list[str],
    dtypes: list[torch.dtype],
    columns: list[int],
    index: torch.dtype = torch.int32,
    block: int = 16,
) -> Iterator[Taken]:
    """Registers and memory of the kernels of these names, or of every kernel."""
    for dtype in dtypes:
        for n in columns:
            for name, args in calls(dtype, index, n, block).items():
                if not names or name in names:
                    for launch in launches(name, args):
                        yield taken(launch, target, dtype, n)


def main() -> None:
    """Prints registers and memory of the kernels."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.ahead", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, nargs="+", default=list(TARGETS))
    parser.add_argument("--kernel", nargs="+", default=[], help="names; all of them otherwise")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--columns", type=int, nargs="+", default=[64])
    parser.add_argument("--index", default="int32", choices=["int32", "int64"])
    parser.add_argument("--block", type=int, default=16, help="lines and columns of a block")
    given = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)  # which leaves nothing to compile
    dtypes = [getattr(torch, name) for name in given.dtype]
    for target in given.target:
        sizes = given.columns, getattr(torch, given.index), given.block
        for one in everything(target, given.kernel, dtypes, *sizes):
            sys.stdout.write(json.dumps(one._asdict()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
