"""Preconditioners by the diagonal, or by blocks along it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spgrad import kernels
from spgrad.core.checks import require_number
from spgrad.core.tensor import SparseTensor
from spgrad.errors import PivotError
from spgrad.linalg.assume import flat_diagonal, in_view
from spgrad.linalg.solvers.protocol import Applied, Preconditioner, named_options
from spgrad.lowering.views import rows


@named_options
@dataclass(frozen=True)
class Jacobi(Preconditioner):
    """Divides residuals by the diagonal of the matrix.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> solver = spgrad.linalg.CG(preconditioner=spgrad.linalg.Jacobi())
        >>> spgrad.linalg.solve(A, torch.tensor([5.0, 4.0]), solver).round(decimals=4)
        tensor([1., 1.])
    """

    def prepare(self, A: SparseTensor) -> Applied:
        """Reads the diagonal."""
        diagonal = flat_diagonal(A)
        zero = torch.nonzero(diagonal == 0)
        if zero.numel():
            m = A._pattern.matrix[0]
            row = int(zero[0])
            item = f" of batch item {row // m}" if A._pattern.batch else ""
            raise PivotError(
                f"`A` has a zero or no element on the diagonal in row {row % m}{item}; a diagonal "
                "without zeros is accepted for Jacobi. Take another preconditioner."
            )
        return _Diagonal(1 / diagonal)


class _Diagonal(Applied):
    def __init__(self, inverse: torch.Tensor) -> None:
        self.inverse = inverse[:, None]

    def apply(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        return r * (self.inverse.conj() if adjoint else self.inverse)


@named_options
@dataclass(frozen=True)
class BlockJacobi(Preconditioner):
    """Multiplies residuals by the inverses of square blocks along the diagonal.

    Attributes:
        size: Rows of a block; the last block of a matrix is smaller if `size` does not divide m.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> solver = spgrad.linalg.CG(preconditioner=spgrad.linalg.BlockJacobi(2))
        >>> x, info = spgrad.linalg.solve(A, torch.tensor([5.0, 4.0]), solver, return_info=True)
        >>> info.iterations
        1
    """

    size: int = 8

    def prepare(self, A: SparseTensor) -> Applied:
        """Gathers and inverts the blocks; O(nse + m size^2)."""
        require_number("size", self.size, "Such as 8.", least=1, whole=True)
        pattern = A._pattern
        view = rows(pattern)
        m = pattern.matrix[0]
        size = max(1, min(self.size, m))  # a larger block would hold nothing more
        items = pattern.extent[0] // m
        count = -(-m // size)
        row = kernels.expand(view.ptr, view.idx.shape[0]).to(torch.int64)
        col = view.idx.to(torch.int64)
        item = torch.div(row, m, rounding_mode="floor")
        row, col = row - item * m, col - item * m
        block = torch.div(row, size, rounding_mode="floor")
        at = torch.nonzero(block == torch.div(col, size, rounding_mode="floor")).squeeze(-1)
        vals = in_view(A._vals.reshape(-1), view.perm)
        blocks = vals.new_zeros(items * count, size, size)
        where = (item * count + block)[at], row[at] % size, col[at] % size
        blocks.index_put_(where, vals[at])
        beyond = torch.arange(m % size or size, size, device=vals.device)
        blocks[count - 1 :: count, beyond, beyond] = 1
        inverse, failed = torch.linalg.inv_ex(blocks)
        if bool(failed.any()):
            first = int(torch.nonzero(failed)[0])
            raise PivotError(
                f"`A` has a singular block on the diagonal from row {first % count * size} on; "
                "regular ones are accepted for BlockJacobi. Take another `size`, or ILU0."
            )
        return _Blocks(inverse, m)


class _Blocks(Applied):
    def __init__(self, inverse: torch.Tensor, m: int) -> None:
        self.inverse, self.m = inverse, m

    def apply(self, r: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        count, size, _ = self.inverse.shape
        items, n = r.shape[0] // self.m, r.shape[1]
        padded = count // items * size
        if padded != self.m:
            wide = r.new_zeros(items, padded, n)
            wide[:, : self.m] = r.view(items, self.m, n)
            r = wide
        inverse = self.inverse.mH if adjoint else self.inverse
        z = (inverse @ r.reshape(count, size, n)).view(items, padded, n)
        return z[:, : self.m].reshape(-1, n)
