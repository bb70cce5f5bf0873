"""Rows of the functions of one, two or three elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from spgrad.support.table import ALL, Op, as_tensor, names_in_torch

FORMS = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]")
"""A function of one tensor, element by element: a matrix, a batch, a hybrid tensor."""


def _keeps_zero(
    name: str,
    *aliases: str,
    operand: str = "A",
    order: int = 2,
    samples: tuple[Mapping[str, Any], ...] = ({},),
    dense: Callable[..., Any] | None = None,
    more: tuple[str, ...] = (),
) -> Op:
    return Op(
        name,
        "elementwise.unary",
        names_in_torch(name, *aliases) + more,
        tuple(operand + form[1:] for form in FORMS),
        dense or getattr(torch, name),
        order=order,
        samples=samples,
    )


def _refused(name: str, at_zero: object, *aliases: str) -> Op:
    reason = f"{name}(0) is {at_zero}, so that the result would be dense"
    dense = getattr(torch, name)
    absent = dict.fromkeys(ALL, reason)
    names = names_in_torch(name, *aliases)
    return Op(name, "elementwise.unary", names, (), dense, layouts=(), absent=absent, public=False)


def _converted(name: str, order: int, **options: Any) -> Op:
    """A method that gives a tensor another dtype; torch has no function of its name."""
    method = getattr(torch.Tensor, name)
    return Op(
        name,
        "elementwise.dtypes",
        (f"torch.Tensor.{name}",),
        FORMS,
        method,
        order=order,
        samples=(options,),
        traced=False,
        public=False,
    )


def _called(A: torch.Tensor, *, fn: Callable[..., torch.Tensor], mask: torch.Tensor) -> Any:
    return torch.where(mask, fn(A), torch.zeros((), dtype=A.dtype))


_SIMPLE = (
    *("angle", "ceil", "deg2rad", "erf", "expm1", "floor", "frac", "log1p", "rad2deg", "sgn"),
    *("sign", "sin", "sinh", "square", "tan", "tanh"),
)
_ALIASED = {
    "abs": "absolute",
    "neg": "negative",
    "trunc": "fix",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atanh": "arctanh",
}
_AT_ZERO = {
    "acos": "pi/2",
    "acosh": "nan",
    "cos": 1,
    "cosh": 1,
    "digamma": "-inf",
    "erfc": 1,
    "exp": 1,
    "exp2": 1,
    "isfinite": True,
    "lgamma": "inf",
    "log": "-inf",
    "log10": "-inf",
    "log2": "-inf",
    "logical_not": True,
    "logit": "-inf",
    "reciprocal": "inf",
    "rsqrt": "inf",
    "sigmoid": 0.5,
}

_TWO_SPARSE = (
    "A[m,k] B[m,k] -> C[m,k]",
    "A[b,m,k] B[b,m,k] -> C[b,m,k]",
    "A[m,k|d] B[m,k|d] -> C[m,k|d]",
)
_DENSE_RESULT = (
    "A[m,k] x[m,k] -> y[m,k]",
    "x[m,k] A[m,k] -> y[m,k]",
    "A[m,k] x[k] -> y[m,k]",
    "A[m,k] x[b,m,k] -> y[b,m,k]",
    "A[m,k|d] x[m,k,d] -> y[m,k,d]",
)
_BY_DENSE = (
    "A[m,k] x[m,k] -> C[m,k]",
    "A[m,k] x[k] -> C[m,k]",
    "A[m,k] x[m,1] -> C[m,k]",
    "A[b,m,k] x[b,m,1] -> C[b,m,k]",
    "A[b,m,k] x[1,k] -> C[b,m,k]",
    "A[m,k|d] x[d] -> C[m,k|d]",
    "A[m,k|d] x[m,1,1] -> C[m,k|d]",
)
_BY_NUMBER = "A[m,k] s[] -> C[m,k]"


def _masked(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`fn` where the first sparse operand is specified, 0 elsewhere."""

    def dense(A: torch.Tensor, b: Any, *, mask: torch.Tensor, **kw: Any) -> torch.Tensor:
        safe = b  # no NaN in the gradient
        if isinstance(b, torch.Tensor):
            safe = torch.where(mask, b, torch.ones((), dtype=b.dtype))
            safe = safe.to(torch.result_type(A, b))  # a 0-d b does not promote the dtype
        return torch.where(mask, fn(A, safe, **kw), torch.zeros((), dtype=A.dtype))

    return dense


def _binary(
    name: str,
    names: tuple[str, ...],
    signatures: tuple[str, ...],
    *,
    dense: Callable[..., Any] | None = None,
    order: int = 2,
    samples: tuple[Mapping[str, Any], ...] = ({},),
    module: str = "binary",
) -> Op:
    fn = dense or getattr(torch, name)
    module = f"elementwise.{module}"
    return Op(name, module, names, signatures, fn, order=order, samples=samples)


