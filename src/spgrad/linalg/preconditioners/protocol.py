"""A preconditioner of any kind as one function of the residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.linalg.solvers.protocol import Applied, Assume, Preconditioner, Prepared, Solver

Apply = Callable[[torch.Tensor, bool], torch.Tensor]
"""M^-1 r, or M^-H r where the second argument is True, for r (items m, n)."""

Given = Preconditioner | Applied | Solver | Prepared | Callable[[torch.Tensor], torch.Tensor]
"""What an iterative solver takes for a preconditioner."""


def application(
    given: Any, A: SparseTensor, assume: Assume, unit: torch.Tensor | None = None
) -> Apply | None:
    """How a preconditioner acts on residuals; None without a preconditioner.

    A solver is applied by solving with r. A callable gets r alone, for A and for A^H alike: a
    preconditioner changes the number of steps, not the solution. If A was divided by a `unit`, the
    result of a preconditioner that the user made from the original matrix is multiplied by it.
    """
    made = given is None or isinstance(given, (Preconditioner, Solver))
    apply = _application(given, A, assume)
    if made or unit is None or apply is None:
        return apply
    return lambda r, adjoint: apply(r, adjoint) * unit


def _application(given: Any, A: SparseTensor, assume: Assume) -> Apply | None:
    if given is None:
        return None
    if isinstance(given, Preconditioner):
        given = given.prepare(A)
    if isinstance(given, Applied):
        return given.apply
    if isinstance(given, Solver):
        given = given.prepare(A, assume)
    if isinstance(given, Prepared):
        prepared = given
        return lambda r, adjoint: prepared.solve(r, adjoint=adjoint)[0]
    if not callable(given) or isinstance(given, type):
        raise ArgumentKindError(
            f"`preconditioner` is {checks.describe_kind(given)}; a preconditioner such as "
            "spgrad.linalg.Jacobi(), a solver, a callable or None is accepted. Call the class if "
            "you passed one."
        )
    function = given

    def apply(r: torch.Tensor, adjoint: bool) -> torch.Tensor:
        version = r._version
        z = function(r)
        if r._version != version:
            raise ArgumentValueError(
                "`preconditioner` has changed the residuals that it got; a function that leaves "
                "them as they are is accepted. Return a new tensor."
            )
        if not isinstance(z, torch.Tensor) or z.shape != r.shape:
            raise ArgumentKindError(
                f"`preconditioner` gave {checks.describe_kind(z)}; a dense tensor of shape "
                f"{tuple(r.shape)} is accepted. It gets residuals (m, n) and gives as many."
            )
        return z.to(r.dtype)

    return apply
