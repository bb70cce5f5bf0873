"""Rows of the functions of two or three elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spgrad.support.table import ALL, Op, names_in_torch

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
            safe = safe.to(torch.result_type(A, b))  # one without dimensions does not promote
        return torch.where(mask, fn(A, safe, **kw), torch.zeros((), dtype=A.dtype))

    return dense


def _binary(
    name: str,
    names: tuple[str, ...],
    signatures: tuple[str, ...],
    *,
    dense: Callable[..., Any] | None = None,
    masked: bool = False,
    order: int = 2,
    samples: tuple[Mapping[str, Any], ...] = ({},),
) -> Op:
    fn = dense or getattr(torch, name)
    return Op(name, "binary", names, signatures, fn, masked, order=order, samples=samples)


def _quotient(name: str, *aliases: str, samples: tuple[Mapping[str, Any], ...] = ({},)) -> Op:
    return _binary(
        name,
        names_in_torch(name, *aliases),
        (_TWO_SPARSE[0].replace("B[", "F["), *_BY_DENSE, _BY_NUMBER),
        dense=_masked(getattr(torch, name)),
        masked=True,
        order=0 if name == "floor_divide" else 2,
        samples=samples,
    )


def _comparison(name: str, number: str | None, *, two_sparse: bool) -> Op:
    """`number` is the sign of a number whose comparison with 0 is False."""
    by_number = () if number is None else (f"A[m,k] {number}[] -> C[m,k]",)
    signatures = (*_DENSE_RESULT, *by_number)
    if two_sparse:
        signatures = (*_TWO_SPARSE, *signatures)
    return _binary(name, names_in_torch(name), signatures, order=0)


def _bitwise(name: str, *, dense: bool) -> Op:
    """`dense`: whether the result is, with a dense operand."""
    with_dense = _integer(_DENSE_RESULT if dense else (*_BY_DENSE, "x[m,k] A[m,k] -> C[m,k]"))
    by_number = () if dense else ("I[m,k] i[] -> C[m,k]",)
    signatures = (*_integer(_TWO_SPARSE), *with_dense, *by_number)
    names = f"bitwise_{name}", name, f"i{name}"
    operators = *names_in_torch(*names), f"torch.Tensor.__r{name}__"
    return _binary(names[0], operators, signatures, order=0)


def _integer(signatures: tuple[str, ...]) -> tuple[str, ...]:
    """The same of integers."""
    named = {"A": "I", "B": "J", "x": "i"}
    return tuple(re.sub(r"\b[ABx](?=\[)", lambda m: named[m[0]], s) for s in signatures)


def _logical(name: str, *, dense: bool) -> Op:
    with_dense = _DENSE_RESULT if dense else (*_BY_DENSE, "x[m,k] A[m,k] -> C[m,k]", _BY_NUMBER)
    names = names_in_torch(f"logical_{name}")
    return _binary(f"logical_{name}", names, (*_TWO_SPARSE, *with_dense), order=0)


def _addcdiv(
    A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    dtype = torch.addcdiv(*(t.new_empty(0 if t.dim() else ()) for t in (A, B, C))).dtype
    quotient = B.to(dtype) / C
    return A + value * torch.where((B == 0) & quotient.isnan(), 0, quotient)


def _refused(name: str, operator: str) -> Op:
    reason = f"number {operator} 0 is not 0, so that the result would be dense"
    names = tuple(f"torch.Tensor.__{n}__" for n in name.split())
    absent = dict.fromkeys(ALL, reason)
    return Op(name.split(maxsplit=1)[0], "binary", names, (), torch.div, layouts=(), absent=absent)


_ALPHA = ({}, {"alpha": 2})
_VALUE = ({}, {"value": 0.5})
_THREE = ("A[m,k] B[m,k] F[m,k] -> C[m,k]", "A[b,m,k] B[b,m,k] F[b,m,k] -> C[b,m,k]")

ROWS: tuple[Op, ...] = (
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
    _binary("addcmul", names_in_torch("addcmul"), _THREE, samples=_VALUE),
    _binary(
        "addcdiv",
        names_in_torch("addcdiv"),
        ("A[m,k] B[m,k] p[m,k] -> C[m,k]", "A[b,m,k] B[b,m,k] p[] -> C[b,m,k]"),
        dense=_addcdiv,
        samples=_VALUE,
    ),
    _binary(
        "lerp",
        names_in_torch("lerp"),
        ("A[m,k] B[m,k] s[] -> C[m,k]", "A[b,m,k] B[b,m,k] x[m,k] -> C[b,m,k]"),
    ),
    _refused("rtruediv rdiv", "/"),
    _refused("rfloordiv", "//"),
    _refused("rmod", "%"),
    _refused("rpow", "**"),
)