def _quotient(name: str, *aliases: str, samples: tuple[Mapping[str, Any], ...] = ({},)) -> Op:
    return _binary(
        name,
        names_in_torch(name, *aliases),
        (_TWO_SPARSE[0].replace("B[", "F["), *_BY_DENSE, _BY_NUMBER),
        dense=_masked(getattr(torch, name)),
        order=0 if name == "floor_divide" else 2,
        samples=samples,
    )


def _comparison(name: str, number: str | None, *, two_sparse: bool) -> Op:
    """`number` names the numbers that 0 compares False with: s (any but 0), p (> 0), n (< 0)."""
    by_number = () if number is None else (f"A[m,k] {number}[] -> C[m,k]",)
    signatures = (*_DENSE_RESULT, *by_number)
    if two_sparse:
        signatures = (*_TWO_SPARSE, *signatures)
    return _binary(name, names_in_torch(name), signatures, order=0, module="compare")


def _bitwise(name: str, *, dense: bool) -> Op:
    """`dense` is True if the result with a dense operand is dense."""
    with_dense = _integer(_DENSE_RESULT if dense else (*_BY_DENSE, "x[m,k] A[m,k] -> C[m,k]"))
    by_number = () if dense else ("I[m,k] i[] -> C[m,k]",)
    signatures = (*_integer(_TWO_SPARSE), *with_dense, *by_number)
    names = f"bitwise_{name}", name, f"i{name}"
    operators = *names_in_torch(*names), f"torch.Tensor.__r{name}__"
    return _binary(names[0], operators, signatures, order=0, module="logic")


def _integer(signatures: tuple[str, ...]) -> tuple[str, ...]:
    """The same signatures with integer operands."""
    named = {"A": "I", "B": "J", "x": "i"}
    return tuple(re.sub(r"\b[ABx](?=\[)", lambda m: named[m[0]], s) for s in signatures)


def _logical(name: str, *, dense: bool) -> Op:
    with_dense = _DENSE_RESULT if dense else (*_BY_DENSE, "x[m,k] A[m,k] -> C[m,k]", _BY_NUMBER)
    names = names_in_torch(f"logical_{name}")
    signatures = (*_TWO_SPARSE, *with_dense)
    return _binary(f"logical_{name}", names, signatures, order=0, module="logic")


