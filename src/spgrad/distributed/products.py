"""y = A x and y = A^T x on shards, with derivatives of every order.

Rows of x travel while the entries in own columns are multiplied, and in the backward pass parts of
the gradient travel while those of the own columns are found.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from spgrad import kernels
from spgrad.core.values import plain
from spgrad.distributed.exchange import collect
from spgrad.distributed.plan import Plan
from spgrad.lowering.spmm import sddmm, spmm, spmm_gradients, wants_grad
from spgrad.lowering.views import rows as row_view

_PIECE = 1 << 20
"""Bytes of the rows of a product that are computed at once, before they are added to y; an eighth
of y, if that is more."""


def product(values: torch.Tensor, x: torch.Tensor, plan: Plan, adjoint: bool) -> torch.Tensor:
    """Own rows of A x, or of A^T x, from own rows of x (rows, n); a collective.

    Gradient: of x, A^T g or A g; of the values, g x^T at the pattern.
    """
    if wants_grad(values, x):
        return _Product.apply(values, x, plan, adjoint)  # type: ignore[return-value]
    return _forward(values, x, plan, adjoint)[0]


def sampled(g: torch.Tensor, x: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Values of g x^T at the pattern, from own rows of g (m, n) and of x (k, n); a collective."""
    own = sddmm(g, x, plan.own)
    return torch.cat([own, sddmm(_at_far(g, plan), collect(x, plan.exchange), plan.far)])


def _forward(
    values: torch.Tensor, x: torch.Tensor, plan: Plan, adjoint: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product, and the rows of x that arrived."""
    own, far = plan.halves(values)
    if adjoint:
        pending = plan.exchange.start_back(spmm(far, _at_far(x, plan), plan.far, True))
        y = spmm(own, x, plan.own, True)
        return plan.exchange.add(y, pending.wait()), x.new_empty(0)
    pending = plan.exchange.start(x)
    y = spmm(own, x, plan.own)
    arrived = pending.wait()
    del pending
    add_far(y, far, arrived, plan)
    return y, arrived


def add_far(y: torch.Tensor, far: torch.Tensor, arrived: torch.Tensor, plan: Plan) -> None:
    """Adds the product of `far` and the rows that arrived to y, some rows at a time."""
    ptr, idx, _, _ = row_view(plan.far)
    far, arrived = plain(far), plain(arrived)
    step = max(_PIECE // max(y.shape[1] * y.element_size(), 1), len(y) // 8, 1)
    for (begin, low), (end, high) in pairwise(_pieces(plan, step)):
        operands = ptr[begin : end + 1] - low, idx[low:high], None, far[low:high]
        part = kernels.spmm(*operands, arrived)
        if plan.far_rows is None:
            y[begin:end] += part
        else:
            y.index_add_(0, plan.far_rows[begin:end], part)
        del part  # before the next one


def _pieces(plan: Plan, step: int) -> list[tuple[int, int]]:
    """Where pieces of so many lines of `far` begin and the last ends: lines and entries; kept."""
    key, lines = f"pieces of {step}", plan.far.shape[0]
    if lines <= step:
        return [(0, 0), (lines, plan.far.nse)]
    if key not in plan.kept:
        bounds = [*range(0, lines, step), lines]
        plan.kept[key] = list(zip(bounds, row_view(plan.far).ptr[bounds].tolist(), strict=True))
    return plan.kept[key]


def _at_far(x: torch.Tensor, plan: Plan) -> torch.Tensor:
    """The rows of x (m, n) for which A has entries in columns of other processes."""
    return x if plan.far_rows is None else x.index_select(0, plan.far_rows)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, values: torch.Tensor, x: torch.Tensor, plan: Plan, adjoint: bool
    ) -> torch.Tensor:
        y, arrived = _forward(values, x, plan, adjoint)
        ctx.save_for_backward(values, x, arrived if values.requires_grad else x.new_empty(0))
        ctx.plan, ctx.adjoint = plan, adjoint
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        values, x, arrived = ctx.saved_tensors
        plan, adjoint = ctx.plan, ctx.adjoint
        needs = ctx.needs_input_grad[:2]
        g = g.contiguous()
        if not torch.is_grad_enabled():
            gradients = _adjoint_gradients if adjoint else _gradients
            return (*gradients(values, x, g, plan, needs, arrived), None, None)
        left, right = (x.conj(), g) if adjoint else (g, x.conj())
        grad_values = sampled(left, right, plan) if needs[0] else None
        grad_x = product(values.conj(), g, plan, not adjoint) if needs[1] else None
        return grad_values, grad_x, None, None


Gradients = tuple[torch.Tensor | None, torch.Tensor | None]


def _gradients(
    values: torch.Tensor,
    x: torch.Tensor,
    g: torch.Tensor,
    plan: Plan,
    needs: tuple[bool, bool],
    arrived: torch.Tensor,
) -> Gradients:
    """The gradients of y = A x; the part of that of x for other processes is sent first."""
    own, far = plan.halves(values)
    at_far = _at_far(g, plan)
    pending = None
    if needs[1]:  # by itself, so that its rows leave before the gradient of the values is found
        pending = plan.exchange.start_back(spmm(far.conj(), at_far, plan.far, True))
    grad_far = sddmm(at_far, arrived.conj(), plan.far) if needs[0] else None
    grad_own, grad_x = spmm_gradients(own, x, g, plan.own, False, needs)
    if pending is not None and grad_x is not None:
        plan.exchange.add(grad_x, pending.wait())
    return _joined(grad_own, grad_far), grad_x


def _adjoint_gradients(
    values: torch.Tensor,
    x: torch.Tensor,
    g: torch.Tensor,
    plan: Plan,
    needs: tuple[bool, bool],
    _: torch.Tensor,
) -> Gradients:
    """The gradients of y = A^T x; rows of g travel while the own rows are multiplied."""
    own, far = plan.halves(values)
    pending = plan.exchange.start(g)
    grad_own, grad_x = spmm_gradients(own, x, g, plan.own, True, needs)
    arrived = pending.wait()
    grad_far = sddmm(_at_far(x.conj(), plan), arrived, plan.far) if needs[0] else None
    if grad_x is not None:
        add_far(grad_x, far.conj(), arrived, plan)
    return _joined(grad_own, grad_far), grad_x


def _joined(own: torch.Tensor | None, far: torch.Tensor | None) -> torch.Tensor | None:
    return None if own is None or far is None else torch.cat([own, far])
