"""Rows of the functions of one element that keep zero, and of those that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from spgrad.support.table import ALL, Op, names_in_torch

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
        "elementwise",
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
    return Op(name, "elementwise", names, (), dense, layouts=(), absent=absent)


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

ROWS = (
    Op(
        "map",
        "elementwise",
        (),
        FORMS,
        _called,
        masked=True,
        samples=({"fn": torch.exp}, {"fn": torch.cos}),
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
        "elementwise",
        ("torch.nn.functional.dropout",),
        FORMS,
        F.dropout,
        samples=({"p": 0.0}, {"p": 1.0}, {"training": False}),
    ),
    *(_refused(name, value) for name, value in _AT_ZERO.items()),
    _refused("bitwise_not", "-1, of bool True", "invert"),
)
