"""Arithmetic of the iterative solvers: vectors (items, m, n) and scalars (items, n).

Scalars stay on the device: what a division by zero or a breakdown leaves out is chosen by masks. A
comparison of two masks is one call: `a > b` is "a and not b", `a <= b` is "b, or not a".
"""

from __future__ import annotations

import torch

from spgrad import kernels
from spgrad.lowering import align

dot = kernels.krylov_dot


def scaled(v: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Vectors times scalars."""
    return v * by.to(v.dtype)[:, None]


def add_scaled(y: torch.Tensor, v: torch.Tensor, by: torch.Tensor, sign: int = 1) -> torch.Tensor:
    """y += by v, or y -= by v with sign -1, in place."""
    return y.addcmul_(v, by.to(v.dtype)[:, None], value=sign)


def add_product(r: torch.Tensor, p: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """p = r + by p, in place."""
    return torch.addcmul(r, p, by.to(p.dtype)[:, None], out=p)


def quotient(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """a / b where the condition holds and b is not 0, else 0."""
    return (a / b).masked_fill_(where <= (b == 0), 0)


def inverse(a: torch.Tensor) -> torch.Tensor:
    """1 / a, and 0 for 0."""
    return a.reciprocal().masked_fill_(a == 0, 0)


def perhaps(where: torch.Tensor) -> bool:
    """Whether the condition may hold somewhere: the host asks the CPU, but never a device."""
    return align.asks_device(where) or bool(where.any())
