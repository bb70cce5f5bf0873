"""LU factors by SciPy's SuperLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError, PivotError
from spgrad.linalg.solvers.protocol import Assume, Info, Prepared, Solver, direct_info
from spgrad.lowering.views import cols


@dataclass(frozen=True)
class SuperLU(Solver):
    """LU factors with partial pivoting, by SciPy (Li, 2005); what `solve` takes by default.

    Attributes:
        ordering: Of the columns, as `scipy.sparse.linalg.splu` names it; None for the one that
            suits what is known of the matrix.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [2.0, 3.0]]))
        >>> spgrad.linalg.solve(A, torch.tensor([5.0, 5.0]), spgrad.linalg.SuperLU())
        tensor([1., 1.])
    """

    ordering: Literal["COLAMD", "MMD_AT_PLUS_A", "MMD_ATA", "NATURAL"] | None = None

    def prepare(self, A: SparseTensor, assume: Assume = "general") -> Prepared:
        """Factors the matrix."""
        return Factored(A, self.ordering, assume)


class Analysis:
    """The pattern by columns, as SuperLU takes it; from the second factor on in the order found.

    Rows and columns are exchanged alike, so that the diagonal, which pivots are taken from where
    they can be, stays what it was.
    """

    def __init__(self, pattern: Pattern) -> None:
        view = cols(pattern)
        if view.ptr.dtype != torch.int32:
            raise ArgumentValueError(
                f"`A` has {pattern.elements} elements; SuperLU accepts at most 2^31 - 1. Take an "
                "iterative solver, such as solver=spgrad.linalg.BiCGSTAB()."
            )
        self.ptr, self.idx = view.ptr.cpu(), view.idx.cpu()
        self.perm = None if view.perm is None else view.perm.cpu()
        self.order: torch.Tensor | None = None  # where each row and column went
        self.back: torch.Tensor | None = None

    def adopt(self, order: torch.Tensor) -> None:
        """Keeps the order that a factorisation has found."""
        m = order.shape[0]
        column = torch.repeat_interleave(order, self.ptr.diff().to(torch.int64))
        row = order[self.idx]
        moved = torch.argsort(column * m + row)
        counts = torch.bincount(column, minlength=m)
        self.ptr = torch.zeros(m + 1, dtype=torch.int32)
        self.ptr[1:] = counts.cumsum(0)
        self.idx = row[moved].to(torch.int32)
        self.perm = moved if self.perm is None else self.perm[moved]
        self.order, self.back = order, torch.argsort(order)


class Factored(Prepared):
    """L and U of P A Q, for a matrix or the block-diagonal matrix of a batch."""

    def __init__(self, A: SparseTensor, ordering: str | None, assume: Assume) -> None:
        checks.require_packages("scipy", "scipy", "numpy")
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import splu

        pattern = A._pattern
        mirrored = assume in ("symmetric", "hermitian", "positive definite")
        options: dict[str, Any] = {}
        if mirrored:
            options = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": 0.01}
        ordering = ordering or ("MMD_AT_PLUS_A" if mirrored else "COLAMD")
        analysis = pattern.derive(kept.ANALYSIS.of(ordering, mirrored), Analysis)
        self.items = pattern.extent[0] // max(pattern.matrix[0], 1)
        self.order, self.back = analysis.order, analysis.back
        vals = plain(A._vals).reshape(-1).cpu()
        if analysis.perm is not None:
            vals = vals[analysis.perm]
        arrays = (t.numpy() for t in (vals, analysis.idx, analysis.ptr))
        try:
            matrix = csc_array(tuple(arrays), shape=pattern.extent)
            spec = ordering if self.order is None else "NATURAL"
            self.factor = splu(matrix, permc_spec=spec, **options)
        except RuntimeError as error:
            raise PivotError(
                f"`A` is singular; a matrix of full rank is accepted. SuperLU says: {error}. For "
                "a solution of least squares take spgrad.linalg.lstsq."
            ) from error
        self.selected: tuple[torch.Tensor, torch.Tensor] | None = None  # elements of the inverse
        if self.order is None:
            analysis.adopt(torch.from_numpy(self.factor.perm_c).to(torch.int64))

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        """By substitution with both factors."""
        right = plain(b).cpu()
        if self.back is not None:
            right = right[self.back]
        x = torch.from_numpy(self.factor.solve(right.numpy(), "H" if adjoint else "N"))
        x = x.contiguous() if self.order is None else x[self.order]
        return x.to(b.device), direct_info(b, self.items)

    def permutations(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where each row, and each column, of A stands in L U."""
        found = (self.factor.perm_r, self.factor.perm_c)
        row, column = (torch.from_numpy(p).to(torch.int64) for p in found)
        return (row, column) if self.order is None else (row[self.order], column[self.order])
