"""Least squares."""

from __future__ import annotations

from typing import cast

import torch

from spgrad.dropin.torchsparsegradutils.utils.closures import Times, Vectors, run, times_of
from spgrad.linalg.solvers.lsmr import LSMR


@torch.no_grad()
def lsmr(
    A: torch.Tensor | Times,
    b: torch.Tensor,
    Armat: torch.Tensor | Times | None = None,
    n: int | None = None,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    conlim: float = 1e8,
    maxiter: int | None = None,
    x0: torch.Tensor | None = None,
    check_nonzero: bool = True,
) -> tuple[torch.Tensor, int]:
    """The x with the least ||A x - b||^2 + damp^2 ||x||^2, and the steps, by `spgrad.linalg.LSMR`.

    The iteration ends where the norm of A^H r is at most `atol` times that of A^H b. An `atol`
    above 1e-8 (1e-5 for float32) is lowered to that. `btol`, `conlim` and `check_nonzero` have no
    effect. If A is a function, pass `Armat`, the products with A^H, and `n`, the columns of A.

    Example:
        >>> x, steps = lsmr(2 * torch.eye(2), torch.ones(2))
        >>> x, steps
        (tensor([0.5000, 0.5000]), 1)
    """
    n = A.shape[1] if n is None and isinstance(A, torch.Tensor) else n
    if n is None:
        raise RuntimeError("n is missing: the columns of A, which a function does not tell")
    times = times_of(A)
    if Armat is None and isinstance(A, torch.Tensor):
        Armat = torch.adjoint(A)
    adjoint = times_of(Armat, "Armat")
    b = torch.atleast_1d(b).reshape(-1)
    m = b.shape[0]
    own = 1e-5 if b.dtype in (torch.float32, torch.complex64) else 1e-8
    steps = min(m, n) if maxiter is None else maxiter
    solver = LSMR(rtol=min(atol, own), max_iter=steps, strict=False)
    closure = Vectors(times, adjoint, ())
    if damp:  # the rows damp I below A

        def damped(x: torch.Tensor) -> torch.Tensor:
            return torch.cat((times(x), damp * x))

        def damped_adjoint(u: torch.Tensor) -> torch.Tensor:
            return adjoint(u[:m]) + damp * u[m:]

        closure = Vectors(damped, damped_adjoint, ())
        b = torch.cat((b, b.new_zeros(n)))
    start = None if x0 is None else torch.atleast_1d(x0).reshape(-1, 1)
    x, info = run(solver, closure, b.unsqueeze(-1), start, least=True)
    return cast(torch.Tensor, x.reshape(-1)), info.iterations
