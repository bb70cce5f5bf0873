"""Functions of two elements: arithmetic, maximum and minimum."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from spgrad.errors import ArgumentValueError
from spgrad.ops.elementwise import rules
from spgrad.ops.elementwise.rules import Rule
from spgrad.public import public_op

Number = int | float | complex


def _larger_number(a: Any, b: Any) -> Any:
    return b if math.isnan(b) or b > a else a


def _smaller(a: Any, b: Any) -> Any:
    return b if math.isnan(b) or b < a else a


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, torch.SymInt):  # the power of a symbol is more than a trace can compare
        return a if b > 0 else a ** int(b)
    return a**b


def _of_tensors(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`fn`, which takes tensors alone, of a tensor and a number too."""

    @functools.wraps(fn)
    def of_number(x: Any, y: Any) -> torch.Tensor:
        if isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor):
            y = torch.tensor(y, dtype=torch.result_type(x, y), device=x.device)
        elif isinstance(y, torch.Tensor) and not isinstance(x, torch.Tensor):
            x = torch.tensor(x, dtype=torch.result_type(x, y), device=y.device)
        return fn(x, y)

    return of_number


_ADD = Rule(torch.add, "either", operator.add, dense=True, linear=True)
_SUB = Rule(torch.sub, "either", operator.sub, dense=True, linear=True)
_RSUB = Rule(torch.rsub, "either", operator.sub, dense=True, linear=True)
_MUL = Rule(torch.mul, "both", linear=True)
_DIV = Rule(torch.div, "first", linear=True)
_FLOOR_DIVIDE = Rule(torch.floor_divide, "first")
_REMAINDER = Rule(torch.remainder, "first")
_POW = Rule(torch.pow, "none", _power, second="exponent")
_MAXIMUM = Rule(_of_tensors(torch.maximum), "either", _larger_number, dense=True)
_MINIMUM = Rule(_of_tensors(torch.minimum), "either", _smaller, dense=True)


@public_op
def add(input: Any, other: Any, *, alpha: Number = 1) -> torch.Tensor:
    """input + alpha other with one or both operands sparse.

    Args:
        input: Sparse or dense tensor, or the number 0.
        other: Sparse of the same shape, in any layout and with any elements; dense, broadcasting
            as in torch; or the number 0.
        alpha: Factor of `other`.

    Returns:
        For two sparse operands, a SparseTensor in the layout of `input` with the elements of
        either; uncoalesced if both have the same uncoalesced pattern. For a sparse and a dense
        operand, a dense tensor.

    Gradient:
        Of a sparse operand: the cotangent at its own elements. Of a dense one: dense.

    Cost:
        O(nse of both); the union of two patterns is computed once and kept. O(size of the result)
        if the result is dense.

    Raises:
        TypeError: Neither operand is sparse, or one is neither a tensor nor a number.
        ValueError: Shapes or devices don't fit, or a number would make the result dense.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> B = spgrad.from_dense(torch.tensor([[0.0, 5.0], [0.0, 7.0]]))
        >>> spgrad.add(A, B, alpha=10).to_dense()
        tensor([[ 1., 50.],
                [ 0., 72.]])
    """
    return rules.plus(_ADD, input, other, alpha)


@public_op
def sub(input: Any, other: Any, *, alpha: Number = 1) -> torch.Tensor:
    """input - alpha other: `spgrad.add` with -alpha."""
    return rules.plus(_SUB, input, other, alpha)


@public_op
def rsub(input: Any, other: Any, *, alpha: Number = 1) -> torch.Tensor:
    """other - alpha input: `spgrad.add` with the operands exchanged."""
    return rules.plus(_RSUB, input, other, alpha)


@public_op
def mul(input: Any, other: Any) -> torch.Tensor:
    """input times other, element by element, with one or both operands sparse.

    Args:
        input: Sparse or dense tensor, or a number.
        other: Sparse of the same shape, in any layout and with any elements; dense, broadcasting
            to the shape of the sparse operand: a number, a tensor of that shape, a row (n,) or
            column (m, 1) vector that scales columns or rows.

    Returns:
        SparseTensor. For two sparse operands, it is in the layout of `input` and has the elements
        that both have; otherwise it is on the pattern of the sparse operand. An unspecified
        element stays unspecified, also where `other` is infinity or NaN.

    Gradient:
        Of a sparse operand: other g at its own elements. Of a dense one: input g, dense.

    Cost:
        O(nse of both); the intersection of two patterns is computed once and kept.

    Raises:
        TypeError: Neither operand is sparse, or one is neither a tensor nor a number.
        ValueError: Shapes or devices don't fit.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
        >>> (A * torch.tensor([[10.0], [100.0]])).to_dense()
        tensor([[ 10.,   0.],
                [300., 200.]])
    """
    return rules.apply(_MUL, input, other)


@public_op
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> torch.Tensor:
    """input / other for sparse `input`: on its elements, as `spgrad.mul` with 1 / other.

    `other` may be sparse: an element of `input` that `other` does not have is divided by zero. An
    element that `input` does not have is 0 in the result, even where 0 / 0 would be NaN.
    `rounding_mode` is None, "trunc" or "floor", as in torch.
    """
    if rounding_mode is None:
        return rules.apply(_DIV, input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise ArgumentValueError(
            f"`rounding_mode` is {rounding_mode!r}; None, 'trunc' and 'floor' are accepted. Leave "
            "it out for the quotient itself."
        )
    rule = Rule(functools.partial(torch.div, rounding_mode=rounding_mode), "first")
    return rules.apply(rule, input, other)


@public_op
def floor_divide(input: Any, other: Any) -> torch.Tensor:
    """floor(input / other) for sparse `input`: `spgrad.div` with rounding_mode="floor"."""
    return rules.apply(_FLOOR_DIVIDE, input, other)


@public_op
def remainder(input: Any, other: Any) -> torch.Tensor:
    """input - other * floor(input / other): as `spgrad.div` with this result."""
    return rules.apply(_REMAINDER, input, other)


@public_op
def pow(input: Any, exponent: Any) -> torch.Tensor:
    """input ** exponent for sparse `input` and exponents greater than 0.

    Args:
        input: Sparse tensor; repeated COO indices are added first.
        exponent: A number, or a dense tensor that broadcasts to the shape of `input`.

    Returns:
        SparseTensor on the pattern of `input`.

    Gradient:
        exponent input^(exponent - 1) g at the elements of `input`; of a dense exponent, dense.

    Cost:
        O(nse), and O(size of the exponent) to see that it is positive.

    Raises:
        TypeError: An operand is neither a tensor nor a number.
        ValueError: An exponent is not positive: x^0 is 1 at unspecified elements too.
        NotImplementedError: `exponent` is sparse, or `input` dense: 0^0 is 1.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
        >>> (A**2).to_dense()
        tensor([[0., 4.],
                [9., 0.]])
    """
    if isinstance(exponent, torch.Tensor) and rules.is_dense(exponent) and exponent.dim():
        rules.require_positive("exponent", exponent)
    return rules.apply(_POW, input, exponent)


@public_op
def maximum(input: Any, other: Any) -> torch.Tensor:
    """The larger of each two elements: as `spgrad.add` with their maximum for their sum.

    For a sparse tensor and a number, the result is sparse if the number is not above 0.
    """
    return rules.apply(_MAXIMUM, input, other)


@public_op
def minimum(input: Any, other: Any) -> torch.Tensor:
    """The smaller of each two elements: as `spgrad.add` with their minimum for their sum.

    For a sparse tensor and a number, the result is sparse if the number is not below 0.
    """
    return rules.apply(_MINIMUM, input, other)
