"""Stabilised biconjugate gradients."""

from __future__ import annotations

import logging
import warnings
from typing import NamedTuple

import torch

from spgrad.dropin.torchsparsegradutils.utils.closures import Closure, Times, Vectors, run, times_of
from spgrad.linalg.solvers.bicgstab import BiCGSTAB

_SILENT = logging.getLogger("spgrad.bicgstab")


class BICGSTABSettings(NamedTuple):
    """Options of `bicgstab`."""

    matvec_max: int | None = None
    abstol: float = 1.0e-8
    reltol: float = 1.0e-6
    precon: torch.Tensor | Times | None = None
    logger: logging.Logger = _SILENT


def bicgstab(
    matmul_closure: torch.Tensor | Times,
    rhs: torch.Tensor,
    initial_guess: torch.Tensor | None = None,
    settings: BICGSTABSettings = BICGSTABSettings(),  # noqa: B008
) -> torch.Tensor:
    """x with A x = rhs, for any square A, by `spgrad.linalg.BiCGSTAB`.

    A function, of the matrix or of the preconditioner, is called with one vector (m,).

    Example:
        >>> bicgstab(2 * torch.eye(2), torch.ones(2))
        tensor([0.5000, 0.5000])
    """
    times = times_of(matmul_closure)
    precon = settings.precon
    inverse = None if precon is None else times_of(precon, "settings.precon")
    products = 2 * rhs.shape[0] if settings.matvec_max is None else settings.matvec_max
    if products < 0:
        raise ValueError(f"matvec_max must be nonnegative, and is {products}")
    if products == 0:
        text = "matvec_max=0 returns the initial guess, or zeros, without evaluating the operator"
        warnings.warn(text, UserWarning, stacklevel=2)
        return torch.zeros_like(rhs) if initial_guess is None else initial_guess.clone()
    by_vectors = not isinstance(matmul_closure, torch.Tensor) or (
        precon is not None and not isinstance(precon, torch.Tensor)
    )
    if by_vectors and rhs.dim() > 1:
        starts = [None] * rhs.shape[1] if initial_guess is None else initial_guess.unbind(1)
        pairs = zip(rhs.unbind(1), starts, strict=True)
        return torch.stack([bicgstab(matmul_closure, b, x, settings) for b, x in pairs], 1)
    # a step takes two products, and the residual of a guess one; a step may exceed the bound by one
    steps = (products + (initial_guess is None)) // 2
    solver = BiCGSTAB(rtol=settings.reltol, atol=settings.abstol, max_iter=steps, strict=False)
    b = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
    start = None if initial_guess is None else initial_guess.reshape(b.shape)
    closure = (Vectors if by_vectors else Closure)(times, None, ())
    x, info = run(solver, closure, b, start, inverse)
    settings.logger.info("%d steps, residuals %s", info.iterations, info.residuals)
    return x.reshape(rhs.shape)
