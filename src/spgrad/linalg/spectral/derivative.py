"""The derivative of eigenvalues and eigenvectors, of every order.

A change of a pair (e, x) of A x = e M x, with vectors that M makes orthonormal, is

    de = x^H (dA - e dM) x,
    dx = sum_j x_j x_j^H (dA - e dM) x / (e - e_j) - x (x^H dM x) / 2

over all other eigenvectors x_j. For the cotangents h of e and g of x, with

    w = x h + sum_j x_j (x_j^H g) / (e - e_j),

the gradient of A is the sum of w x^H over the pairs, that of M the sum of -e w x^H - Re(x^H g)
x x^H / 2, both as the mean with their conjugate transposes. The sum over the pairs that were found
is in closed form; that over the others is `complement`, one linear system for each pair. Each of
the three nodes has a backward that is made of the three and of products.
"""

from __future__ import annotations

from typing import Any

import torch

from spgrad.linalg.spectral.arpack import Problem, pairs_of
from spgrad.linalg.spectral.arpack import phase as phase_of
from spgrad.linalg.spectral.complement import complement_of
from spgrad.linalg.spectral.repeated import quotients
from spgrad.lowering.products.spmm import wants_grad
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import Function, transforming


def eigenpairs(
    a: torch.Tensor, b: torch.Tensor | None, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues (k,), ascending, and vectors (m, k) of the pencil with these values."""
    if not _wanted(a, b):
        return _split(_found(a, b, problem))
    E, X = _split(_Vectors.apply(a, b, problem))
    E = _values(a, b, X, E.detach(), problem)
    return E, X * phase_of(X) if X.is_complex() else X


def _wanted(*tensors: torch.Tensor | None) -> bool:
    return wants_grad(*(t for t in tensors if t is not None))


def _found(a: torch.Tensor, b: torch.Tensor | None, problem: Problem) -> torch.Tensor:
    """Eigenvalues as the first row, and vectors below it."""
    with torch.no_grad():
        E, X = pairs_of(problem.numbers(a, b), problem.options)
        return torch.cat([E[None].to(X.dtype), X])


def _split(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return packed[0].real, packed[1:]


def _values(
    a: torch.Tensor,
    b: torch.Tensor | None,
    X: torch.Tensor,
    E: torch.Tensor,
    problem: Problem,
) -> torch.Tensor:
    """The eigenvalues E of the vectors X, as a function of the values alone."""
    if not _wanted(a, b):
        return E
    return _Values.apply(a, b, X, E, problem)  # type: ignore[return-value]


class _Values(Function):
    """The eigenvalues; only the second derivative needs X, in which they are stationary."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor | None,
        X: torch.Tensor,
        E: torch.Tensor,
        problem: Problem,
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b, X, E)
        ctx.problem = problem
        return E.clone()

    @staticmethod
    @in_given_precision
    def backward(ctx: Any, h: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        a, b, X, E = ctx.saved_tensors
        pencil = ctx.problem.pencil
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = pencil.squares_sampled(a, h, X)
        if ctx.needs_input_grad[1]:
            E = _values(a, b, X, E, ctx.problem)
            grad_b = pencil.weight_sampled(-X * (h * E), X)
        if transforming():  # torch.func takes tensors, and no None
            return grad_a, grad_b, torch.zeros_like(X), torch.zeros_like(E), None
        return grad_a, grad_b, None, None, None


class _Vectors(Function):
    """The pairs in one tensor; no derivative goes through its first row, the eigenvalues."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, a: torch.Tensor, b: torch.Tensor | None, problem: Problem
    ) -> torch.Tensor:
        packed = _found(a, b, problem)
        ctx.save_for_backward(a, b, packed)
        ctx.problem = problem
        ctx.set_materialize_grads(False)
        return packed

    @staticmethod
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        if g is None:
            return None, None, None
        a, b, packed = ctx.saved_tensors
        problem = ctx.problem
        pencil = problem.pencil
        E, X = _split(packed)
        E, g = _values(a, b, X, E.detach(), problem), g[1:]
        S = X.mH @ g
        W = X @ (S * quotients(S.detach(), E, pencil.scale(a, b), pencil.told)) + _complement(
            a, b, g, X, E, problem
        )
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = pencil.sampled(a, W, X)
        if ctx.needs_input_grad[1]:
            own = S.diagonal().real / 2
            grad_b = pencil.weight_sampled(-W * E - X * own, X)
        return grad_a, grad_b, None


def _complement(
    a: torch.Tensor,
    b: torch.Tensor | None,
    g: torch.Tensor,
    X: torch.Tensor,
    E: torch.Tensor,
    problem: Problem,
) -> torch.Tensor:
    """Column by column, the sum over the eigenvectors not found of x_j (x_j^H g) / (e - e_j)."""
    if _wanted(a, b, g, X, E):
        return _Complement.apply(a, b, g, X, E, problem)  # type: ignore[return-value]
    return complement_of(problem.numbers(a, b), g, X, E)


class _Complement(Function):
    """The y of a bordered system with B = M X and u = X^H g, for each pair with its own e.

    It is

        [e M - A  B] [y]   [g]
        [B^H      0] [u] = [0]

    and hermitian: with w and v those of the cotangent of y, the gradient of g is w, and that
    of the matrix -[w; v] [y; u]^H.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor | None,
        g: torch.Tensor,
        X: torch.Tensor,
        E: torch.Tensor,
        problem: Problem,
    ) -> torch.Tensor:
        y = complement_of(problem.numbers(a, b), g, X, E)
        ctx.save_for_backward(a, b, g, X, E, y)
        ctx.problem = problem
        return y

    @staticmethod
    @in_given_precision
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        a, b, g, X, E, y = ctx.saved_tensors
        problem = ctx.problem
        pencil = problem.pencil
        w = _complement(a, b, cotangent, X, E, problem)
        border = -(w @ (g.mH @ X)) - y @ (cotangent.mH @ X)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = pencil.sampled(a, w, y)
        if ctx.needs_input_grad[1]:
            left, right = torch.cat([-w * E, border], 1), torch.cat([y, X], 1)
            grad_b = pencil.weight_sampled(left, right)
        grad_E = -(w.conj() * pencil.weigh(b, y)).sum(0).real
        return grad_a, grad_b, w, pencil.weigh(b, border), grad_E, None
