"""Conjugate gradients."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch

from spgrad.dropin.torchsparsegradutils.utils.closures import (
    Closure,
    Times,
    run,
    times_of,
    tolerance,
)
from spgrad.linalg.solvers.cg import CG


class LinearCGSettings(NamedTuple):
    """Options of `linear_cg`."""

    max_cg_iterations: int = 1000
    max_lanczos_quadrature_iterations: int = 20
    cg_tolerance: float = 1
    terminate_cg_by_size: bool = False
    verbose_linalg: bool = False


def linear_cg(
    matmul_closure: torch.Tensor | Times,
    rhs: torch.Tensor,
    n_tridiag: int = 0,
    tolerance: float | None = None,
    eps: float = 1e-10,
    stop_updating_after: float = 1e-10,
    max_iter: int | None = None,
    max_tridiag_iter: int | None = None,
    initial_guess: torch.Tensor | None = None,
    preconditioner: Times | None = None,
    settings: LinearCGSettings = LinearCGSettings(),  # noqa: B008
) -> Any:
    """x with A x = rhs, for a symmetric positive definite A, by `spgrad.linalg.CG`.

    A tolerance larger than spgrad's default is lowered to it; `eps` and `stop_updating_after` have
    no effect. With `n_tridiag`, the result is (x, T) with the tridiagonal matrices T (n_tridiag,
    *b, k, k) of Lanczos' iteration from the first `n_tridiag` columns of rhs.

    Example:
        >>> linear_cg(2 * torch.eye(2), torch.ones(2))
        tensor([0.5000, 0.5000])
    """
    _require_vectors(rhs, initial_guess)
    asked = settings.cg_tolerance if tolerance is None else tolerance
    _require_settings(rhs.dtype, tolerance=asked, eps=eps, stop_updating_after=stop_updating_after)
    steps = settings.max_cg_iterations if max_iter is None else max_iter
    if settings.terminate_cg_by_size:
        steps = min(steps, rhs.shape[-1 if rhs.dim() == 1 else -2])
    most = max_tridiag_iter
    most = settings.max_lanczos_quadrature_iterations if most is None else most
    if n_tridiag and most > steps:
        raise RuntimeError(f"max_tridiag_iter is {most}, more than the {steps} iterations of CG")
    times, b = times_of(matmul_closure), rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
    start = None if initial_guess is None else initial_guess.reshape(b.shape)
    product = times(b.detach())
    if product.shape != b.shape:
        found, taken = tuple(product.shape), tuple(b.shape)
        raise RuntimeError(f"matmul_closure output has shape {found}; {taken} is taken")
    if bool(torch.isnan(product).any()):
        raise RuntimeError("a product with the matrix has NaN")
    found = _solved(times, b, start, preconditioner, asked, steps)
    x = found.squeeze(-1) if rhs.dim() == 1 else found
    if not n_tridiag:
        return x
    return x, _tridiagonal(times, b[..., :n_tridiag], min(most, b.shape[-2]))


def _require_vectors(rhs: torch.Tensor, start: torch.Tensor | None) -> None:
    """Refuses right-hand sides and guesses that are no vectors."""
    if rhs.dim() == 0:
        raise ValueError("rhs must have at least one dimension")
    if not (rhs.is_floating_point() or rhs.is_complex()):
        raise TypeError(f"rhs is {rhs.dtype}; floating-point numbers are taken")
    column = (*rhs.shape, 1) if rhs.dim() == 1 else rhs.shape
    if start is not None and start.shape not in (rhs.shape, torch.Size(column)):
        given = tuple(start.shape)
        raise ValueError(f"initial_guess must have shape {tuple(rhs.shape)}, and has {given}")


def _require_settings(dtype: torch.dtype, **given: float) -> None:
    """Refuses numbers that are negative or not finite, and an `eps` that is 0 in this dtype."""
    for name, value in given.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; finite numbers from 0 are taken")
    if float(torch.tensor(given["eps"], dtype=dtype)) == 0:
        raise ValueError(f"eps is {given['eps']}, not representable as a positive {dtype}")


def _solved(
    times: Times,
    b: torch.Tensor,
    start: torch.Tensor | None,
    preconditioner: Times | None,
    asked: float,
    steps: int,
) -> torch.Tensor:
    rtol = tolerance(asked, b.dtype)
    solver = CG(rtol=rtol, max_iter=steps, strict=False)
    closure = Closure(times, None, tuple(b.shape[:-2]))
    found, info = run(solver, closure, b, start, preconditioner)
    worst = float(info.residuals.max()) if info.residuals.numel() else 0.0
    if worst > max(asked, rtol):
        text = f"CG ended after {info.iterations} iterations with a relative residual of {worst}"
        warnings.warn(f"{text}; {asked} was asked for", UserWarning, stacklevel=3)
    return found.reshape(b.shape)


@torch.no_grad()
def _tridiagonal(times: Times, start: torch.Tensor, steps: int) -> torch.Tensor:
    """Lanczos' tridiagonal matrices; each vector is orthogonalised against all before it."""
    norm = torch.linalg.vector_norm(start, dim=-2, keepdim=True)
    basis = [start / norm]
    T = start.new_zeros(*start.shape[:-2], start.shape[-1], steps, steps)
    for k in range(steps):
        v = times(basis[k])
        T[..., k, k] = (basis[k] * v).sum(-2)
        for _ in range(2):
            for q in basis:
                v = v - q * (q * v).sum(-2, keepdim=True)
        beta = torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        if k + 1 == steps:
            break
        if bool((beta < 1e-6).all()):
            T = T[..., : k + 1, : k + 1]
            break
        T[..., k, k + 1] = T[..., k + 1, k] = beta.squeeze(-2)
        basis.append(v / beta.clamp(min=torch.finfo(v.dtype).tiny))
    return T.movedim(-3, 0).contiguous()
