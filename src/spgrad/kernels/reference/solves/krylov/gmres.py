"""References of the kernels of GMRES.

A column of an item is one row: vectors are (items n, m), and the basis V (items n, restart + 1, m).
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.solves.krylov.vectors import real, wide


@kernel("gmres_project(Tensor(a!) w, Tensor V, Tensor? h, int k) -> Tensor")
def gmres_project(w: Tensor, V: Tensor, h: Tensor | None, k: int) -> Tensor:
    """w -= sum_i h_i v_i, in place, if h is given; then the products v_i^H w with that w.

    The products are (items n, k) of 64-bit numbers.

    Args:
        w: Vectors (items n, m).
        V: Basis, of which the first k rows v_i are used.
        h: Scalars (items n, k) as those that are returned, or None.
        k: The number of rows.
    """
    rows = V[:, :k]
    if h is not None:
        _subtract(w, rows, h)
    return torch.bmm(rows.conj(), w[..., None])[..., 0].to(wide(w))


@kernel("gmres_subtract(Tensor(a!) w, Tensor V, Tensor h, int k) -> Tensor")
def gmres_subtract(w: Tensor, V: Tensor, h: Tensor, k: int) -> Tensor:
    """w -= sum_i h_i v_i, in place, and the squared norms (items n, 1) of the new w, float64.

    Args:
        w: Vectors (items n, m).
        V: Basis, of which the first k rows v_i are used.
        h: Scalars (items n, k), float64 or complex128.
        k: The number of rows.
    """
    _subtract(w, V[:, :k], h)
    long = w.to(wide(w))
    return real(long.conj() * long).sum(1, keepdim=True)


@kernel(
    "gmres_extend(Tensor(a!) V, Tensor(b!) H, Tensor(c!) null, Tensor(d!) lengths, "
    "Tensor(e!) exhausted, Tensor w, Tensor h, Tensor again, Tensor of_w, Tensor beta, "
    "Tensor active, int k) -> Tensor"
)
def gmres_extend(
    V: Tensor,
    H: Tensor,
    null: Tensor,
    lengths: Tensor,
    exhausted: Tensor,
    w: Tensor,
    h: Tensor,
    again: Tensor,
    of_w: Tensor,
    beta: Tensor,
    active: Tensor,
    k: int,
) -> Tensor:
    """Adds w over its norm to the basis, and column k to the Hessenberg matrices, in place.

    Where w is a vector of rounding errors, the space is exhausted: 0 is added instead.

    Args:
        V: Basis; its row k + 1 becomes w over its norm.
        H: Hessenberg matrices (items n, restart + 1, restart) of the dtype of V.
        null: Row vectors u with u H = 0 (items n, restart + 1), float64 or complex128.
        lengths: Squared norms of u (items, n), float64.
        exhausted: Bool (items, n), set to True where the space of an active column is exhausted.
        w: Vectors (items n, m), orthogonal to the rows before.
        h: The parts of A v_k along the rows before (items n, k + 1), of the dtype of null.
        again: What a second pass adds to h.
        of_w: Squared norms of w (items n, 1), float64.
        beta: Squared norms of the residuals at the restart (items, n), float64.
        active: Bool (items, n).
        k: The number of the step since the restart.

    Returns:
        Squared norms of the residuals (items, n), float64.
    """
    h, size = h + again, of_w.sqrt()
    # a vector of rounding errors is no new direction
    none = size <= torch.linalg.vector_norm(h, dim=1, keepdim=True) * (
        torch.finfo(w.dtype).eps * 10
    )
    shrunk = size.reciprocal().masked_fill_(none, 0)
    torch.mul(w, shrunk.to(w.dtype), out=V[:, k + 1])
    H[:, : k + 1, k] = h
    H[:, k + 1, k] = size.masked_fill(none, 0)[:, 0]
    last = (null[:, : k + 1] * h).sum(1) * -shrunk[:, 0]
    null[:, k + 1] = last
    lengths += real(last * last.conj()).view_as(lengths)
    exhausted.logical_or_(active & none.view_as(active))
    return beta / lengths


def _subtract(w: Tensor, rows: Tensor, h: Tensor) -> None:
    w.sub_(torch.bmm(rows.mT, h[..., None].to(w.dtype))[..., 0])
