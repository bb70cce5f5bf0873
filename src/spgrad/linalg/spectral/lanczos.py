"""The logarithm of a determinant without a factor: stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentKindError, ArgumentValueError, PivotError, in_gradient_of
from spgrad.linalg.assume import require_true
from spgrad.linalg.solve import Kept, System, require_finite, solve_with
from spgrad.linalg.solvers.cg import CG
from spgrad.linalg.solvers.operators import Matrix
from spgrad.linalg.solvers.protocol import Solver
from spgrad.linalg.solvers.vectors import add_scaled, dot, quotient, scaled
from spgrad.linalg.spectral.pencil import mean_sampled
from spgrad.lowering.operands import require_int
from spgrad.lowering.products.spmm import wants_grad
from spgrad.ops.products.broadcast import flat
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import Function

PROBES = 32
"""Default number of random vectors."""

FIRST_STEPS, MOST_STEPS = 16, 512
"""By default: steps before the first estimate, and the most steps."""

SETTLED = 0.1
"""The steps suffice if the last doubling changed the estimate by this share of its error."""


class Plan(NamedTuple):
    """Options of the quadrature, and what its gradient solves with."""

    pattern: Pattern
    steps: int | None
    kept: Kept


def lanczos_logdet(
    T: SparseTensor, probes: Any, steps: Any, generator: Any, solver: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Estimates of log det (*b,) of positive definite matrices, and their standard errors (*b,)."""
    n = PROBES if probes is None else _from_one("probes", probes)
    steps = None if steps is None else _from_one("steps", steps)
    checks.require_generator(generator)
    if solver is not None and not isinstance(solver, Solver):
        raise ArgumentKindError(
            f"`solver` is {checks.describe_kind(solver)}; a solver such as spgrad.linalg.CG() or "
            "None is accepted. Leave it out for conjugate gradients."
        )
    pattern, vals = T._pattern, flat(T)
    size = pattern.extent[0]
    if size == 0:
        none = vals.new_zeros(pattern.batch) + vals.sum()  # an empty sum keeps the graph
        return none, none.detach().abs()
    device = vals.device if generator is None else generator.device
    bits = torch.randint(0, 2, (size, n), generator=generator, device=device)
    probe = (2 * bits - 1).to(vals.device, vals.dtype)
    plan = Plan(pattern, steps, Kept(solver or CG(), "positive definite", pattern))
    if wants_grad(vals):
        found = _LanczosLogDet.apply(vals, probe, plan)
    else:
        found = _estimated(vals, probe, plan)
    value, error = found[0], found[1].detach()
    return value.to(vals.dtype).view(pattern.batch), error.view(pattern.batch)


def require_factor(method: Any, **others: Any) -> None:
    """Refuses an unknown method, and arguments that "factor" does not take."""
    if method != "factor":
        raise ArgumentValueError(f'`method` is {method!r}; "factor" and "lanczos" are accepted.')
    for name, value in others.items():
        if value is not None:
            raise ArgumentValueError(
                f'`{name}` is given and `method` is "factor"; it is accepted for "lanczos" alone. '
                "Leave it out."
            )


def _from_one(arg: str, value: Any) -> int:
    if require_int(arg, value) < 1:
        raise ArgumentValueError(f"`{arg}` is {value}; ints from 1 are accepted. For example 32.")
    return value


class _LanczosLogDet(Function):
    """Values and standard errors (2, items); no derivative goes through the errors.

    d log det A = tr(A^-1 dA), and the mean of z^H A^-1 dA z over the probes z is an estimate of it
    (Hutchinson), so that the gradient is the mean of A^-H z z^H. It is not the derivative of the
    quadrature, but an estimate of the derivative of log det A. The derivatives of that estimate
    are exact, and so estimate the higher derivatives of log det A.
    """

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, probe: torch.Tensor, plan: Plan) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(vals, probe)
        ctx.plan = plan
        return _estimated(vals, probe, plan)

    @staticmethod
    @in_gradient_of("linalg.logdet")
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, probe = ctx.saved_tensors
        pattern: Pattern = ctx.plan.pattern
        solved = solve_with(vals, probe, System(pattern, ctx.plan.kept))
        weight = g[0].repeat_interleave(pattern.matrix[0])[:, None] / probe.shape[1]
        return mean_sampled(solved * weight, probe, pattern), None, None


