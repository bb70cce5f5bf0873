"""How a function of two elements is applied to operands of any kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.interop import as_operand
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.align import add_aligned, align, known_as_same
from spgrad.lowering.coalesce import as_summands, without_repeats
from spgrad.lowering.dense_at import dense_at_elements, times_vector
from spgrad.lowering.operands import call, call_with, is_sparse, require_factors, sparse_operand
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.segments import for_each
from spgrad.ops.layouts.dense import to_dense
from spgrad.torch_protocol.func_transforms import differentiated, mapped_over, transforming


class Rule(NamedTuple):
    """How a function of two elements treats zeros, and so which elements its result has.

    Attributes:
        fn: The function, of dense tensors and numbers.
        where: Which elements the result of two sparse operands has: those of "either", of "both",
            of the "first"; "none" where such a result would be dense.
        dense: True if with a dense operand the result is dense.
        linear: True if `fn` is linear in the sparse operand, or, with "either", in both operands
            together. Repeated elements may then stay.
        second: The name of the operand beside the sparse one, for errors.
    """

    fn: Callable[..., torch.Tensor]
    where: str
    of_numbers: Callable[[Any, Any], Any] | None = None
    dense: bool = False
    linear: bool = False
    second: str = "other"


def is_dense(x: Any) -> bool:
    """True for a dense tensor."""
    return isinstance(x, torch.Tensor) and not is_sparse(x)


def apply(rule: Rule, a: Any, b: Any) -> torch.Tensor:
    """rule.fn(a, b), where a or b is sparse and the other sparse, dense or a number."""
    a_sparse, b_sparse = is_sparse(a), is_sparse(b)
    if a_sparse and b_sparse:
        return _two_sparse(rule, a, b)
    try:
        require_kinds(**{"input": a, rule.second: b})
    except ArgumentKindError:
        a, b = as_operand(a), as_operand(b)
        require_kinds(**{"input": a, rule.second: b})
        a_sparse, b_sparse = is_sparse(a), is_sparse(b)
        if a_sparse and b_sparse:
            return _two_sparse(rule, a, b)
    if a_sparse:
        return _one_sparse(rule, sparse_operand("input", a), b)
    if not b_sparse:
        raise ArgumentKindError(
            f"`input` and `{rule.second}` are dense ({checks.describe_kind(a)} and "
            f"{checks.describe_kind(b)}); at least one sparse operand is accepted. Use "
            f"torch.{_name(rule.fn)}."
        )
    if not rule.dense and rule.where in ("first", "none"):
        raise UnsupportedError(
            f"`input` is {checks.describe_kind(a)} and `{rule.second}` sparse, with which the "
            "result would be dense or not a number wherever it has no element; a sparse `input` is "
            "accepted. Use spgrad.map for the specified elements alone, or "
            f"{rule.second}.to_dense()."
        )
    numbers = rule.of_numbers
    swapped = rule._replace(
        fn=lambda x, y: rule.fn(y, x),
        of_numbers=None if numbers is None else lambda x, y: numbers(y, x),
        second="input",
    )
    return _one_sparse(swapped, sparse_operand(rule.second, b), a)


def _name(fn: Callable[..., torch.Tensor]) -> str:
    return fn.func.__name__ if isinstance(fn, functools.partial) else fn.__name__


def require_kinds(**operands: Any) -> None:
    """Refuses operands that are neither tensors nor numbers."""
    for name, x in operands.items():
        if not isinstance(x, (torch.Tensor, *checks.NUMBER)):
            raise ArgumentKindError(
                f"`{name}` is {checks.describe_kind(x)}; a tensor or a number is accepted. "
                f"{checks.tensor_hint(x)}"
            )


def require_one_device(**operands: Any) -> None:
    """Refuses tensors on different devices; as in torch, a 0-d one may stay on the CPU."""
    parts = {name: x._vals if isinstance(x, SparseTensor) else x for name, x in operands.items()}
    found = {
        name: x
        for name, x in parts.items()
        if isinstance(x, torch.Tensor) and (x.dim() or x.device.type != "cpu")
    }
    if len(found) > 1:
        checks.require_same_device(**found)


def _two_sparse(rule: Rule, a: torch.Tensor, b: torch.Tensor) -> SparseTensor:
    A, B = sparse_operand("input", a), sparse_operand(rule.second, b)
    if A._vals.device != B._vals.device:
        checks.require_same_device(input=A._vals, other=B._vals)
    if rule.where == "none":
        raise UnsupportedError(
            f"`input` and `{rule.second}` are sparse, with which the result would be dense; a "
            f"dense tensor or number is accepted as one of them. Use {rule.second}.to_dense(); "
            "spgrad.equal and spgrad.allclose compare whole tensors."
        )
    if rule.linear and rule.where == "either":
        first, second = A._pattern, B._pattern
        same = first is second or (not first.coalesced and known_as_same(first, second))
        if same and torch.bool not in (A._vals.dtype, B._vals.dtype):  # repeats may stay
            return on_pattern(call(rule.fn, stored_values(A), stored_values(B)), first)
        if rule.fn in (torch.add, torch.sub):
            return add_aligned(A, B, rule.fn)
    aligned = align(A, B, rule.where)
    return on_pattern(call(rule.fn, aligned.a, aligned.b), aligned.pattern)


def _one_sparse(rule: Rule, A: SparseTensor, other: Any) -> torch.Tensor:
    if isinstance(other, torch.Tensor):
        require_one_device(input=A, other=other)
        if other.dim():
            return _with_dense(rule, A, other)
    if rule.of_numbers is not None:
        _require_number_keeps_zero(rule.second, rule.of_numbers, other)
    A = as_summands(A) if rule.linear else without_repeats(A)
    vals = stored_values(A)
    if isinstance(other, torch.Tensor) and wants_grad(other):
        other = number_for_each(other, vals, A._pattern)
    return on_pattern(call_with(rule.second, rule.fn, vals, other), A._pattern)


def number_for_each(x: torch.Tensor, vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """A 0-d tensor at each element, in the dtype that torch gives a number beside these values."""
    found = for_each(x.to(vals.device, torch.result_type(vals, x)), pattern)
    return found.view(*found.shape, *[1] * pattern.dense_dim)


def _require_number_keeps_zero(arg: str, of_numbers: Callable[[Any, Any], Any], other: Any) -> None:
    """Refuses a number, or one of those that vmap maps over, that makes another number of 0."""
    numbers = [other]
    if isinstance(other, torch.Tensor):
        mapped = transforming()
        numbers = mapped_over(other).reshape(-1).tolist() if mapped else [other.item()]
        if 0 in numbers and differentiated(other):
            raise ArgumentValueError(
                f"`{arg}` is 0 and has a gradient, to which unspecified elements add too, so that "
                "the result would be dense; a number without gradient is accepted. Use "
                "spgrad.map(A, fn) for the specified elements alone, or A.to_dense()."
            )
    for number in numbers:
        try:
            at_zero = of_numbers(0, number)
        except ZeroDivisionError:
            at_zero = float("inf")
        except TypeError:  # complex numbers have no order; torch raises its own error
            return
        if at_zero:  # a symbol of a trace becomes a condition for its graph
            raise ArgumentValueError(
                f"`{arg}` is {number}, with which 0 becomes {at_zero} and the result would be "
                "dense; a number that keeps 0 is accepted. Use spgrad.map(A, fn) for the specified "
                "elements alone, or A.to_dense()."
            )


def _with_dense(rule: Rule, A: SparseTensor, x: torch.Tensor) -> torch.Tensor:
    if rule.dense:
        _require_broadcast(rule.second, A, x)
        return call(rule.fn, to_dense(A), x)
    A = as_summands(A) if rule.linear else without_repeats(A)
    if rule.linear and rule.where == "both":
        scaled = times_vector(A, x)
        if scaled is not None:
            return scaled
    found = dense_at_elements(x, A._pattern, rule.second)
    return on_pattern(call(rule.fn, stored_values(A), found), A._pattern)


def _require_broadcast(arg: str, A: SparseTensor, x: torch.Tensor) -> None:
    try:
        checks.broadcast_shapes(A._pattern.shape, x.shape)
    except RuntimeError:
        accepted = f"what broadcasts with {tuple(A._pattern.shape)}"
        hint = "Sizes are equal, or one of them is 1 or missing."
        raise checks.bad_shape(arg, tuple(x.shape), accepted, hint) from None


def plus(rule: Rule, a: Any, b: Any, alpha: Any) -> torch.Tensor:
    """rule.fn(a, b, alpha=alpha) for addition and subtraction."""
    if type(alpha) is not int:
        complex_too = any(isinstance(x, torch.Tensor) and x.is_complex() for x in (a, b))
        require_factors(torch.complex64 if complex_too else torch.float32, alpha=alpha)
    if alpha != 1:
        rule = rule._replace(fn=functools.partial(rule.fn, alpha=alpha))
    return apply(rule, a, b)


def require_positive(arg: str, x: torch.Tensor) -> None:
    """Refuses a dense tensor that is not positive throughout."""
    if x.is_meta:
        return
    positive = call(torch.gt, x.real if x.is_complex() else x, 0)
    if not bool((mapped_over(positive) if transforming() else positive).all()):
        raise ArgumentValueError(
            f"`{arg}` is not positive throughout; numbers above 0 are accepted, as others would "
            "make unspecified elements nonzero. Work on A.values() or A.to_dense()."
        )
