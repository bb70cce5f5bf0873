"""Norms, and the other reductions that are composed of sums and extrema."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.values import as_dtype
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.segments import segment_extremum
from spgrad.ops.reductions.axes import (
    Dims,
    Reduction,
    converted,
    reduction,
    require_dtype,
    require_elements,
    require_zero_of_nothing,
    wide,
)
from spgrad.public import public_op
from spgrad.torch_protocol.func_transforms import Function

Order = float | str


@public_op
def norm(
    input: torch.Tensor,
    p: Order | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    *,
    specified: bool = False,
) -> torch.Tensor:
    """Norm over dimensions: `spgrad.vector_norm` with order `p`; "fro" is the order 2."""
    word = p if isinstance(p, str) else None  # arrays compare with a word element by element
    if word == "nuc":
        raise dense_only("p", p, "'fro' and numbers")
    order = 2 if p is None or word == "fro" else p
    return norm_over(("input", "p"), input, order, dim, keepdim, dtype, specified)


@public_op
def native_norm(
    input: torch.Tensor,
    p: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    *,
    specified: bool = False,
) -> torch.Tensor:
    """Norm over dimensions: `spgrad.vector_norm` with order `p`."""
    return norm_over(("input", "p"), input, p, dim, keepdim, dtype, specified)


@public_op
def vector_norm(
    x: torch.Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    specified: bool = False,
) -> torch.Tensor:
    """(sum of abs(a)^ord)^(1/ord) over dimensions, as `torch.linalg.vector_norm`.

    Args:
        x: Sparse tensor of any layout; repeated COO indices are added first.
        ord: The order: any number, infinity for the largest absolute value, minus infinity for the
            smallest, 0 for the number of elements that are not zero.
        dim: The dimensions that are reduced; all of them for None and ().
        keepdim: Whether reduced dimensions stay, with size 1.
        dtype: The dtype to convert to first.
        specified: Whether to reduce the specified elements alone; this changes norms of negative
            order, which are 0 if an element is unspecified.

    Returns:
        Real; dense or sparse as the result of `spgrad.sum`.

    Gradient:
        That of the dense function, at the elements of `x`; 0 where the norm is 0.

    Cost:
        O(nse + size of the result).

    Raises:
        TypeError: `x` is not sparse, or `ord` or `dim` is of another kind.
        ValueError: `dim` is outside the tensor, or the dtype is not real or complex.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
        >>> spgrad.vector_norm(A, dim=1), spgrad.vector_norm(A, float("inf"))
        (tensor([5., 2.]), tensor(4.))
    """
    return norm_over(("x", "ord"), x, ord, dim, keepdim, dtype, specified)


def norm_over(
    names: tuple[str, str],
    input: Any,
    p: Any,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    specified: bool,
) -> torch.Tensor:
    """What `vector_norm` computes; `names` are those of its two first arguments in the call."""
    if not isinstance(p, checks.REAL):
        raise ArgumentKindError(f"`{names[1]}` is {p!r}; a number is accepted. For example 2.")
    call = reduction(input, dim, keepdim, arg=names[0])
    vals = converted(call.vals, dtype)
    require_dtype(vals.dtype, arg="dtype" if dtype else names[0], accepted="real complex")
    y = norms_of_segments(call, wide(vals), float(p), specified)
    return call.result(as_dtype(y, vals.dtype.to_real()))


def norms_of_segments(
    call: Reduction, vals: torch.Tensor, p: float, specified: bool
) -> torch.Tensor:
    """Norm (segments, kept) of values (elements, reduced, kept)."""
    if call.size == 1 and p != 0:  # whose powers may overflow
        return call.sums(vals.abs())
    if p == 2:
        return _TwoNorm.apply(vals, call) if wants_grad(vals) else _two_norm(vals, call)
    size = vals.abs()
    if math.isinf(p):
        require_elements(call)
        return segment_extremum(size, call.segments, call.missing(specified), p > 0)
    if p == 0:
        return call.sums(torch.where(size.isnan(), 1, size.sign()))  # NaN is not 0
    if p == 1:
        return call.sums(size)
    if p < 0:
        require_elements(call)
    total = call.sums(size**p if p >= 2 else power_from_zero(size, p))
    y = power_from_zero(total, 1 / p)
    if p > 0:
        return y
    lost = (total == 0) & (call.sums((size > 0).to(torch.int64)) > 0)  # infinite, or nearly so
    y = torch.where(lost, torch.inf, y)
    zeros, missing = call.sums((size == 0).to(torch.int64)), call.missing(specified)
    zeros = zeros if missing is None else zeros + missing
    return torch.where((zeros > 0) & ~y.isnan(), 0, y)


def _two_norm(vals: torch.Tensor, call: Reduction) -> torch.Tensor:
    return call.sums(_abs_squared(vals)).sqrt()


class _TwoNorm(Function):
    """y = sqrt(sum |a|^2).

    Its gradient is (a / y) g, and 0 where y is 0. Derivatives of the sum of squares would have y^-2
    and y^-4, and those of a (g / y) have g y^-2: these underflow where what they are factors of is
    an ordinary number.
    """

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, call: Reduction) -> torch.Tensor:  # type: ignore[override]
        y = _two_norm(vals, call)
        ctx.save_for_backward(vals, y)
        ctx.call = call
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        vals, y = ctx.saved_tensors
        size = torch.where(y == 0, torch.inf, y)
        return vals / ctx.call.expanded(size) * ctx.call.expanded(g), None


def power_from_zero(x: torch.Tensor, p: float) -> torch.Tensor:
    """x^p, and 0 with derivatives of 0 where x is 0."""
    if p > 0 and not wants_grad(x):
        return x**p
    zero = x == 0
    return torch.where(zero, 0, torch.where(zero, 1, x) ** p)


def dense_only(
    arg: str, order: Any, accepted: str = "'fro', 1, -1, 2, -2, inf and -inf"
) -> UnsupportedError:
    """The refusal of a norm that all singular values define."""
    return UnsupportedError(
        f"`{arg}` is {order!r}, which takes all singular values; {accepted} are accepted. Use "
        f"torch.linalg.matrix_norm(A.to_dense(), {order!r})."
    )


@public_op
def logsumexp(
    input: torch.Tensor, dim: Dims, keepdim: bool = False, *, specified: bool = False
) -> torch.Tensor:
    """log(sum of exp(a)) over dimensions, without overflow.

    Args:
        input: Sparse tensor of any layout; repeated COO indices are added first.
        dim: The dimensions that are reduced; one of the two matrix dimensions among them, or
            unspecified elements of the result would not be 0.
        keepdim: Whether reduced dimensions stay, with size 1.
        specified: Whether to reduce the specified elements alone, as `spgrad.softmax` does,
            instead of counting exp(0) for unspecified ones. The result is -inf where there are
            none.

    Returns:
        Dense tensor. With `specified`, sparse if both matrix dimensions stay.

    Gradient:
        g exp(a - y) at each element.

    Cost:
        O(nse + size of the result).

    Raises:
        TypeError: `input` is not sparse, or `dim` is of another kind.
        ValueError: `dim` is outside the tensor.
        NotImplementedError: Both matrix dimensions stay.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        >>> spgrad.logsumexp(A, 1), A.logsumexp(1, specified=True)
        (tensor([1.3133, 0.6931]), tensor([1., -inf]))
    """
    call = reduction(input, dim, keepdim)
    require_zero_of_nothing(call)
    if call.sparse and not specified:
        raise UnsupportedError(
            f"`dim` is {dim} and leaves both matrix dimensions, so that the result would be dense; "
            "dimensions with one of these two are accepted. Pass specified=True for the specified "
            "elements alone, or use A.to_dense()."
        )
    dtype = call.stored.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    vals = wide(call.vals.to(dtype))
    missing = call.missing(specified)
    with torch.no_grad():  # the result does not depend on the shift
        top = segment_extremum(vals.real, call.segments, missing, largest=True)
        top = torch.where(top.isinf(), 0, top)
    total = call.sums((vals - call.expanded(top)).exp())
    if missing is not None:
        zeros = torch.where(missing > 0, -top, -math.inf).exp()  # 0 where none is missing
        total = total + missing * vals.shape[1] * zeros
    nothing = total == 0
    y = torch.where(nothing, -math.inf, torch.where(nothing, 1, total).log() + top)
    return call.result(y.to(dtype))


@public_op
def var(
    input: torch.Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    specified: bool = False,
) -> torch.Tensor:
    """Variance over dimensions: sum of abs(a - mean)^2 / max(0, number - correction).

    Args:
        input: Sparse tensor of any layout; repeated COO indices are added first.
        dim: The dimensions that are reduced; all of them for None and ().
        unbiased: torch's older name: True for a correction of 1, False for 0. Also in place of
            `dim`.
        keepdim: Whether reduced dimensions stay, with size 1.
        correction: What is subtracted from the number of elements; by default 1.
        specified: Whether to reduce the specified elements alone, instead of counting unspecified
            ones as zeros. The result is NaN where there are no more elements than `correction`, as
            in torch.

    Returns:
        Real; dense or sparse as the result of `spgrad.sum`.

    Gradient:
        2 g (a - mean) / (number - correction) at each element.

    Cost:
        O(nse + size of the result), in two passes.

    Raises:
        TypeError: `input` is not sparse, or `dim` is of another kind.
        ValueError: `dim` is outside the tensor, the dtype is not real or complex, `correction`
            makes the variance of zeros NaN in a sparse result, or both it and `unbiased` are given.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 6.0]]))
        >>> spgrad.var(A, 1), A.var(1, correction=0, specified=True)
        (tensor([ 2.3333, 12.0000]), tensor([1., 0.]))
    """
    return _spread_of(input, dim, unbiased, keepdim, correction, specified, root=False)


@public_op
def std(
    input: torch.Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    specified: bool = False,
) -> torch.Tensor:
    """Standard deviation over dimensions: the square root of `spgrad.var` with these arguments.

    Its gradient is 0 where the standard deviation is 0.
    """
    return _spread_of(input, dim, unbiased, keepdim, correction, specified, root=True)


def _spread_of(
    input: torch.Tensor,
    dim: Dims | bool,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
    specified: bool,
    *,
    root: bool,
) -> torch.Tensor:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ArgumentValueError(
            f"`unbiased` is {unbiased} beside a correction of {correction}; one of the two is "
            "accepted. Leave out unbiased."
        )
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    if not isinstance(correction, checks.REAL):
        raise ArgumentKindError(
            f"`correction` is {correction!r}; a number is accepted. For example 1."
        )
    call = reduction(input, dim, keepdim)
    require_dtype(call.stored.dtype, accepted="real complex")
    if call.sparse and not specified and call.size <= correction:
        raise ArgumentValueError(
            f"`correction` is {correction} for {call.size} element(s), so that the result would be "
            "NaN where it is not specified; less than their number is accepted. For example "
            "correction=0."
        )
    y = _variance(call, wide(call.vals), correction, specified)
    y = power_from_zero(y, 0.5) if root else y
    return call.result(y.to(call.stored.dtype.to_real()))


def _variance(
    call: Reduction, vals: torch.Tensor, correction: float, specified: bool
) -> torch.Tensor:
    number = call.numbers(specified)
    mean = call.sums(vals) / _at_least(number, 1)
    squares = call.sums(_abs_squared(vals - call.expanded(mean)))
    missing = call.missing(specified)
    if missing is not None:
        of_zeros = missing * vals.shape[1] * _abs_squared(mean)
        squares = squares + torch.where(missing > 0, of_zeros, 0)  # the square may be infinite
    return squares / _at_least(number - correction, 0)


def _at_least(number: torch.Tensor | float, least: int) -> torch.Tensor | float:
    """Numbers, or one, that are not below another."""
    return number.clamp(min=least) if isinstance(number, torch.Tensor) else max(number, least)


def _abs_squared(x: torch.Tensor) -> torch.Tensor:
    """abs(x)^2."""
    return (x * x.conj()).real if x.is_complex() else x * x
