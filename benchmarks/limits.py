"""What this machine can do at most: the gather limit, and the bandwidth of its memory.

Both are contenders but no peers: they take turns with the kernels that they limit, in the same
cell, and their results are of no use.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.contender import DTYPES, Contender, as_torch
from benchmarks.expected import WrongResultError
from benchmarks.problems import Problem

ROOT = Path(__file__).parents[1]
SOURCE = Path(__file__).with_name("limits.cpp")
_KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
_AHEAD = (0, 0), (8, 0), (16, 0), (32, 0), (8, 32), (12, 32)  # entries, for both caches
_FURTHEST = 32  # of them
_CHUNK = 256  # entries whose rows are read whole before those of the next
_TURNS = 8  # in which ways are tried, but
_TRIED = 1.0  # seconds after which two turns are enough
_PRECISION = 1e-3


def compiler() -> str | None:
    """The C++ compiler that there is."""
    return shutil.which(os.environ.get("CXX", "c++"))


@cache
def _library() -> Any:
    """The compiled loop, which is kept in build/benchmarks until its source changes.

    Raises:
        RuntimeError: There is no compiler, or it fails.
    """
    command = [compiler() or "", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    if not command[0]:
        raise RuntimeError("no C++ compiler")
    name = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    path = ROOT / "build" / "benchmarks" / f"limits-{name}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        run = [*command, str(SOURCE), "-o", str(made)]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr[:160]}")
        made.replace(path)
    function = ctypes.CDLL(str(path)).gather_limit
    p, n, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    function.argtypes = [p, p, i, p, p, n, n, n, i, i, i, i, i, i, n, i]
    function.restype = ctypes.c_double
    return function


class _Way(NamedTuple):
    """Parameters of the loop.

    Attributes:
        regs: Units in a tile.
        unroll: Entries at a time.
        ahead: How many entries ahead rows are prefetched into the first-level cache, 0 for none.
        far: The same for the second-level cache.
    """

    regs: int
    unroll: int
    ahead: int
    far: int = 0


class _Pattern:
    """The elements of a matrix, and for each shape of x the fastest way to go through them."""

    def __init__(self, S: Any, p: Problem) -> None:
        col = torch.tensor(S.indices, dtype=getattr(torch, p.index))
        self.ptr = torch.tensor(S.indptr, dtype=torch.int64)
        self.col = torch.cat([col, col.new_zeros(_FURTHEST)])
        self.rows, self.nse = S.shape[0], S.nnz
        self._best: dict[Any, Callable[[], float]] = {}

    def run(self, x: torch.Tensor, g: torch.Tensor | None = None) -> float:
        key = (x.data_ptr(), None if g is None else g.data_ptr())
        if key not in self._best:
            self._best[key] = self._fastest(x, g)
        return self._best[key]()

    def _fastest(self, x: torch.Tensor, g: torch.Tensor | None) -> Callable[[], float]:
        """Tries tiles, then prefetch distances, then checks the result."""
        width = x.stride(0) * x.element_size() if x.ndim > 1 else x.element_size()
        unit = next((size for size in (64, 32, 16) if width % size == 0), width)

        def bound(way: _Way) -> Callable[[], float]:
            wide = int(self.col.dtype == torch.int64)
            arrays = self.ptr.data_ptr(), self.col.data_ptr(), wide, x.data_ptr()
            sizes = self.rows, self.nse, width, _KINDS[x.dtype], unit
            other = None if g is None else g.data_ptr()
            threads = torch.get_num_threads()
            call = (*arrays, other, *sizes, *way, _CHUNK, threads)
            function = _library()
            return lambda: function(*call)

        best = _quickest({way: bound(way) for way in _tiles(width // unit)})
        aheads = (best._replace(ahead=ahead, far=far) for ahead, far in _AHEAD)
        run = bound(_quickest({way: bound(way) for way in aheads}))
        found = run()
        if math.isnan(found):
            raise ValueError(f"no code for rows of {width} bytes")
        self._check(found, x, g)
        return run

    def _check(self, found: float, x: torch.Tensor, g: torch.Tensor | None) -> None:
        col = self.col[: self.nse].long()
        weight = torch.bincount(col, minlength=x.shape[0]).double()
        if g is None:
            terms = weight @ x.double().view(len(x), -1)
            size = weight @ x.double().abs().view(len(x), -1)
        else:
            pattern = torch.sparse_csr_tensor(
                self.ptr,
                col,
                torch.ones(self.nse, dtype=torch.float64),
                (self.rows, len(x)),
                check_invariants=False,
            )
            terms = (pattern @ x.double()) * g.double()
            size = terms.abs()
        if not abs(found - float(terms.sum())) <= _PRECISION * float(size.sum()):
            raise WrongResultError(f"a sum of {found}, not {float(terms.sum())}")


def _quickest(runs: dict[_Way, Callable[[], float]]) -> _Way:
    """They take turns, so other load affects all alike; the least time of each counts."""
    taken: dict[_Way, float] = dict.fromkeys(runs, math.inf)
    begun = time.perf_counter()
    for turn in range(_TURNS):
        for way, run in runs.items():
            start = time.perf_counter()
            run()
            taken[way] = min(taken[way], time.perf_counter() - start)
        if turn and time.perf_counter() - begun > _TRIED:
            break
    return min(taken, key=lambda way: taken[way])


def _tiles(units: int) -> Iterator[_Way]:
    """The numbers of units in a tile that are tried for rows of that many units."""
    for regs in (1, 2, 4, 8):
        if units % regs == 0 and (regs >= 4 or units <= 4 * regs):
            yield _Way(regs, 1, 16)
            if regs <= 2:
                yield _Way(regs, 2, 16)


def _sum(A: _Pattern, x: torch.Tensor) -> float:
    return A.run(x)


_GATHERS = ("spmm", "spmv", "mm_mean", "mm_amax")

GATHER = Contender(
    "gather limit",
    "torch",
    build=_Pattern,
    dense=as_torch,
    functions={
        **dict.fromkeys(_GATHERS, _sum),
        "sddmm": lambda A, g, x: A.run(x, g),
    },
    dtypes=DTYPES,
    limit=True,
    available=lambda: compiler() is not None,
)


class _Memory:
    """Two pieces of memory to copy between."""

    def __init__(self, S: Any, p: Problem) -> None:
        self.sizes = S.nnz, *S.shape
        dtype = getattr(torch, p.dtype)
        self.pair = tuple(torch.ones(2 * S.nnz + max(S.shape), dtype=dtype) for _ in range(2))


def _moving(elements: Callable[[int, int, int], float]) -> Callable[..., Any]:
    """A copy that reads and writes together as much as an operation of nse, m and n has to."""

    def run(A: _Memory, *others: Any) -> Any:
        count = int(elements(*A.sizes)) // 2
        source, target = A.pair
        return target[:count].copy_(source[:count])

    return run


STREAM = Contender(
    "stream limit",
    "torch",
    build=_Memory,
    dense=as_torch,
    functions={
        "sin": _moving(lambda nse, m, n: 2 * nse),
        "scale": _moving(lambda nse, m, n: 2 * nse + m),
        "sum_rows": _moving(lambda nse, m, n: nse + m),
        "amax_rows": _moving(lambda nse, m, n: nse + m),
        "amax_specified": _moving(lambda nse, m, n: nse + m),
        "softmax": _moving(lambda nse, m, n: 2 * nse),
    },
    dtypes=DTYPES,
    limit=True,
)

LIMITS = (GATHER, STREAM)


def bandwidth(size: int = 2**28) -> dict[str, float]:
    """Bytes a second of copies and of sums of arrays that no cache holds, best of some."""
    a, b = (torch.ones(size // 4) for _ in range(2))
    out = torch.empty_like(a)
    found = {}
    for name, run, arrays in (
        ("copy", lambda: out.copy_(a), 2),
        ("add", lambda: torch.add(a, b, out=out), 3),
    ):
        taken = []
        for _ in range(6):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        found[name] = arrays * size / min(taken)
    return found
