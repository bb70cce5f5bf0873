"""Algebraic multigrid by pyamg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError
from spgrad.linalg.assume import in_view
from spgrad.linalg.solvers.protocol import Applied, Preconditioner, named_options
from spgrad.lowering.products.diagonals import Repeated
from spgrad.lowering.products.spmm import repeated_spmm
from spgrad.lowering.views import rows

_Method = Literal["smoothed aggregation", "ruge stuben"]

# The cycle smooths by itself; a matrix of 100 rows is inverted in milliseconds.
_OF_BOTH = {"presmoother": None, "postsmoother": None, "max_coarse": 100}
# Each row of the interpolation is damped by its absolute sum. What pyamg does by default, steps
# from a random vector to the largest eigenvalue, is most of its time, and differs in each run.
_SMOOTH = ("jacobi", {"omega": 4 / 3, "weighting": "local"})
_AS_GIVEN: dict[str, Any] = {"improve_candidates": None}
_SMOOTH_ONES = 0.05  # what A times ones is at most, beside the diagonal, if ones need no relaxation
_MOST_LEVELS = 30
_MOST_DENSE = 1000  # rows of a matrix that is inverted
_IN_RANGE = 2.0**-60, 2.0**60  # of numbers whose products float32 holds


@named_options
@dataclass(frozen=True)
class AMG(Preconditioner):
    """Algebraic multigrid for hermitian positive definite matrices, its levels set up by pyamg.

    A V-cycle of damped Jacobi sweeps on products of spgrad, for all right-hand sides at once. The
    levels are the same in each run. For a float64 matrix a cycle computes in float32, as it only
    approximates a solution: it takes 0.6 of the time. The solver takes as many steps, and a few
    more if rows and columns are scaled by numbers far apart. Batches, and matrices with numbers
    that float32 does not hold, keep float64. Needs ``pip install 'spgrad[amg]'``.

    Attributes:
        method: "smoothed aggregation" (Vanek, Mandel and Brezina, 1996) or "ruge stuben" (1987).
        sweeps: Jacobi steps before and after each coarse correction.
    """

    method: _Method = "smoothed aggregation"
    sweeps: int = 1

    def prepare(self, A: SparseTensor) -> Applied:
        """Sets up the levels; a batch as one block-diagonal matrix."""
        if not isinstance(self.method, str) or self.method not in get_args(_Method):
            names = " and ".join(repr(name) for name in get_args(_Method))
            raise ArgumentValueError(
                f"`method` is {checks.describe_option(self.method)}; {names} are accepted. Choose "
                "one of them."
            )
        checks.require_number("sweeps", self.sweeps, "For example 1.", least=1, whole=True)
        checks.require_packages("amg", "pyamg", "scipy", "numpy")
        from scipy.sparse import csr_matrix

        view = rows(A._pattern)
        vals = in_view(plain(A._vals).reshape(-1), view.perm)
        arrays = (t.cpu().numpy() for t in (vals, view.idx, view.ptr))
        matrix = csr_matrix(tuple(arrays), shape=A._pattern.extent)
        hierarchy = _hierarchy(matrix, self.method)
        return _Cycle(hierarchy, self.sweeps, _numbers(A, hierarchy))


def _hierarchy(A: Any, method: _Method) -> list[Any]:
    """The levels of pyamg: objects with A, and but for the last one P and R.

    Smoothed aggregation makes one level in each call: pyamg would keep the coarse matrices in BSR
    with blocks of one element, which SciPy sorts and sums in Python. It would also relax the vector
    of ones for the finest level, a fifth of the time, where that vector is smooth already.
    """
    import pyamg

    if method == "ruge stuben":
        return pyamg.ruge_stuben_solver(A, max_levels=_MOST_LEVELS, **_OF_BOTH).levels
    levels: list[Any] = []
    sums = abs(A.sum(1)).sum()
    options = dict(_AS_GIVEN) if sums <= _SMOOTH_ONES * abs(A.diagonal()).sum() else {}
    while True:
        *finer, coarsest = pyamg.smoothed_aggregation_solver(
            A, smooth=_SMOOTH, max_levels=2, **options, **_OF_BOTH
        ).levels
        levels += finer
        if not finer or len(levels) == _MOST_LEVELS - 1:
            return [*levels, coarsest]
        A, options = coarsest.A.tocsr(), {"B": coarsest.B, **_AS_GIVEN}


class _Level:
    """A matrix of the hierarchy with its restriction and prolongation."""

    def __init__(self, level: Any, like: torch.Tensor) -> None:
        self.A, self.P, self.R = (_repeated(M, like) for M in (level.A, level.P, level.R))
        # the largest eigenvalue of D^-1 A is at most the largest absolute row sum
        inverse = 1 / torch.from_numpy(level.A.diagonal())
        sums = torch.from_numpy(abs(level.A).sum(1)).reshape(-1)
        self.weight = (inverse / float((inverse.abs() * sums).max()) * 4 / 3).to(like)[:, None]

    def residual(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        """r - A x."""
        y = repeated_spmm(self.A, x)
        return torch.sub(r, y, out=y)


def _repeated(M: Any, like: torch.Tensor) -> Repeated:
    from spgrad.core.interop import from_scipy

    A: Any = from_scipy(M.tocsr()).to(like.dtype).to(like.device)
    return Repeated(A._vals, A._pattern)


def _coarsest(A: Any, like: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Applies the inverse of the coarsest matrix; a large one is divided by its diagonal.

    A matrix stays large where it has hardly an element off the diagonal: nothing makes it coarser.
    """
    if A.shape[0] > _MOST_DENSE:
        inverse = 1 / torch.from_numpy(A.diagonal()).to(like)[:, None]
        return partial(torch.mul, inverse)
    dense = torch.from_numpy(A.toarray())
    return partial(torch.matmul, torch.linalg.pinv(dense, hermitian=True).to(like))


