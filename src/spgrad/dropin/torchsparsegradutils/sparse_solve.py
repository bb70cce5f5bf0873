"""Triangular systems, and systems solved by a function that the caller passes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from spgrad import linalg
from spgrad.core.interop import from_torch, to_torch
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.dropin.torchsparsegradutils.checked import require_product
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.products.spmm import sddmm
from spgrad.lowering.views import rows
from spgrad.ops.products.broadcast import flat
from spgrad.ops.solves.triangular import triangular_solve
from spgrad.torch_protocol.func_transforms import Function

Solve = Callable[..., torch.Tensor]


def sparse_triangular_solve(
    A: torch.Tensor,
    B: torch.Tensor,
    upper: bool = True,
    unitriangular: bool = False,
    transpose: bool = False,
) -> torch.Tensor:
    """X with A X = B, or A^T X = B, for a triangular COO or CSR matrix A, or a batch.

    Example:
        >>> A = torch.tensor([[2.0, 0.0], [1.0, 4.0]]).to_sparse_csr()
        >>> sparse_triangular_solve(A, torch.tensor([[2.0], [5.0]]), upper=False)
        tensor([[1.],
                [1.]])
    """
    require_product(A, B)
    if A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A has shape {tuple(A.shape)}; a square matrix or batch is taken")
    T = from_torch(A)
    if unitriangular and T.requires_grad and _has_diagonal(T):
        raise ValueError("A has elements on its diagonal, which unitriangular=True has as ones")
    return triangular_solve(B, T, upper, transpose, unitriangular).solution


def _has_diagonal(T: SparseTensor) -> bool:
    view = rows(T._pattern)
    row = torch.repeat_interleave(torch.arange(len(view.ptr) - 1), view.ptr.diff().cpu())
    return bool((row == view.idx.cpu()).any())


def sparse_generic_solve(
    A: torch.Tensor,
    B: torch.Tensor,
    solve: Solve | None = None,
    transpose_solve: Solve | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """X with A X = B by `solve(A, B, **kwargs)`; `transpose_solve` solves with A^T for gradients.

    If one is left out, it is the other one, called with A^T. If both are left out, `solve` is
    `utils.minres` for a symmetric A, and `utils.bicgstab` for others.

    Example:
        >>> A = (2 * torch.eye(2)).to_sparse_csr()
        >>> sparse_generic_solve(A, torch.ones(2, 1))
        tensor([[0.5000],
                [0.5000]])
    """
    _require_system(A, B)
    T = without_repeats(from_torch(A))
    if transpose_solve is None:
        solve = solve or _default(T)
        how = _How(solve, _with_transpose(solve), kwargs)
    else:
        how = _How(solve or _with_transpose(transpose_solve), transpose_solve, kwargs)
    X = _GenericSolve.apply(flat(T), B, T._pattern, how)
    if B.dim() == 1:
        return X.squeeze(-1) if X.dim() == 2 and X.shape[1] == 1 else X
    return X.unsqueeze(-1) if X.dim() == 1 else X


def _default(T: SparseTensor) -> Solve:
    from spgrad.dropin.torchsparsegradutils.utils.bicgstab import bicgstab
    from spgrad.dropin.torchsparsegradutils.utils.minres import minres

    return minres if linalg.is_symmetric(T) else bicgstab


def _with_transpose(solve: Solve) -> Solve:
    """The function that calls `solve` with A^T, in the layout of A."""

    def solved(A: torch.Tensor, B: torch.Tensor, **options: Any) -> torch.Tensor:
        AT = A.mT
        AT = AT.coalesce() if AT.layout == torch.sparse_coo else AT.to_sparse_csr()
        return solve(AT, B, **options)

    return solved


class _How(NamedTuple):
    """The functions that solve with a matrix and with its transpose."""

    solve: Solve
    transpose_solve: Solve
    options: dict[str, Any]
    transposed: bool = False  # `solve` is the one for A^T


class _GenericSolve(Function):
    """A X = B by a function. The gradient of B is L with A^H L = g, that of A is -L X^H.

    L is the conjugate of A^-T conj(g). For A^T X = B, A is conjugated in both: -conj(X) L^T.
    """

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, B: torch.Tensor, *how: Any) -> torch.Tensor:  # type: ignore[override]
        pattern, functions = how
        A = native(vals, pattern)
        X = functions.solve(A, B.detach(), **functions.options).to(A.dtype)
        ctx.save_for_backward(vals, X)
        ctx.how = how
        return X

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, X = ctx.saved_tensors
        pattern, (solve, transpose_solve, options, transposed) = ctx.how
        other = _How(transpose_solve, solve, options, not transposed)
        L = _GenericSolve.apply(vals, g.conj().resolve_conj(), pattern, other).conj()
        left, right = (t.unsqueeze(-1) if t.dim() == 1 else t for t in (L, X.conj()))
        if transposed:
            left, right = right, left
        grad_vals = -sddmm(left, right, pattern) if ctx.needs_input_grad[0] else None
        return grad_vals, L, None, None


def native(vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """torch's own sparse tensor of these values, without gradient."""
    return to_torch(SparseTensor(vals.detach().view(pattern.values_shape), pattern))


def _require_system(A: Any, B: Any) -> None:
    if not isinstance(A, torch.Tensor) or not isinstance(B, torch.Tensor):
        raise ValueError(f"A is {type(A).__name__} and B is {type(B).__name__}; tensors are taken")
    if A.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise TypeError(f"A has layout {A.layout}; COO and CSR are taken")
    if A.dim() != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"A has shape {tuple(A.shape)}; a square matrix is taken")
    if B.dim() not in (1, 2) or B.shape[0] != A.shape[0]:
        raise ValueError(f"B has shape {tuple(B.shape)}; ({A.shape[0]},) or more columns is taken")
    if B.layout != torch.strided:
        raise TypeError(f"B has layout {B.layout}; a dense tensor is taken")
    if A.dtype != B.dtype:
        warnings.warn(f"A has dtype {A.dtype} and B has {B.dtype}", UserWarning, stacklevel=3)
