"""References of the kernels that every Krylov method takes: products, sums and active columns.

Vectors are (items, m, n): n right-hand sides for each matrix of a batch. Scalars are (items, n),
in float64 or complex128. The compiled kernels form sums in chunks of rows that depend on the shape
alone, so that they do not depend on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.products.matmul import spmm


def wide(t: Tensor) -> torch.dtype:
    """The dtype of scalars of these vectors."""
    return torch.complex128 if t.is_complex() else torch.float64


def real(t: Tensor) -> Tensor:
    """The real parts of scalars."""
    return t.real if t.is_complex() else t


def quotient(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """a / b where the condition holds and b is not 0, else 0."""
    return (a / b).masked_fill_(where <= (b == 0), 0)


def inverse(a: Tensor) -> Tensor:
    """1 / a, and 0 for 0."""
    return a.reciprocal().masked_fill_(a == 0, 0)


def scaled(v: Tensor, by: Tensor) -> Tensor:
    """Vectors times scalars."""
    return v * by.to(v.dtype)[:, None]


def add_scaled(y: Tensor, v: Tensor, by: Tensor, sign: int = 1) -> Tensor:
    """y += by v, or y -= by v with sign -1, in place."""
    return y.addcmul_(v, by.to(v.dtype)[:, None], value=sign)


def add_product(r: Tensor, p: Tensor, by: Tensor) -> Tensor:
    """p = r + by p, in place."""
    return torch.addcmul(r, p, by.to(p.dtype)[:, None], out=p)


def squares_of(v: Tensor) -> Tensor:
    """Squared norms (items, n), float64."""
    return real(krylov_dot(v, v)).contiguous()


@kernel("krylov_active(Tensor(a!) active, Tensor squares, Tensor bounds, Tensor broken) -> ()")
def krylov_active(active: Tensor, squares: Tensor, bounds: Tensor, broken: Tensor) -> None:
    """Writes into `active` which columns go on: residuals above the bounds, and not broken.

    Args:
        active: Bool (items, n).
        squares: Squared norms of the residuals (items, n), float64.
        bounds: The squared norms to stop at, of the same shape and dtype.
        broken: Bool (items, n): where the method can't go on.
    """
    torch.gt(squares > bounds, broken, out=active)  # and not broken


@kernel(
    "krylov_left(Tensor(a!) active, Tensor squares, Tensor bounds, Tensor broken) -> int",
    fake=lambda active, squares, bounds, broken: 0,
)
def krylov_left(active: Tensor, squares: Tensor, bounds: Tensor, broken: Tensor) -> int:
    """As `krylov_active`, and the number of columns that go on in an item; the host waits for it.

    Args:
        active: As there.
        squares: As there.
        bounds: As there.
        broken: As there.
    """
    krylov_active(active, squares, bounds, broken)
    return int(active.any(0).sum())


@kernel("krylov_dot(Tensor a, Tensor b) -> Tensor")
def krylov_dot(a: Tensor, b: Tensor) -> Tensor:
    """The scalar products sum_i conj(a_i) b_i of the columns (items, n), in 64-bit numbers.

    Args:
        a: Vectors (items, m, n).
        b: Vectors of the same shape and dtype.
    """
    return (a.conj().to(wide(a)) * b.to(wide(a))).sum(1)


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


@kernel(
    "krylov_subtract(Tensor(a!) y, Tensor v, Tensor alpha, Tensor? before, Tensor? beta) -> Tensor"
)
def krylov_subtract(
    y: Tensor, v: Tensor, alpha: Tensor, before: Tensor | None, beta: Tensor | None
) -> Tensor:
    """y -= alpha v + beta before, in place, and the squared norms (items, n) of the new y, float64.

    Args:
        y: Vectors (items, m, n).
        v: Vectors of the same shape and dtype.
        alpha: Scalars (items, n), of which the real part is taken.
        before: Vectors like v, or None.
        beta: Scalars like alpha; None without `before`.
    """
    add_scaled(y, v, real(alpha), -1)
    if before is not None and beta is not None:
        add_scaled(y, before, real(beta), -1)
    return squares_of(y)


@kernel("krylov_normalise(Tensor(a!) v, Tensor squares) -> Tensor")
def krylov_normalise(v: Tensor, squares: Tensor) -> Tensor:
    """v over its size, in place, 0 where that is 0; and the sizes (items, n), float64.

    Args:
        v: Vectors (items, m, n).
        squares: Their squared norms (items, n), float64.
    """
    size = squares.sqrt()
    v.mul_(inverse(size).to(v.dtype)[:, None])
    return size