def _addcdiv(
    A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    dtype = torch.addcdiv(*(t.new_empty(0 if t.dim() else ()) for t in (A, B, C))).dtype
    quotient = B.to(dtype) / C
    return A + value * torch.where((B == 0) & quotient.isnan(), 0, quotient)


def _asked(name: str, names: tuple[str, ...], samples: tuple[Mapping[str, Any], ...] = ({},)) -> Op:
    """A question about two tensors, whose answer is a bool."""
    return Op(
        name,
        "elementwise.queries",
        names,
        ("A[m,k] B[m,k] -> y[]", "A[m,k] x[m,k] -> y[]", "x[m,k] A[m,k] -> y[]"),
        getattr(torch, name),
        order=0,
        samples=samples,
        call=as_tensor,
        traced=False,
        outside="its result is a number that Python reads",
    )


def _of_one_element(name: str, *names: str) -> Op:
    absent = {"dense": "it takes a tensor of one element"}
    return Op(
        name,
        "elementwise.queries",
        (*names_in_torch(name), *names),
        ("A[1,1] -> y[]",),
        None,
        order=0,
        absent=absent,
        traced=False,
    )


def _refused_operator(name: str, operator: str) -> Op:
    reason = f"number {operator} 0 is not 0, so that the result would be dense"
    names = tuple(f"torch.Tensor.__{n}__" for n in name.split())
    absent = dict.fromkeys(ALL, reason)
    name, module = name.split(maxsplit=1)[0], "elementwise.binary"
    return Op(name, module, names, (), torch.div, layouts=(), absent=absent, public=False)


_ALPHA = ({}, {"alpha": 2})
_VALUE = ({}, {"value": 0.5})
_THREE = ("A[m,k] B[m,k] F[m,k] -> C[m,k]", "A[b,m,k] B[b,m,k] F[b,m,k] -> C[b,m,k]")

ROWS: tuple[Op, ...] = (
    Op(
        "map",
        "elementwise.unary",
        (),
        FORMS,
        _called,
        samples=({"fn": torch.exp}, {"fn": torch.cos}),
        traced=False,  # Dynamo reads it, because it calls a function of the user
    ),
    *(_keeps_zero(name) for name in _SIMPLE),
    *(_keeps_zero(name, alias) for name, alias in _ALIASED.items()),
    *(_keeps_zero(name, order=0) for name in ("isnan", "isinf", "isposinf", "isneginf", "signbit")),
    _keeps_zero("sqrt", operand="P"),
    _keeps_zero("erfinv"),
    _keeps_zero("round", samples=({}, {"decimals": 1})),
    _keeps_zero("real", operand="Z"),
    _keeps_zero("imag", operand="Z"),
    _keeps_zero("conj", "conj_physical", operand="Z"),
    _keeps_zero("relu", more=("torch.nn.functional.relu",)),
    _keeps_zero(
        "leaky_relu",
        dense=F.leaky_relu,
        samples=({}, {"negative_slope": 0.2}),
        more=("torch.nn.functional.leaky_relu", "torch.nn.functional.leaky_relu_"),
    ),
    _keeps_zero(
        "clamp",
        "clip",
        samples=({"min": -0.5, "max": 0.5}, {"min": -0.5}, {"max": 0.5}),
    ),
    _keeps_zero("nan_to_num", samples=({}, {"nan": 0.5, "posinf": 2.0, "neginf": -2.0})),
    Op(
        "dropout",
        "elementwise.unary",
        ("torch.nn.functional.dropout",),
        FORMS,
        F.dropout,
        samples=({"p": 0.0}, {"p": 1.0}, {"training": False}),
    ),
    _converted("to", 2, dtype=torch.complex128),
    _converted("type", 2, dtype=torch.complex128),
    _converted("cdouble", 2),
    _converted("cfloat", 1),
    *(_refused(name, value) for name, value in _AT_ZERO.items()),
    _refused("bitwise_not", "-1, of bool True", "invert"),
    _binary(
        "add",
        (*names_in_torch("add"), "torch.Tensor.__radd__", "torch.Tensor.__iadd__"),
        (*_TWO_SPARSE, *_DENSE_RESULT),
        samples=_ALPHA,
    ),
    _binary(
        "sub",
        (*names_in_torch("sub", "subtract"), "torch.Tensor.__isub__"),
        (*_TWO_SPARSE, *_DENSE_RESULT),
        samples=_ALPHA,
    ),
    _binary(
        "rsub", ("torch.rsub", "torch.Tensor.__rsub__"), (*_TWO_SPARSE[:1], *_DENSE_RESULT[:3])
    ),
    _binary(
        "mul",
        (*names_in_torch("mul", "multiply"), "torch.Tensor.__rmul__", "torch.Tensor.__imul__"),
        (*_TWO_SPARSE, *_BY_DENSE, "x[m,k] A[m,k] -> C[m,k]", _BY_NUMBER),
    ),
    _quotient("div", "divide", "true_divide", "truediv", "itruediv"),
    _quotient("floor_divide", "floordiv", "ifloordiv"),
    _quotient("remainder", "mod", "imod"),
    _binary(
        "pow",
        (*names_in_torch("pow"), "torch.Tensor.__ipow__"),
        ("P[m,k] p[] -> C[m,k]", "P[m,k] p[m,k] -> C[m,k]", "P[b,m,k] p[k] -> C[b,m,k]"),
    ),
    _binary(
        "maximum", names_in_torch("maximum"), (*_TWO_SPARSE, *_DENSE_RESULT, "A[m,k] n[] -> C[m,k]")
    ),
    _binary(
        "minimum", names_in_torch("minimum"), (*_TWO_SPARSE, *_DENSE_RESULT, "A[m,k] p[] -> C[m,k]")
    ),
    _comparison("eq", "s", two_sparse=False),
    _comparison("ne", None, two_sparse=True),
    _comparison("gt", "p", two_sparse=True),
    _comparison("ge", "p", two_sparse=False),
    _comparison("lt", "n", two_sparse=True),
    _comparison("le", "n", two_sparse=False),
    _bitwise("and", dense=False),
    _bitwise("or", dense=True),
    _bitwise("xor", dense=True),
    _logical("and", dense=False),
    _logical("or", dense=True),
    _logical("xor", dense=True),
    _binary("addcmul", names_in_torch("addcmul"), _THREE, samples=_VALUE, module="fused"),
    _binary(
        "addcdiv",
        names_in_torch("addcdiv"),
        ("A[m,k] B[m,k] p[m,k] -> C[m,k]", "A[b,m,k] B[b,m,k] p[] -> C[b,m,k]"),
        dense=_addcdiv,
        samples=_VALUE,
        module="fused",
    ),
    _binary(
        "lerp",
        names_in_torch("lerp"),
        ("A[m,k] B[m,k] s[] -> C[m,k]", "A[b,m,k] B[b,m,k] x[m,k] -> C[b,m,k]"),
        module="fused",
    ),
    _refused_operator("rtruediv rdiv", "/"),
    _refused_operator("rfloordiv", "//"),
    _refused_operator("rmod", "%"),
    _refused_operator("rpow", "**"),
    _binary(
        "isclose",
        names_in_torch("isclose"),
        ("A[m,k] x[m,k] -> y[m,k]", "x[m,k] A[m,k] -> y[m,k]", "A[b,m,k] x[k] -> y[b,m,k]"),
        order=0,
        samples=({}, {"rtol": 0.5, "atol": 0.2}),
        module="queries",
    ),
    _asked("equal", names_in_torch("equal")),
    _asked("allclose", names_in_torch("allclose"), ({}, {"rtol": 0.5, "atol": 0.9})),
    _asked("is_same_size", names_in_torch("is_same_size")),
    _of_one_element("is_nonzero", "torch.Tensor.__bool__"),
    _of_one_element("item"),
)
