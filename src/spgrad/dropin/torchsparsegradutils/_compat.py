"""Triangular solves of dense and sparse matrices by one function."""

from __future__ import annotations

import torch

from spgrad.ops.solves.triangular import triangular_solve


def linalg_solve_triangular_compat(
    A: torch.Tensor,
    B: torch.Tensor,
    *,
    upper: bool,
    unitriangular: bool = False,
    transpose: bool = False,
) -> torch.Tensor:
    """X with A X = B, or A^T X = B, for a dense or sparse triangular A."""
    if A.layout == torch.strided:
        A, upper = (A.mT, not upper) if transpose else (A, upper)
        return torch.linalg.solve_triangular(A, B, upper=upper, unitriangular=unitriangular)
    return triangular_solve(B, A, upper, transpose, unitriangular).solution
