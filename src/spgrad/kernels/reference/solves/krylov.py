"""Reference of the kernels that update the vectors of Krylov methods.

Vectors are (items, m, n): n right-hand sides for each matrix of a batch. Scalars are (items, n),
in float64 or complex128. The compiled kernels form sums in chunks of rows that depend on the shape
alone, so that they do not depend on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.products.matmul import spmm


def _wide(t: Tensor) -> torch.dtype:
    return torch.complex128 if t.is_complex() else torch.float64


@kernel("krylov_dot(Tensor a, Tensor b) -> Tensor")
def krylov_dot(a: Tensor, b: Tensor) -> Tensor:
    """The scalar products sum_i conj(a_i) b_i of the columns (items, n), in 64-bit numbers.

    Args:
        a: Vectors (items, m, n).
        b: Vectors of the same shape and dtype.
    """
    return (a.conj().to(_wide(a)) * b.to(_wide(a))).sum(1)


@kernel("krylov_product(Tensor ptr, Tensor idx, Tensor val, Tensor x) -> (Tensor, Tensor)")
def krylov_product(ptr: Tensor, idx: Tensor, val: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """y = A x for one column (items, m, 1), and the scalar products of x with y (items, 1).

    Args:
        ptr: Where each row of A, block-diagonal of items m rows, begins (items m + 1,).
        idx: Columns of A (nse,).
        val: Values of A (nse,), float32 or float64.
        x: Vectors (items, m, 1) of the dtype of `val`.
    """
    y = spmm(ptr, idx, None, val, x.view(-1, 1)).view(x.shape)
    return y, krylov_dot(x, y)


@kernel("krylov_residual(Tensor(a!) r, Tensor q, Tensor alpha) -> Tensor")
def krylov_residual(r: Tensor, q: Tensor, alpha: Tensor) -> Tensor:
    """r -= alpha q, in place, and the squared norms (items, n) of the new r, float64.

    Args:
        r: Vectors (items, m, n).
        q: Vectors of the same shape and dtype.
        alpha: Scalars (items, n).
    """
    r.addcmul_(q, alpha.to(r.dtype)[:, None], value=-1)
    return krylov_dot(r, r).real.contiguous()


@kernel("krylov_direction(Tensor(a!) x, Tensor(b!) p, Tensor z, Tensor alpha, Tensor beta) -> ()")
def krylov_direction(x: Tensor, p: Tensor, z: Tensor, alpha: Tensor, beta: Tensor) -> None:
    """x += alpha p, then p = z + beta p, in place.

    Args:
        x: Vectors (items, m, n).
        p: Vectors of the same shape and dtype.
        z: Likewise.
        alpha: Scalars (items, n).
        beta: Scalars (items, n).
    """
    x.addcmul_(p, alpha.to(x.dtype)[:, None])
    torch.addcmul(z, p, beta.to(p.dtype)[:, None], out=p)
