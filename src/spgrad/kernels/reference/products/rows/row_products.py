"""References of the matmul kernels whose dense operands have a row for each column of the product.

They call the kernels for columns, of whichever backend answers.
"""

from __future__ import annotations

from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.products.matmul import sddmm, spmm, spmm_sddmm
from spgrad.kernels.reference.shapes.transpose_dense import transpose_dense


@kernel("row_spmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor x) -> Tensor")
def row_spmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    """y = x A^T: `spmm` of the transpose of x, transposed.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val` (nse,); None where it stands in place.
        val: Values (nse,).
        x: Dense factor (n, k).

    Returns:
        y (n, m).
    """
    return transpose_dense(spmm(ptr, idx, perm, val, transpose_dense(x)))


@kernel("row_sddmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor g, Tensor x) -> Tensor")
def row_sddmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor) -> Tensor:
    """The values of g^T x at the entries of a pattern: `sddmm` of both transposes.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value belongs in the result, a bijection (nse,); None for in place.
        g: Dense factor (n, m).
        x: Dense factor (n, k).

    Returns:
        out (nse,).
    """
    return sddmm(ptr, idx, perm, transpose_dense(g), transpose_dense(x))


@kernel(
    "row_spmm_sddmm(Tensor ptr, Tensor idx, Tensor? perm, Tensor val, Tensor g, Tensor x)"
    " -> (Tensor, Tensor)"
)
def row_spmm_sddmm(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, g: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """`row_spmm` and `row_sddmm` of one view and one x: `spmm_sddmm` of the transposes.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        perm: Where an entry's value stands in `val` and in the second result, a bijection (nse,).
        val: Values (nse,).
        g: Dense factor (n, m).
        x: Dense factor (n, k).

    Returns:
        y (n, m) of `row_spmm` and out (nse,) of `row_sddmm`.
    """
    y, out = spmm_sddmm(ptr, idx, perm, val, transpose_dense(g), transpose_dense(x))
    return transpose_dense(y), out
