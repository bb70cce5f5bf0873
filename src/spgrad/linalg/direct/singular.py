"""The adjugate of a singular matrix, which is the derivative of its determinant."""

from __future__ import annotations

from typing import cast

import torch

from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.linalg.direct.engines import Factored, SingularError, coordinates
from spgrad.linalg.direct.superlu import SuperLU


def adjugate_elements(A: SparseTensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Elements (row, column) of the adjugate of a singular matrix, without gradient.

    The adjugate of a matrix of rank m - 1 is c u v^H, for A u = 0 and v^H A = 0. With any p and q,

        K = [[A, p], [q^H, 0]] has det K = -q^H adj(A) p = -c (q^H u) (v^H p),

    and its inverse has u / (q^H u) in its last column and v^H / (v^H p) in its last row. So one
    factor of K gives the adjugate, as -det K times the product of these. If K is singular too, for
    random p and q, then the rank of A is at most m - 2, and its adjugate is 0.
    """
    m, vals = A._pattern.extent[0], plain(A._vals).reshape(-1).cpu()
    at = torch.stack(coordinates(A._pattern)).cpu()
    line, last = torch.arange(m, device="cpu"), torch.full((m,), m, device="cpu")
    border = torch.stack((torch.cat((line, last)), torch.cat((last, line))))
    generator = torch.Generator().manual_seed(0)
    scale = vals.abs().amax() if vals.numel() else 1
    random = torch.randn(2 * m, dtype=vals.dtype, generator=generator, device="cpu") * (scale or 1)
    indices, values = torch.cat((at, border), 1), torch.cat((vals, random))
    try:
        found = SuperLU().prepare(sparse_coo_tensor(indices, values, (m + 1, m + 1)))
    except SingularError:
        return A._vals.new_zeros(row.shape)
    unit = torch.zeros(m + 1, 1, dtype=vals.dtype, device="cpu")
    unit[m] = 1
    left = found.solve(unit)[0].squeeze(1)
    right = found.solve(unit, adjoint=True)[0].squeeze(1)
    sign, size = cast(Factored, found).log_determinant()
    determinant = (sign * size.exp()).to(A._vals.device, A._vals.dtype)
    left, right = left.to(A._vals.device), right.to(A._vals.device)
    return -determinant * left[row] * right[column].conj()
