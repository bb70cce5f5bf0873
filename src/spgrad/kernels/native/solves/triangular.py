"""Native substitution with a triangular matrix: that of MKL or cuSPARSE, through torch."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.errors import UnsupportedError
from spgrad.kernels.declare import REFERENCES, native
from spgrad.kernels.native.common.torch_csr import by_library, csr, served
from spgrad.kernels.reference.common.views import in_view_order, row_numbers


@native
def solve_triangular(
    ptr: Tensor,
    idx: Tensor,
    perm: Tensor | None,
    val: Tensor,
    b: Tensor,
    upper: bool,
    unit: bool,
    transpose: bool = False,
) -> tuple[Tensor, Tensor]:
    """`reference.solves.triangular.solve_triangular`; NaN where a pivot is zero.

    Memory for the values in the view's order, for the diagonal, and for a copy of x.
    """
    m = ptr.shape[0] - 1
    sizes = idx.shape[0], ptr.shape[0], b.shape[1]
    if not (b.numel() and by_library(b.device) and served(val.dtype, b.device, *sizes)):
        return REFERENCES["solve_triangular"](ptr, idx, perm, val, b, upper, unit, transpose)
    if b.is_cuda and torch.cuda.is_current_stream_capturing():  # cuSPARSE would end the process
        raise UnsupportedError(
            "A CUDA graph is being captured, and cuSPARSE's substitution is not accepted in one. "
            "Solve outside of the graph, or with an iterative solver as spgrad.linalg.CG()."
        )
    row = row_numbers(ptr, idx.shape[0])
    on_diagonal = idx == row
    if not unit and b.device.type == "cpu" and lacks_pivot(row, on_diagonal, m):
        return REFERENCES["solve_triangular"](ptr, idx, perm, val, b, upper, unit, transpose)
    weight = in_view_order(val, perm)
    T = csr(ptr, idx, weight, m)
    found = torch.triangular_solve(b, T, upper=upper, transpose=transpose, unitriangular=unit)
    x = found.solution.contiguous()
    if unit:
        return x, idx.new_full((1,), -1, dtype=torch.int64)
    pivots = weight.new_zeros(m).index_add_(0, row, weight.masked_fill(~on_diagonal, 0))
    zero = pivots == 0
    first = torch.where(zero.any(), zero.to(torch.int8).argmax(), -1)
    return x.masked_fill_(first >= 0, torch.nan), first.view(1)


def lacks_pivot(row: Tensor, on_diagonal: Tensor, m: int) -> bool:
    """Whether one of m rows has no entry on the diagonal: MKL may end the process there."""
    there = torch.zeros(m, dtype=torch.bool, device="cpu").index_fill_(
        0, row[on_diagonal].long(), True
    )
    return not bool(there.all())
