"""Roots B of a positive definite matrix A and of its inverse: B B^T = A, or B B^T = A^-1."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import PivotError
from spgrad.linalg.direct.engines import require_int32
from spgrad.linalg.solvers.protocol import Assume, Info, Prepared, Solver, direct_info
from spgrad.lowering.views import cols


class Root(Prepared):
    """P^T L D^1/2 P for P A P^T = L D L^T, which SuperLU finds with pivots from the diagonal.

    Attributes:
        failed: The row of a pivot that is not positive; None if A is positive definite.
    """

    def __init__(self, A: SparseTensor) -> None:
        checks.require_packages("scipy", "scipy", "numpy")
        pattern = A._pattern
        self.failed: int | None = None
        self.items = pattern.extent[0] // max(pattern.matrix[0], 1)
        if pattern.extent[0] == 0:
            return
        hint = "Give scale_tril or precision_tril, for which no factor is computed."
        require_int32("SuperLU", pattern, hint)
        view = cols(pattern)
        vals = plain(A._vals.detach()).reshape(-1).cpu()
        self._factor = _factored(view, vals, pattern.extent)
        if self._factor is None:
            self.failed = 0
            return
        self._row = torch.from_numpy(self._factor.perm_r).to(torch.int64)
        column = torch.from_numpy(self._factor.perm_c).to(torch.int64)
        self._pivots = torch.from_numpy(self._factor.U.diagonal())
        wrong = torch.nonzero((self._row != column) | ~(self._pivots[self._row].real > 0))
        if wrong.numel():
            self.failed = int(wrong[0])

    def require(self) -> None:
        """Refuses a matrix that has no root."""
        if self.failed is not None:
            raise PivotError(
                "`A` is not positive definite: its factor has a pivot that is not positive; "
                "positive definite matrices are accepted. Look at its eigenvalues."
            )

    def times(self, z: torch.Tensor) -> torch.Tensor:
        """B z, with B B^T = A; z is (items m, n)."""
        self.require()
        if z.numel() == 0:
            return z.clone()
        scaled = self._pivots.sqrt()[:, None] * self._ordered(z)
        return torch.from_numpy(self._factor.L @ scaled.numpy())[self._row].to(z.device)

    def inverse_times(self, z: torch.Tensor) -> torch.Tensor:
        """C z, with C C^T = A^-1; z is (items m, n)."""
        self.require()
        if z.numel() == 0:
            return z.clone()
        lower = self._factor.L  # its columns are the rows of L^T
        lower.sort_indices()
        ptr, idx, val = (torch.from_numpy(a) for a in (lower.indptr, lower.indices, lower.data))
        scaled = self._ordered(z) / self._pivots.sqrt()[:, None]
        x, _ = kernels.solve_triangular(ptr, idx, None, val, scaled, True, True)
        return x[self._row].to(z.device)

    def _ordered(self, z: torch.Tensor) -> torch.Tensor:
        """P z, so that the draw of a batch item uses the numbers at the rows of that item."""
        return z.cpu()[torch.argsort(self._row)]

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        """A^-1 b, by substitution; A is symmetric."""
        self.require()
        x = torch.from_numpy(self._factor.solve(plain(b).cpu().numpy()))
        return x.contiguous().to(b.device), direct_info(b, self.items)


class ByRoot(Solver):
    """A solver that uses a given `Root`."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def prepare(self, A: SparseTensor, assume: Assume) -> Prepared:
        """Returns the root; A is the matrix that it was made of."""
        return self.root


def _factored(view: Any, vals: torch.Tensor, shape: tuple[int, int]) -> Any:
    """SciPy's factor with pivots from the diagonal, None if a pivot is 0."""
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import splu

    vals = vals if view.perm is None else vals[view.perm.cpu()]
    arrays = (t.cpu().to(torch.int32).numpy() for t in (view.idx, view.ptr))
    matrix = csc_array((vals.numpy(), *arrays), shape=shape)
    options = {"SymmetricMode": True}
    try:
        return splu(matrix, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    except RuntimeError:
        return None
