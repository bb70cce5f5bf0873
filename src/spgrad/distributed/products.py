"""y = A x and y = A^T x on shards, with derivatives of every order.

Rows of x travel while the entries in own columns are multiplied, and in the backward pass parts of
the gradient travel while those of the own columns are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from spgrad import kernels
from spgrad.core.values import plain
from spgrad.distributed.exchange import Pending, collect
from spgrad.distributed.plan import Plan, join
from spgrad.lowering.products.spmm import (
    sddmm,
    spmm,
    wants_grad,
    write_gradients,
    write_sddmm,
)
from spgrad.lowering.views import View
from spgrad.lowering.views import cols as col_view
from spgrad.lowering.views import rows as row_view
from spgrad.torch_protocol.func_transforms import Function


def product(values: torch.Tensor, x: torch.Tensor, plan: Plan, adjoint: bool) -> torch.Tensor:
    """Own rows of A x, or of A^T x, from own rows of x (rows, n); a collective.

    Gradient: of x, A^T g or A g; of the values, g x^T at the pattern.
    """
    if wants_grad(values, x):
        return _Product.apply(values, x, plan, adjoint)  # type: ignore[return-value]
    return _forward(values, x, plan, adjoint)[0]


def sampled(g: torch.Tensor, x: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Values of g x^T at the pattern, from own rows of g (m, n) and of x (k, n); a collective."""
    arrived = collect(x, plan.exchange)
    far = [
        sddmm(part.lines_of(g), arrived[part.begin : part.end], part.pattern) for part in plan.far
    ]
    return join([sddmm(g, x, plan.own), *far])


def _forward(
    values: torch.Tensor, x: torch.Tensor, plan: Plan, adjoint: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product, and the rows of x that arrived."""
    own, *far = plan.split(values)
    if adjoint:
        pending = start_far(far, x, plan)
        y = _times(own, x, col_view(plan.own))
        return plan.exchange.add(y, pending), x.new_empty(0)
    pending = plan.exchange.start(x)
    y = multiply_own(own, x, plan)
    add_far(y, far, pending, plan)
    return y, pending.out


def multiply_own(own: torch.Tensor, x: torch.Tensor, plan: Plan) -> torch.Tensor:
    """The product of the entries in own columns."""
    return _times(own, x, row_view(plan.own))


def _times(values: torch.Tensor, x: torch.Tensor, view: View) -> torch.Tensor:
    """The product of one view, in no memory besides the result and, if permuted, the values."""
    return kernels.untiled_spmm(view.ptr, view.idx, _in_order(values, view), plain(x))


def _in_order(values: torch.Tensor, view: View) -> torch.Tensor:
    """The values in the order of a view."""
    values = plain(values)
    return values if view.perm is None else values.index_select(0, view.perm)


def add_far(y: torch.Tensor, far: list[torch.Tensor], pending: Pending, plan: Plan) -> None:
    """Adds the products of the parts of `far` to y, each when its rows have arrived."""
    arrived, waiting = plain(pending.out), list(zip(plan.far, far, strict=True))
    for _, end in pending.arrivals():
        while waiting and waiting[0][0].end <= end:
            part, values = waiting.pop(0)
            view = row_view(part.pattern)
            operands = plain(values), arrived[part.begin : part.end]
            kernels.add_spmm(y, view.ptr, view.idx, part.rows, *operands)


def start_far(far: list[torch.Tensor], g: torch.Tensor, plan: Plan) -> Pending:
    """Begins to return A^T g to the owners of its rows: those of a part when they are computed."""
    rows = g.new_zeros(plan.exchange.arriving, g.shape[1])

    def parts() -> Iterator[int]:
        for part, values in zip(plan.far, far, strict=True):
            view = col_view(part.pattern)
            operands = _in_order(values, view), plain(part.lines_of(g))
            kernels.add_spmm(rows[part.begin : part.end], view.ptr, view.idx, None, *operands)
            yield part.end

    return plan.exchange.start_back(rows, parts())


class _Product(Function):
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
    own, *far = plan.split(values)
    pending = None
    if needs[1]:  # by itself, so that its rows leave before the gradient of the values is found
        pending = start_far([v.conj() for v in far], g, plan)
    grad_values, grad_x = _own_gradients(own, x, g, plan, False, needs)
    _write_far(grad_values, g, arrived.conj(), plan)
    if pending is not None and grad_x is not None:
        plan.exchange.add(grad_x, pending)
    return grad_values, grad_x


def _adjoint_gradients(
    values: torch.Tensor,
    x: torch.Tensor,
    g: torch.Tensor,
    plan: Plan,
    needs: tuple[bool, bool],
    _: torch.Tensor,
) -> Gradients:
    """The gradients of y = A^T x; rows of g travel while the own rows are multiplied."""
    own, *far = plan.split(values)
    pending = plan.exchange.start(g)
    grad_values, grad_x = _own_gradients(own, x, g, plan, True, needs)
    if grad_x is not None:
        add_far(grad_x, [v.conj() for v in far], pending, plan)
    _write_far(grad_values, x.conj(), pending.wait(), plan)
    return grad_values, grad_x


def _own_gradients(
    own: torch.Tensor,
    x: torch.Tensor,
    g: torch.Tensor,
    plan: Plan,
    adjoint: bool,
    needs: tuple[bool, bool],
) -> Gradients:
    """The gradient of all values, of which those of own columns are written, and that of x."""
    if not needs[0]:
        return None, spmm(own.conj(), g, plan.own, not adjoint) if needs[1] else None
    grad = own.new_empty(plan.nse)
    out = plan.split(grad)[0]
    if needs[1]:
        return grad, write_gradients(out, own, x, g, plan.own, adjoint)
    left, right = (x.conj(), g) if adjoint else (g, x.conj())
    write_sddmm(out, left, right, plan.own)
    return grad, None


def _write_far(
    grad: torch.Tensor | None, g: torch.Tensor, arrived: torch.Tensor, plan: Plan
) -> None:
    """Writes the other values, g x^T at the entries in columns of others, part by part."""
    if grad is None:
        return
    for out, part in zip(plan.split(grad)[1:], plan.far, strict=True):
        rows = arrived[part.begin : part.end]
        write_sddmm(out, part.lines_of(g), rows, part.pattern)