def _estimated(vals: torch.Tensor, probe: torch.Tensor, plan: Plan) -> torch.Tensor:
    with torch.no_grad():
        A = SparseTensor(plain(vals.detach()).view(plan.pattern.values_shape), plan.pattern)
        require_finite("A", A._vals)
        says, instead = 'method="lanczos" needs matrices that are', 'take method="factor"'
        require_true(A, "positive definite", says, instead=instead)
        run = _Run(Matrix(A, hermitian=True), plain(probe))
        m = plan.pattern.matrix[0]
        found, error = run.until(min(plan.steps or FIRST_STEPS, m))
        if plan.steps is None:
            most = min(MOST_STEPS, m)
            while len(run.alpha) < most:
                before = found
                found, error = run.until(min(2 * len(run.alpha), most))
                if bool(((found - before).abs() <= SETTLED * error).all()):
                    break
        return torch.stack([found, error]).to(A.dtype.to_real())


class _Run:
    """The Lanczos process of all probes at once.

    The three-term recurrence keeps two vectors of each probe, and of each step only the
    coefficients alpha and beta. New vectors are not orthogonalised against earlier ones: some Ritz
    values then occur twice, which does not make the quadrature less accurate.
    """

    def __init__(self, A: Matrix, probe: torch.Tensor) -> None:
        self.A = A
        self.m = probe.shape[0] // A.items
        self.v = probe.view(A.items, self.m, -1) / math.sqrt(self.m)
        self.before = torch.zeros_like(self.v)
        self.alpha: list[torch.Tensor] = []  # (items, n), float64
        self.beta: list[torch.Tensor] = []
        self.ended = torch.zeros_like(dot(self.v, self.v).real, dtype=torch.bool)

    def until(self, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Estimates (items,) after this many steps in all, and their standard errors (items,)."""
        while len(self.alpha) < steps:
            self._step()
        alpha, beta = torch.stack(self.alpha, -1), torch.stack(self.beta[:-1] or self.beta, -1)
        T = torch.diag_embed(alpha)
        if len(self.alpha) > 1:
            T = T + torch.diag_embed(beta, 1) + torch.diag_embed(beta, -1)
        theta, U = torch.linalg.eigh(T)
        least = float(theta.min())
        if not least > 0:
            raise PivotError(
                f"`A` is not positive definite: its smallest eigenvalue is at most {least:.3g}; "
                'positive definite matrices are accepted. Take method="factor".'
            )
        each = self.m * (U[..., 0, :] ** 2 * theta.log()).sum(-1)  # (items, n)
        n = each.shape[1]
        error = each.std(1) / math.sqrt(n) if n > 1 else torch.full_like(each[:, 0], math.nan)
        return each.mean(1), error

    def _step(self) -> None:
        w = self.A.times(self.v)
        if self.beta:
            add_scaled(w, self.before, -self.beta[-1])
        alpha = dot(self.v, w).real
        add_scaled(w, self.v, -alpha)
        beta = dot(w, w).real.clamp(min=0).sqrt()
        # the vectors span a space that A maps to itself, or had done so before: the rest of the
        # tridiagonal matrix is that of the identity, and has no weight
        eps = torch.finfo(w.dtype).eps
        alpha = torch.where(self.ended, 1, alpha)
        self.ended = self.ended | (beta <= 10 * eps * alpha.abs())
        beta = torch.where(self.ended, 0, beta)
        self.alpha.append(alpha)
        self.beta.append(beta)
        inverse = quotient(torch.ones_like(beta), beta, ~self.ended)
        self.before, self.v = self.v, scaled(w, inverse)
