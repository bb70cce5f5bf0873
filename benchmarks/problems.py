"""The operands of the operations, made from one matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.matrices import MATRICES, load, rounded, shape_of, with_values


@dataclass(frozen=True)
class Problem:
    """One matrix with the dense operands that belong to it.

    Attributes:
        matrix: Its name.
        k: Columns of the dense operands.
        dtype: "float32" or "float64"; or "bfloat16", whose numbers are in float32 here.
        layout: That of spgrad's sparse operand: "csr", "csc" or "coo".
        index: "int32" or "int64", for the libraries that take either.
    """

    matrix: str
    k: int = 32
    dtype: str = "float32"
    layout: str = "csr"
    index: str = "int32"

    @cached_property
    def S(self) -> Any:  # noqa: N802
        """csr_array (m, n)."""
        return load(self.matrix, self.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), without making the matrix."""
        return shape_of(self.matrix)

    @cached_property
    def x(self) -> np.ndarray:
        """(n, k)."""
        return self._normal(self.S.shape[1], 1)

    @cached_property
    def g(self) -> np.ndarray:
        """(m, k), the cotangent of A x."""
        return self._normal(self.S.shape[0], 2)

    @cached_property
    def query(self) -> np.ndarray:
        """(m, k), of attention; x has its keys."""
        return self._normal(self.S.shape[0], 6)

    @cached_property
    def value(self) -> np.ndarray:
        """(n, k), of attention."""
        return self._normal(self.S.shape[1], 7)

    @cached_property
    def mask(self) -> Any:
        """The pattern of S: True where it has an element."""
        S = self.S
        return sp.csr_array((np.ones(S.nnz, dtype=bool), S.indices, S.indptr), shape=S.shape)

    @cached_property
    def column(self) -> np.ndarray:
        """(n,)."""
        return np.ascontiguousarray(self.x[:, 0])

    @cached_property
    def covector(self) -> np.ndarray:
        """(m,), the cotangent of a vector."""
        return np.ascontiguousarray(self.g[:, 0])

    @cached_property
    def factors(self) -> np.ndarray:
        """(m, 1), one for each row."""
        return np.ascontiguousarray(self.g[:, :1])

    @cached_property
    def B(self) -> Any:  # noqa: N802
        """csr_array (m, n): half of the elements of S, the others elsewhere in their rows."""
        rng = np.random.default_rng(4)
        row, col = self.S.tocoo().coords
        elsewhere = rng.integers(0, self.S.shape[1], len(col))
        pairs = row, np.where(rng.random(len(col)) < 0.5, col, elsewhere)
        B = sp.coo_array((np.ones(len(row)), pairs), shape=self.S.shape).tocsr()
        return with_values(B, rng, self.dtype)

    @cached_property
    def shuffled(self) -> sp.coo_array:
        """S in random order, every other entry as two that add."""
        S = self.S.tocoo()
        again = np.arange(0, S.nnz, 2)
        order = np.random.default_rng(3).permutation(np.concatenate([np.arange(S.nnz), again]))
        return sp.coo_array((S.data[order], (S.row[order], S.col[order])), shape=S.shape)

    @cached_property
    def C(self) -> sp.coo_array:  # noqa: N802
        """S in COO, in order."""
        C = self.S.tocoo()
        C.has_canonical_format = True
        return C

    @cached_property
    def blocks(self) -> sp.bsr_array:
        """S in blocks of 2 x 2, one row or column larger if it has to be."""
        S = self.S.copy()
        m, n = self.S.shape
        S.resize(m + m % 2, n + n % 2)
        blocks = S.tobsr((2, 2))
        blocks.sort_indices()
        return blocks

    @cached_property
    def stored(self) -> sp.bsr_array:
        """S in the dense blocks that it is made of."""
        side = MATRICES[self.matrix].block
        stored = self.S.tobsr((side, side))
        stored.sort_indices()
        return stored

    @cached_property
    def filled(self) -> Any:
        """`stored` in CSR."""
        filled = self.stored.tocsr()
        filled.sort_indices()
        return filled

    @cached_property
    def even(self) -> Any:
        """S, as large as `blocks`."""
        S: Any = self.S.copy()
        m, n = self.S.shape
        S.resize(m + m % 2, n + n % 2)
        return S

    @cached_property
    def full(self) -> np.ndarray:
        """S as a dense array."""
        return self.S.toarray()

    @cached_property
    def small(self) -> Any:
        """csr_array (3, 3) of four elements."""
        val = np.array([2, -1, 3, 1], dtype=self.dtype)
        return sp.csr_array((val, ([0, 0, 1, 2], [0, 2, 1, 0])), shape=(3, 3))

    @cached_property
    def chosen(self) -> np.ndarray:
        """Numbers of rows, in any order, some of them twice: a quarter as many as there are."""
        m = self.S.shape[0]
        return np.random.default_rng(5).integers(0, m, m // 4)

    @property
    def needed(self) -> int:
        """Bytes of operands, result and gradients of a step, A in CSR with int32 indices."""
        m, n = self.S.shape
        return self.operands + self.size * (self.S.nnz + self.k * (m + n))

    @property
    def operands(self) -> int:
        """The part of `needed` that is there before the step."""
        m, n = self.S.shape
        return (self.size + 4) * self.S.nnz + 4 * (m + 1) + self.size * self.k * n

    @property
    def size(self) -> int:
        """Bytes of a value."""
        return {"bfloat16": 2, "float32": 4, "float64": 8}[self.dtype]

    def _normal(self, rows: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return rounded(rng.standard_normal((rows, self.k), dtype=np.float64), self.dtype)
