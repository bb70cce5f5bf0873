"""The minimal residual method, with shifts."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgrad.dropin.torchsparsegradutils.utils.closures import (
    Closure,
    Times,
    run,
    times_of,
    tolerance,
)
from spgrad.linalg.solvers.minres import MINRES


class MINRESSettings(NamedTuple):
    """Options of `minres`."""

    max_cg_iterations: int = 1000
    minres_tolerance: float = 1e-4
    verbose_linalg: bool = False


def minres(
    matmul_closure: torch.Tensor | Times,
    rhs: torch.Tensor,
    eps: float = 1e-25,
    shifts: torch.Tensor | None = None,
    value: float | None = None,
    max_iter: int | None = None,
    preconditioner: Times | None = None,
    settings: MINRESSettings = MINRESSettings(),  # noqa: B008
) -> torch.Tensor:
    """x with (value A + shift) x = rhs, for a symmetric A, by `spgrad.linalg.MINRES`.

    With several shifts, the result is (shifts, *b, m, n). A tolerance larger than spgrad's default
    is lowered to it; `eps` has no effect.

    Example:
        >>> minres(2 * torch.eye(2), torch.ones(2))
        tensor([0.5000, 0.5000])
    """
    times = times_of(matmul_closure)
    b = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
    with torch.no_grad():
        shape = times(b.detach()).shape  # the matrix may have a batch that rhs lacks
    b = b.expand(shape)
    closure_steps = settings.max_cg_iterations if max_iter is None else max_iter
    rtol = tolerance(settings.minres_tolerance, rhs.dtype)
    solver = MINRES(rtol=rtol, max_iter=closure_steps, strict=False)
    scale = 1.0 if value is None else value
    found = []
    for shift in (0.0,) if shifts is None else shifts.reshape(-1).tolist():

        def shifted(x: torch.Tensor, shift: float = shift) -> torch.Tensor:
            y = scale * times(x)
            return y + shift * x if shift else y

        closure = Closure(shifted, None, tuple(shape[:-2]))
        x = run(solver, closure, b, None, preconditioner)[0].reshape(shape)
        found.append(x.squeeze(-1) if rhs.dim() == 1 else x)
    return found[0] if len(found) == 1 else torch.stack(found)
