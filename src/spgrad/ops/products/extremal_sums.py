"""Products over minimum and plus, or maximum and plus, in place of plus and times."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern, View
from spgrad.core.values import plain
from spgrad.lowering.gather import added_at
from spgrad.lowering.products.spmm import spmm, wants_grad
from spgrad.lowering.views import rows
from spgrad.torch_protocol.func_transforms import Function


def plus_product(
    vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, largest: bool
) -> torch.Tensor:
    """The smallest (largest) a_ij + x_jc over the elements of each row i; inf (-inf) without any.

    For values (nse,) and x (k, n), or, with heads, for values (nse, h) and x (k, h, n).
    """
    if vals.dim() == 2:
        heads = range(vals.shape[1])
        each = [plus_product(vals[:, h].clone(), x[:, h].clone(), pattern, largest) for h in heads]
        # without heads: empty, but with a gradient for both operands
        return torch.stack(each, 1) if each else spmm(vals, x, pattern)
    if wants_grad(vals, x):
        return _PlusProduct.apply(vals, x, pattern, largest)  # type: ignore[return-value]
    return extremal_sums(vals, x, rows(pattern), largest)[0]


def extremal_sums(
    vals: torch.Tensor, x: torch.Tensor, view: View, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The extremum (m, n) of each line of a view, and the first entry that attains it, or -1."""
    return kernels.spmm_plus(view.ptr, view.idx, view.perm, plain(vals), plain(x), largest)


class _PlusProduct(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, largest: bool
    ) -> torch.Tensor:
        y, arg = extremal_sums(vals, x, rows(pattern), largest)
        ctx.save_for_backward(vals, x, arg)
        ctx.pattern = pattern
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, x, arg = ctx.saved_tensors
        view = rows(ctx.pattern)
        if vals.shape[0] == 0:
            return torch.zeros_like(vals), torch.zeros_like(x), None, None
        if not torch.is_grad_enabled():  # as those of products of ones
            ones = (torch.ones_like(t, memory_format=torch.contiguous_format) for t in (vals, x))
            operands = *ones, plain(g), arg
            grads = kernels.spmm_reduce_backward(view.ptr, view.idx, view.perm, *operands)
            return (*grads, None, None)
        at = arg.clamp(min=0)
        entry = (at if view.perm is None else view.perm[at]).to(torch.int64)
        share = torch.where(arg >= 0, g, 0)
        grad_vals = added_at(entry.view(-1), share.reshape(-1), vals.shape[0])
        column = view.idx[at].to(torch.int64)
        return grad_vals, torch.zeros_like(x).scatter_add(0, column, share), None, None
