"""LU factors by SciPy's SuperLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from spgrad.core import checks
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
        return _Factor(A, self.ordering, assume)


class _Factor(Prepared):
    def __init__(self, A: SparseTensor, ordering: str | None, assume: Assume) -> None:
        checks.require_packages("scipy", "scipy", "numpy")
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import splu

        pattern, view = A._pattern, cols(A._pattern)
        self.items = pattern.extent[0] // max(pattern.matrix[0], 1)
        vals = plain(A._vals).reshape(-1)
        if view.perm is not None:
            vals = vals[view.perm]
        if view.ptr.dtype != torch.int32:
            raise ArgumentValueError(
                f"`A` has {pattern.elements} elements; SuperLU accepts at most 2^31 - 1. Take an "
                "iterative solver, such as solver=spgrad.linalg.BiCGSTAB()."
            )
        arrays = (t.cpu().numpy() for t in (vals, view.idx, view.ptr))
        options: dict[str, Any] = {}
        if assume in ("symmetric", "hermitian", "positive definite"):
            options = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": 0.01}
            ordering = ordering or "MMD_AT_PLUS_A"
        try:
            matrix = csc_array(tuple(arrays), shape=pattern.extent)
            self.factor = splu(matrix, permc_spec=ordering or "COLAMD", **options)
        except RuntimeError as error:
            raise PivotError(
                f"`A` is singular; a matrix of full rank is accepted. SuperLU says: {error}. For "
                "a solution of least squares take spgrad.linalg.lstsq."
            ) from error

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        right = plain(b).cpu().numpy()
        x = torch.from_numpy(self.factor.solve(right, "H" if adjoint else "N"))
        return x.contiguous().to(b.device), direct_info(b, self.items)
