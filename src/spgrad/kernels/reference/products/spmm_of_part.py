"""References of products that take no memory besides their result, for the parts of a matrix."""

from __future__ import annotations

from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.products.matmul import spmm


@kernel(
    "untiled_spmm(Tensor ptr, Tensor idx, Tensor val, Tensor x) -> Tensor",
    fake=lambda ptr, idx, val, x: x.new_empty(ptr.shape[0] - 1, x.shape[1]),
)
def untiled_spmm(ptr: Tensor, idx: Tensor, val: Tensor, x: Tensor) -> Tensor:
    """`spmm` without memory besides its result: the compiled kernel copies nothing into tiles.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        val: Values (nse,).
        x: Dense factor (k, n).

    Returns:
        y (m, n).
    """
    return spmm(ptr, idx, None, val, x)


@kernel("add_spmm(Tensor(a!) y, Tensor ptr, Tensor idx, Tensor? rows, Tensor val, Tensor x) -> ()")
def add_spmm(
    y: Tensor, ptr: Tensor, idx: Tensor, rows: Tensor | None, val: Tensor, x: Tensor
) -> None:
    """y[rows[i], :] += sum over entries p of row i of val[p] x[idx[p], :], in place.

    The product of a part of a matrix, for a result whose other parts are found by themselves. The
    compiled kernel takes no memory besides 16 KB a thread.

    Args:
        y: The result (rows of y, n).
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        rows: Distinct rows of y for the m rows, int64; None if they are 0 to m - 1, all of y.
        val: Values (nse,).
        x: Dense factor (k, n).
    """
    part = spmm(ptr, idx, None, val, x)
    y.add_(part) if rows is None else y.index_add_(0, rows, part)
