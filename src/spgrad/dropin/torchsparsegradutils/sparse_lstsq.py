"""Least squares by a function that the caller passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad import ops
from spgrad.core.interop import from_torch
from spgrad.dropin.torchsparsegradutils.sparse_solve import native
from spgrad.dropin.torchsparsegradutils.utils.lsmr import lsmr
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.products.spmm import sddmm
from spgrad.ops.products.broadcast import flat
from spgrad.torch_protocol.func_transforms import Function

Solve = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def sparse_generic_lstsq(
    A: torch.Tensor,
    B: torch.Tensor,
    lstsq: Solve | None = None,
    transpose_lstsq: Solve | None = None,
) -> torch.Tensor:
    """The X with the least ||A X - B|| by `lstsq(A, B)`, for a tall A of full rank.

    `transpose_lstsq(A, g)` gives the L of least norm with A^T L = g, for gradients. By default both
    are `utils.lsmr`.

    Example:
        >>> A = torch.tensor([[1.0], [1.0]]).to_sparse_csr()
        >>> sparse_generic_lstsq(A, torch.tensor([[1.0], [3.0]]))
        tensor([[2.]])
    """
    T = without_repeats(from_torch(A))
    how = lstsq or _by_lsmr, transpose_lstsq or _by_transposed_lsmr
    X = _Lstsq.apply(flat(T), B, T._pattern, how)
    if B.dim() == 1:
        return X.squeeze(-1) if X.dim() == 2 else X
    return X.unsqueeze(1) if X.dim() == 1 else X


def _by_lsmr(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    if B.dim() == 1:
        return lsmr(A, B)[0]
    return torch.stack([lsmr(A, b)[0] for b in B.unbind(1)], 1)


def _by_transposed_lsmr(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return _by_lsmr(A.mT, B)


class _Lstsq(Function):
    """X = A^+ B. With L = A^+H g and r = B - A X, the gradients are L, and -L X^H + r (A^+ L)^H.

    L is the conjugate of A^+T conj(g).
    """

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, B: torch.Tensor, *how: Any) -> torch.Tensor:  # type: ignore[override]
        pattern, (lstsq, _) = how
        X = lstsq(native(vals, pattern), B.detach())
        ctx.save_for_backward(vals, B, X)
        ctx.how = how
        return X

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, B, X = ctx.saved_tensors
        pattern, (lstsq, transpose_lstsq) = ctx.how
        if pattern.shape[1] > pattern.shape[0]:
            raise ValueError(f"A has shape {tuple(pattern.shape)}; a tall matrix is taken")
        A = native(vals, pattern)
        L = _columns(transpose_lstsq(A, g.conj().resolve_conj())).conj().resolve_conj()
        grad_B = L.reshape(B.shape)
        if not ctx.needs_input_grad[0]:
            return None, grad_B, None, None
        X, B = _columns(X), _columns(B)
        residual = B - ops.matmul(A, X)
        left = torch.cat((-L, residual), 1)
        right = torch.cat((X, _columns(lstsq(A, L))), 1)
        return sddmm(left, right.conj(), pattern), grad_B, None, None


def _columns(x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(1) if x.dim() == 1 else x