def _in_range(hierarchy: list[Any]) -> bool:
    """Whether float32 holds the diagonals, and all larger elements, of the matrices."""
    least, most = _IN_RANGE
    return all(
        abs(level.A.diagonal()).min(initial=most) >= least
        and abs(level.A.data).max(initial=least) <= most
        for level in hierarchy
    )


def _numbers(A: SparseTensor, hierarchy: list[Any]) -> torch.Tensor:
    """An empty tensor of the dtype in which a cycle computes, on the device of A."""
    # a vector is scaled by its size, which the items of a batch do not share
    alone = A._pattern.extent == A._pattern.matrix
    narrow = alone and A._vals.dtype == torch.float64 and _in_range(hierarchy)
    return A._vals.new_empty(0, dtype=torch.float32 if narrow else None)


class _Cycle(Applied):
    def __init__(self, hierarchy: list[Any], sweeps: int, like: torch.Tensor) -> None:
        self.sweeps, self.like = sweeps, like
        self.levels = [_Level(level, like) for level in hierarchy[:-1]]
        self.coarsest = _coarsest(hierarchy[-1].A, like)

    def apply(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        r = r.detach()  # symmetric: the adjoint is the cycle itself
        if r.dtype == self.like.dtype:
            return self._cycle(0, r)
        size = torch.linalg.vector_norm(r, dim=0)  # so that float32 holds the numbers
        size.masked_fill_(size == 0, 1)
        return self._cycle(0, (r / size).to(self.like)) * size

    def _cycle(self, at: int, r: torch.Tensor) -> torch.Tensor:
        if at == len(self.levels):
            return self.coarsest(r)
        level = self.levels[at]
        x = level.weight * r
        for _ in range(self.sweeps - 1):
            x.addcmul_(level.weight, level.residual(x, r))
        coarse = self._cycle(at + 1, repeated_spmm(level.R, level.residual(x, r)))
        x += repeated_spmm(level.P, coarse)
        for _ in range(self.sweeps):
            x.addcmul_(level.weight, level.residual(x, r))
        return x
