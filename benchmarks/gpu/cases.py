"""What is measured: kernels, their operands, and what SciPy in float64 makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from benchmarks import formulas
from benchmarks.expected import Expected
from benchmarks.gpu import traffic
from benchmarks.gpu.traffic import Moved, Sizes
from benchmarks.matrices import MATRICES, load

HEADS = 8
ADDITIVE = ("additive_attention", "additive_attention_step")
"""Attention with additive scores, as in graph attention networks."""
MATRIX_NAMES = (
    "social", "road", "grid-250k", "bipartite", "uniform",
    "MIT8", "astro-ph", "wing", "memplus",
    "blocks-4", "blocks-16", "blocks-32",
)  # fmt: skip
"""The last ones are for products of blocks."""
COLUMNS = (1, 32, 64, 128, 256)
DTYPES = ("float32", "bfloat16", "float16")
_UNITS = 8  # of rounding, that sums of random numbers in 16 bits stay within


class Cell(NamedTuple):
    """One measurement: a kernel on a matrix, with a number of columns and a dtype."""

    kernel: str
    matrix: str
    columns: int
    dtype: str


@dataclass(frozen=True)
class Kernel:
    """An operation that is measured.

    Attributes:
        title: What it computes.
        formula: Its results from operands in float64.
        moved: Bytes that have to move.
        sizes: What the rounding error of each result is in proportion to; the formula of absolute
            values if it is None.
        blocked: Whether the matrix is stored in blocks.
        least: Columns that the dense operands have at least; 0 where there are no dense operands.
    """

    title: str
    formula: Callable[[Any], tuple[Any, ...]]
    moved: Callable[[Sizes], Moved]
    sizes: Callable[[Any], tuple[Any, ...]] | None = None
    blocked: bool = False
    least: int = 1

    def applies(self, matrix: str, columns: int) -> bool:
        """Whether it is measured there."""
        known = MATRICES[matrix]
        fits = known.block > 0 if self.blocked else known.group != "blocked"
        return fits and (columns >= self.least if self.least else columns == 1)


def _by_head(p: Any) -> tuple[Any, ...]:
    """A_h x_h for each head, (m, heads, columns of one)."""
    matrices = (
        sp.csr_array((val, p.S.indices, p.S.indptr), shape=p.S.shape) for val in p.by_head.T
    )
    columns = np.split(p.x, HEADS, axis=1)
    return (np.stack([A @ x for A, x in zip(matrices, columns, strict=True)], axis=1),)


def _bsr_step(p: Any) -> tuple[Any, ...]:
    """A x and its gradients, that of A in blocks."""
    return p.S @ p.x, in_blocks(formulas.sampled(p.S, p.x, p.g), p.block).data, p.S.T @ p.g


def in_blocks(S: Any, side: int) -> Any:
    """S in sorted blocks."""
    stored = S.tobsr((side, side))
    stored.sort_indices()
    return stored


KERNELS: dict[str, Kernel] = {
    "spmm": Kernel("A x", lambda p: (p.S @ p.x,), traffic.spmm),
    "step": Kernel("A x, and the gradients of A and x", formulas.step, traffic.step),
    "sddmm": Kernel(
        "g xᵀ at the elements of A", lambda p: (formulas.sampled(p.S, p.x, p.g),), traffic.sddmm
    ),
    "softmax": Kernel(
        "softmax by row", formulas.softmax, traffic.softmax, formulas.softmax_sizes, least=0
    ),
    "softmax_step": Kernel(
        "softmax by row, and its gradient", formulas.softmax_step, traffic.softmax_step,
        formulas.softmax_step_sizes, least=0,
    ),
    "heads": Kernel("A x of 8 heads on one pattern", _by_head, traffic.spmm, least=HEADS),
    "attention": Kernel(
        "attention over the graph", formulas.attention, traffic.attention, formulas.attention_sizes
    ),
    "attention_step": Kernel(
        "attention over the graph, and its gradients", formulas.attention_step,
        traffic.attention_step, formulas.attention_step_sizes,
    ),
    "additive_attention": Kernel(
        "graph attention of 8 heads", formulas.additive_attention, traffic.additive_attention,
        formulas.additive_attention_sizes, least=HEADS,
    ),
    "additive_attention_step": Kernel(
        "graph attention of 8 heads, and its gradients", formulas.additive_attention_step,
        traffic.additive_attention_step, formulas.additive_attention_step_sizes, least=HEADS,
    ),
    "bsr": Kernel("A x, A in blocks", lambda p: (p.S @ p.x,), traffic.block_spmm, blocked=True),
    "bsr_step": Kernel(
        "A x, and the gradients of A and x, A in blocks", _bsr_step, traffic.bsr_step, blocked=True
    ),
}  # fmt: skip


def cells(kernels: Any, matrices: Any, columns: Any, dtypes: Any) -> list[Cell]:
    """The combinations of these choices to which a kernel applies, matrix by matrix."""
    return [
        Cell(kernel, matrix, k, dtype)
        for matrix in matrices
        for kernel in kernels
        for k in columns
        for dtype in dtypes
        if KERNELS[kernel].applies(matrix, k)
    ]


@lru_cache(maxsize=1)
def _loaded(matrix: str) -> Any:
    return load(matrix, "float32")


class Case:
    """The operands of a cell: on the device in its dtype, and the same numbers in float64."""

    def __init__(self, cell: Cell, device: str) -> None:
        self.cell, self.device = cell, device
        self.kernel = KERNELS[cell.kernel]
        self.dtype: torch.dtype = getattr(torch, cell.dtype)
        self.block = MATRICES[cell.matrix].block if self.kernel.blocked else 1
        S = _loaded(cell.matrix)
        if self.kernel.blocked:
            S = in_blocks(S, self.block).tocsr()
            S.sort_indices()
        self.S = sp.csr_array((self._wide(S.data), S.indices, S.indptr), shape=S.shape)
        self.shape: tuple[int, int] = S.shape

    def _wide(self, a: np.ndarray) -> np.ndarray:
        """In float64, rounded to the dtype."""
        return torch.tensor(a).to(self.dtype).double().numpy()

    def _normal(self, rows: int, columns: int, seed: int) -> np.ndarray:
        return self._wide(np.random.default_rng(seed).standard_normal((rows, columns)))

    @cached_property
    def wide(self) -> dict[str, Any]:
        """Dense operands by name, in float64."""
        (m, n), k = self.shape, self.cell.columns
        shapes = {"x": (n, k), "g": (m, k), "query": (m, k), "value": (n, k)}
        shapes |= {"by_head": (self.S.nnz, HEADS)} if self.cell.kernel == "heads" else {}
        if self.cell.kernel in ADDITIVE:
            shapes |= {"left": (m, HEADS), "right": (n, HEADS)}
        return {
            name: self._normal(*shape, seed) for seed, (name, shape) in enumerate(shapes.items())
        }

    @cached_property
    def sizes(self) -> Sizes:
        """For the bytes that have to move."""
        heads = HEADS if self.cell.kernel in ("heads", *ADDITIVE) else 1
        size = torch.empty(0, dtype=self.dtype).element_size()
        return Sizes(*self.shape, self.S.nnz, self.cell.columns, size, heads, self.block)

    def expected(self) -> Expected:
        """SciPy's results, and their largest rounding errors."""
        results = self.kernel.formula(self._operands(lambda a: a))
        sizes = (self.kernel.sizes or self.kernel.formula)(
            self._operands(lambda a: a if self.kernel.sizes else abs(a))
        )
        kind = torch.finfo(self.dtype)
        S = self.S
        longest = max(np.diff(S.indptr).max(), np.bincount(S.indices).max(), self.cell.columns)
        unit = (longest + 2 if kind.bits > 16 else _UNITS) * kind.eps
        bounds = (abs(_array(size)) * unit + kind.smallest_normal * kind.eps for size in sizes)
        return Expected(tuple(map(_array, results)), tuple(bounds))

    def _operands(self, change: Callable[[Any], Any]) -> Any:
        S = self.S
        mask = sp.csr_array((np.ones(S.nnz, dtype=bool), S.indices, S.indptr), shape=S.shape)
        dense = {name: change(a) for name, a in self.wide.items()}
        return SimpleNamespace(S=change(S), mask=mask, block=self.block, **dense)

    def dense(self, name: str) -> Tensor:
        """An operand on the device."""
        return torch.tensor(self.wide[name], dtype=self.dtype, device=self.device)

    @cached_property
    def val(self) -> Tensor:
        """Values on the device."""
        return torch.tensor(self.S.data, dtype=self.dtype, device=self.device)

    @cached_property
    def ptr(self) -> Tensor:
        """Row pointers on the device."""
        return torch.tensor(self.S.indptr, dtype=torch.int32, device=self.device)

    @cached_property
    def idx(self) -> Tensor:
        """Columns of entries on the device."""
        return torch.tensor(self.S.indices, dtype=torch.int32, device=self.device)

    @cached_property
    def coordinates(self) -> Tensor:
        """Row and column of every entry on the device (2, nse)."""
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.S.indptr))
        both = np.stack([row, self.S.indices.astype(np.int64)])
        return torch.tensor(both, device=self.device)


def _array(a: Any) -> np.ndarray:
    """Values of what is sparse, and arrays as they are."""
    return a.data if sp.issparse(a) else a
