"""Dense steps of graph layers: two products that read the features once, and rows of norm 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spgrad.core.tensor import SparseTensor
from spgrad.lowering.products.spmm import wants_grad
from spgrad.torch_protocol.func_transforms import Derived, transforming

_AT_ONCE = 2**18
"""A chunk of rows of all operands has this many numbers, so that it stays in the cache.

Gradients of weights are sums over chunks. So that they are the same everywhere, the chunk depends
neither on the cache nor on the number of threads.
"""
_FEWEST = 512
"""With fewer rows in a chunk, a product is bound by arithmetic, and a chunk gains nothing."""
_LEAST = 2**21
"""Features and products of fewer numbers stay in the cache between two products of all rows."""


def two_products(
    x: torch.Tensor, linear: nn.Linear, mix: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear(x)` of a layer without bias, and x mix.

    If x has few columns, most of the time goes into reading x from memory. So chunks of its rows
    are multiplied by both factors while they are in the cache. The backward does the same with
    chunks of the cotangents.
    """
    rows = _rows_at_once(x, linear, mix)
    if not rows:
        return linear(x), x @ mix  # type: ignore[return-value]
    weight = linear.weight
    if wants_grad(x, weight, mix):
        return _TwoProducts.apply(x, weight, mix, rows)  # type: ignore[return-value]
    return _products(x, weight, mix, rows)


def _rows_at_once(x: torch.Tensor, linear: nn.Linear, mix: torch.Tensor) -> int:
    """Rows of a chunk, or 0 where chunks do not pay or a call of the layer does more."""
    if torch.compiler.is_compiling() or transforming() or isinstance(x, SparseTensor):
        return 0
    plain = type(linear) is nn.Linear and linear.bias is None
    if not plain or linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks:
        return 0
    fits = x.dtype == linear.weight.dtype == mix.dtype and x.dtype in (torch.float32, torch.float64)
    if not fits or x.device.type != "cpu" or x.dim() != 2 or torch.is_autocast_enabled("cpu"):
        return 0
    if x.shape[0] * (x.shape[1] + linear.weight.shape[0]) < _LEAST:
        return 0
    rows = _AT_ONCE // max(2 * x.shape[1] + linear.weight.shape[0] + mix.shape[1], 1)
    if rows < _FEWEST:
        return 0
    return rows if x.shape[0] > 2 * rows else 0


def _products(
    x: torch.Tensor, weight: torch.Tensor, mix: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    y, s = x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0], mix.shape[1])
    for part, of_y, of_s in zip(x.split(rows), y.split(rows), s.split(rows), strict=True):
        torch.mm(part, weight.t(), out=of_y)
        torch.mm(part, mix, out=of_s)
    return y, s


class _TwoProducts(Derived):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, mix: Any, rows: int) -> Any:  # type: ignore[override]
        ctx.save_for_backward(x, weight, mix)
        ctx.rows = rows
        return _products(x, weight, mix, rows)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight, mix = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():
            of_x = torch.addmm(g @ weight, h, mix.t()) if wanted[0] else None
            of_weight = g.t() @ x if wanted[1] else None
            return of_x, of_weight, x.t() @ h if wanted[2] else None, None
        of_x = torch.empty_like(x) if wanted[0] else None
        of_weight = torch.zeros_like(weight) if wanted[1] else None
        of_mix = torch.zeros_like(mix) if wanted[2] else None
        parts = zip(x.split(ctx.rows), g.split(ctx.rows), h.split(ctx.rows), strict=True)
        for at, (part, of_y, of_s) in enumerate(parts):
            if of_x is not None:
                out = of_x[at * ctx.rows : (at + 1) * ctx.rows]
                torch.mm(of_y, weight, out=out)
                out.addmm_(of_s, mix.t())
            if of_weight is not None:
                of_weight.addmm_(of_y.t(), part)
            if of_mix is not None:
                of_mix.addmm_(part.t(), of_s)
        return of_x, of_weight, of_mix, None


def unit_rows(y: torch.Tensor) -> torch.Tensor:
    """The rows divided by their 2-norms, as torch.nn.functional.normalize divides them.

    That function gives NaN for a row of zeros in float16, where its least norm of 1e-12 is 0, and
    in every dtype as the second derivative there.
    """
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    squares = (wide * wide.conj()).real.sum(-1, keepdim=True)  # which autocast leaves as they are
    least = max(1e-12, torch.finfo(y.dtype).tiny)
    small = squares <= least * least
    norms = torch.where(small, least, torch.where(small, 1, squares).sqrt())
    return y / norms.to(y.real.dtype)
