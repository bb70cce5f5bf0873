"""Products of a sparse and a dense matrix over other reductions than the sum."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.checks import describe_kind
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.dense_at import scaled_lines
from spgrad.lowering.gather import added_at
from spgrad.lowering.products.spmm import spmm, spmm_gradients, wants_grad
from spgrad.lowering.segments import Segments, segment_expand, segment_product, segments_of
from spgrad.lowering.views import rows
from spgrad.ops.products import broadcast
from spgrad.ops.products.extremal_sums import plus_product
from spgrad.ops.reductions.axes import require_dtype
from spgrad.torch_protocol.func_transforms import Function

REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "min_plus", "max_plus")


OTHER_NAMES = {"add": "sum", "max": "amax", "min": "amin", "mul": "prod"}
"""Names that graph libraries give to these reductions."""


def reduction_hint(reduce: object, default: str) -> str:
    """What to do with the name of a reduction that is not accepted."""
    if isinstance(reduce, str) and reduce in OTHER_NAMES:
        return f"Write {OTHER_NAMES[reduce]!r}, as torch does."
    return f"Leave it out for {default}."


def reduced_product(A: SparseTensor, x: torch.Tensor, reduce: str) -> torch.Tensor:
    """The mean, maximum, minimum or product of a_ij x_jc over the elements of each row i of A.

    A row without elements gives 0, also for a product. "min_plus" and "max_plus" are the extrema
    of a_ij + x_jc, and infinite for such rows. For a hybrid A, x is (k, heads, n).
    """
    if reduce not in REDUCTIONS:
        raise ArgumentValueError(
            f"`reduce` is {repr(reduce) if isinstance(reduce, str) else describe_kind(reduce)}; "
            f"{', '.join(REDUCTIONS)} are accepted. "
            f"{reduction_hint(reduce, 'the matrix product')}"
        )
    A = without_repeats(A)
    vals, pattern = broadcast.flat(A) if x.dim() == 2 else broadcast.by_head(A), A._pattern
    row = segments_of(pattern, (len(pattern.batch) + 1,))
    if reduce == "mean":
        require_dtype(vals.dtype, accepted="real complex")
        # not integers, by which torch divides one element at a time; 16 bits do not hold all counts
        wide = torch.promote_types(vals.dtype, torch.float32)
        key = kept.DIVISORS.of(wide)
        divisors = pattern.derive(key, lambda _: row.counts().clamp(min=1).to(wide))
        if x.dim() == 3 or wide != vals.dtype:
            if vals.dtype == torch.float16:
                of_values, divisors = in_two_steps(divisors)
                of_values = segment_expand(of_values, row)
                vals = vals * (of_values if vals.dim() == 2 else of_values.squeeze(1))
            y = spmm(vals, x, pattern)
            return (y / divisors.view(-1, *(1,) * (x.dim() - 1))).to(vals.dtype)
        if wants_grad(vals, x):
            return _SpMMMean.apply(vals, x, divisors, pattern)  # type: ignore[return-value]
        return spmm(vals, x, pattern).div_(divisors)
    if reduce == "prod":
        # 16 bits overflow in the product of the values where that with x does not
        exact = not vals.is_floating_point()
        wide = vals.dtype if exact else torch.promote_types(vals.dtype, torch.float32)
        return _spmm_prod(vals.to(wide), x.to(wide), pattern, row).to(vals.dtype)
    if reduce in ("min_plus", "max_plus"):
        require_dtype(vals.dtype, accepted="real")
        return plus_product(vals, x, pattern, reduce == "max_plus")
    require_dtype(vals.dtype, accepted="real integer")
    if x.dim() == 2:
        return _spmm_extremum(vals, x, pattern, reduce == "amax")
    # copies, which the kernel would make too: of views autograd refuses to save changed ones
    heads = ((vals[:, head].clone(), x[:, head].clone()) for head in range(x.shape[1]))
    found = [_spmm_extremum(*head, pattern, reduce == "amax") for head in heads]
    # without heads: empty, but with a gradient for both operands
    return torch.stack(found, 1) if found else spmm(vals, x, pattern)


def in_two_steps(divisors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors of values in float16, and divisors of sums, that together divide by `divisors`.

    The factors are powers of 2, and so small that each sum of products is less than its mean. So
    it is in the range of float16 where the mean is.
    """
    shares = torch.frexp(divisors).mantissa
    return (shares / divisors).to(torch.float16), shares


