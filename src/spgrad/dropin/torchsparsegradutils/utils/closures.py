"""Runs spgrad's iterations on a matrix that is given as a tensor or as a function of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch

from spgrad import ops
from spgrad.core.interop import from_torch
from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.linalg.solvers.iterative import Iterative, Problem, iterate
from spgrad.linalg.solvers.operators import Operator
from spgrad.linalg.solvers.protocol import Info

Times = Callable[[torch.Tensor], torch.Tensor]


def times_of(A: Any, what: str = "matmul_closure") -> Times:
    """x -> A x, for a tensor of any layout or a function."""
    if isinstance(A, torch.Tensor):
        if A.layout in LAYOUT_NAMES and A.dim() == 2:
            T = from_torch(A.detach())
            return lambda x: cast(torch.Tensor, ops.matmul(T, x))
        return A.detach().matmul
    if not callable(A):
        raise RuntimeError(f"{what} must be a tensor, or a callable object!")
    return cast(Times, A)


def _apart(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """y, contiguous and not x itself, because iterations change products in place."""
    y = y.contiguous()
    return y.clone() if y.data_ptr() == x.data_ptr() else y


class Closure(Operator):
    """A matrix that an iteration knows by its products with vectors (items, k, n)."""

    def __init__(self, times: Times, adjoint: Times | None, batch: tuple[int, ...]) -> None:
        self.products, self.batch = (times, adjoint or times), batch

    def times(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """A x, or A^H x, in the shape that the function takes."""
        found = self.products[adjoint](x.reshape(*self.batch, *x.shape[-2:]))
        return _apart(found.reshape(x.shape[0], -1, x.shape[-1]), x)


class Vectors(Closure):
    """A `Closure` for a function of single vectors (k,)."""

    def times(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        """The product of one vector."""
        return _apart(self.products[adjoint](x.reshape(-1)).reshape(1, -1, 1), x)


@torch.no_grad()
def run(
    solver: Iterative,
    closure: Closure,
    b: torch.Tensor,
    x0: torch.Tensor | None = None,
    precondition: Times | None = None,
    least: bool = False,
) -> tuple[torch.Tensor, Info]:
    """x (items, m, n) with A x = b, and how the iteration ended; b is (*batch, m, n)."""
    items = math.prod(closure.batch)
    right = b.detach().reshape(items, *b.shape[-2:]).contiguous()
    start = None if x0 is None else x0.detach().reshape(items, -1, b.shape[-1]).contiguous()
    inverse = None if precondition is None else type(closure)(precondition, None, closure.batch)

    def apply(r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        assert inverse is not None
        found = inverse.times(r.reshape(right.shape[0], -1, r.shape[-1]), adjoint)
        return found.reshape(r.shape)

    given = None if inverse is None else apply
    x, info = iterate(solver, Problem(closure, right, start, False, given, least))
    # no step improves the start of a column of b that is not finite, which is no solution
    return x.masked_fill(~right.isfinite().all(1, keepdim=True), torch.nan), info


def tolerance(asked: float, dtype: torch.dtype) -> float:
    """The smaller of the relative residual that is asked for and spgrad's default."""
    own = 1e-5 if dtype in (torch.float32, torch.complex64) else 1e-8
    return min(float(asked), own)