class _SpMMMean(Function):
    """y = D^-1 A x with the numbers of elements in D.

    Gradients are those of (D^-1 A) x: its values take one pass over the elements of A, where
    D^-1 g would take one over g, which is larger where rows are short.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, x: torch.Tensor, divisors: torch.Tensor, pattern: Pattern
    ) -> torch.Tensor:
        ctx.save_for_backward(vals, x, divisors)
        ctx.pattern = pattern
        return spmm(vals, x, pattern).div_(divisors)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, x, divisors = ctx.saved_tensors
        factor, needs = divisors.reciprocal().squeeze(1), ctx.needs_input_grad[:2]
        shares = scaled_lines(vals, factor, None, ctx.pattern)
        grad_vals, grad_x = spmm_gradients(shares, x, g, ctx.pattern, False, needs)
        if grad_vals is not None:
            grad_vals = scaled_lines(grad_vals, factor, None, ctx.pattern)
        return grad_vals, grad_x, None, None


def _spmm_prod(
    vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, row: Segments
) -> torch.Tensor:
    factors = segment_product(vals if vals.dim() == 2 else vals[:, None], row)
    if x.dim() == 2:
        return torch.where(row.counts() == 0, 0, factors * _rows_product(x, pattern))
    of_x = _rows_product(x.flatten(1), pattern).unflatten(1, x.shape[1:])
    return torch.where(row.counts()[..., None] == 0, 0, factors[..., None] * of_x)


def _spmm_extremum(
    vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, largest: bool
) -> torch.Tensor:
    if wants_grad(vals, x):
        return _SpMMExtremum.apply(vals, x, pattern, largest)  # type: ignore[return-value]
    return _spmm_reduce(vals, x, pattern, largest)[0]


def _spmm_reduce(
    vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    view = rows(pattern)
    return kernels.spmm_reduce(view.ptr, view.idx, view.perm, plain(vals), plain(x), largest)


class _SpMMExtremum(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, x: torch.Tensor, pattern: Pattern, largest: bool
    ) -> torch.Tensor:
        y, arg = _spmm_reduce(vals, x, pattern, largest)
        ctx.save_for_backward(vals, x, arg)
        ctx.pattern = pattern
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, x, arg = ctx.saved_tensors
        view = rows(ctx.pattern)
        if not torch.is_grad_enabled():
            operands = plain(vals), plain(x), plain(g), arg
            grads = kernels.spmm_reduce_backward(view.ptr, view.idx, view.perm, *operands)
            return (*grads, None, None)
        if vals.shape[0] == 0:  # zeros, with the graph that they have where there are elements
            none = g[:0].sum()
            of_vals = torch.zeros_like(vals) + none * x[:0].sum()
            return of_vals, torch.zeros_like(x) + none * vals.sum(), None, None
        chosen = arg >= 0
        at = arg.clamp(min=0).view(-1)  # the entry that each element of the result comes from
        entry = (at if view.perm is None else view.perm[at]).to(torch.int64)
        column = view.idx[at].to(torch.int64).view(arg.shape)
        share = torch.where(chosen, g, 0)
        factor = share * x.gather(0, column)
        grad_vals = added_at(entry, factor.view(-1), vals.shape[0])
        weight = share * vals.gather(0, entry).view(arg.shape)
        return grad_vals, torch.zeros_like(x).scatter_add(0, column, weight), None, None


def _rows_product(x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Products of the rows of x that each row of the pattern names."""
    if wants_grad(x):
        return _RowsProduct.apply(x, pattern)  # type: ignore[return-value]
    view = rows(pattern)
    return kernels.spmm_prod(view.ptr, view.idx, plain(x))


class _RowsProduct(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        ctx.pattern = pattern
        return _rows_product(x, pattern)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        pattern = ctx.pattern
        ones = x.new_ones(pattern.elements)

        def to_columns(t: torch.Tensor) -> torch.Tensor:
            return spmm(ones, t, pattern, True)

        zero = x == 0
        nonzero = torch.where(zero, 1, x)
        number = spmm(ones, zero.to(x.dtype), pattern)  # (m, n) how many factors are zero
        g = g * _rows_product(nonzero, pattern).conj()
        of_nonzero, of_zero = to_columns(g * (number == 0)), to_columns(g * (number == 1))
        if torch.is_grad_enabled():  # one other zero makes the factor 0, but not its derivative
            zeros = torch.where(zero, x, 0)
            other = spmm(ones, zeros, pattern).conj()
            of_nonzero = of_nonzero + to_columns(g * (number == 1) * other)
            of_zero = of_zero + to_columns(g * (number == 2) * other)
            of_zero = of_zero - to_columns(g * (number == 2)) * zeros.conj()
        return torch.where(zero, of_zero, of_nonzero / nonzero.conj()), None
