"""Comparisons of sparse tensors that give a bool or a number, and isclose."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.align import align
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import call, dense_operand, is_sparse, sparse_operand
from spgrad.ops.elementwise import rules
from spgrad.ops.elementwise.rules import Rule
from spgrad.ops.layouts.dense import to_dense
from spgrad.public import public_op


@public_op
def isclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> torch.Tensor:
    """|input - other| <= atol + rtol |other|, element by element: as `spgrad.eq` with a tolerance.

    Two sparse tensors are refused, because the result would be dense; `spgrad.allclose` takes
    them.
    """
    _require_tolerances(rtol, atol)
    rule = Rule(
        functools.partial(torch.isclose, rtol=rtol, atol=atol, equal_nan=equal_nan),
        "none",
        lambda a, b: abs(a - b) <= atol + rtol * abs(b) and abs(b) != math.inf,
        dense=True,
    )
    _require_tensors(input=input, other=other)
    return rules.apply(rule, input, other)


def _require_tolerances(rtol: Any, atol: Any) -> None:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not (isinstance(value, torch.Tensor) and value.dim() == 0):  # which torch takes
            checks.require_number(name, value, "For example 1e-5.", least=0)


@public_op
def equal(input: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether two tensors have the same shape and the same elements, specified or not.

    Args:
        input: Sparse tensor of any layout, or a dense one.
        other: Likewise; one of the two is sparse.

    Returns:
        bool. An element that is specified as 0 equals one that is not specified.

    Gradient:
        None.

    Cost:
        O(nse of both), or O(size) if one is dense.

    Raises:
        TypeError: Neither is sparse, or one is not a tensor.
        ValueError: Devices differ.

    Example:
        >>> A = spgrad.from_dense(torch.eye(2))
        >>> spgrad.equal(A, A.to_sparse_coo()), spgrad.equal(A, torch.ones(2, 2))
        (True, False)
    """
    found = _same_places(input, other)
    return found is not None and call(torch.equal, *found)


@public_op
def allclose(
    input: torch.Tensor,
    other: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool:
    """|input - other| <= atol + rtol |other| everywhere: as `spgrad.equal` with a tolerance.

    Tensors of different shapes are refused.
    """
    _require_tolerances(rtol, atol)
    found = _same_places(input, other)
    if found is None:
        accepted = f"{tuple(input.shape)}, the shape of `input`,"
        raise checks.bad_shape("other", tuple(other.shape), accepted, "Expand it.")
    options = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}
    return call(torch.allclose, *found, **options)


@public_op
def is_same_size(input: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether two tensors have one shape: as `spgrad.equal` with the shapes alone."""
    _require_tensors(input=input, other=other)
    return tuple(input.shape) == tuple(other.shape)


@public_op
def is_nonzero(input: torch.Tensor) -> bool:
    """Tells whether the only element of a tensor is not zero.

    Args:
        input: Sparse tensor of one element, specified or not.

    Returns:
        bool.

    Gradient:
        None.

    Cost:
        O(nse).

    Raises:
        TypeError: `input` is not sparse.
        ValueError: It has no element, or more than one.

    Example:
        >>> spgrad.is_nonzero(spgrad.from_dense(torch.ones(1, 1)))
        True
    """
    return bool(_only(input))


@public_op
def item(input: torch.Tensor) -> Any:
    """The only element, as a number of Python: as `spgrad.is_nonzero` with this result."""
    return _only(input)


def _only(input: Any) -> Any:
    A = without_repeats(sparse_operand("input", input))
    if A._pattern.shape.numel() != 1:
        raise ArgumentValueError(
            f"`input` has shape {tuple(A._pattern.shape)}; a tensor of one element is accepted. "
            "Reduce it first, for example with A.sum(), or with A.any() for a condition."
        )
    return (
        A._vals.sum().item()
        if A._vals.numel()
        else torch.zeros((), dtype=A.dtype, device="cpu").item()
    )


def _same_places(input: Any, other: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The values of both where one of them may not be 0, in one order; None for unequal shapes."""
    _require_tensors(input=input, other=other)
    if not is_sparse(input) and not is_sparse(other):
        sparse_operand("input", input)  # raises the error
    a, b = _sparse_or_dense("input", input), _sparse_or_dense("other", other)
    checks.require_same_device(input=_data(a), other=_data(b))
    if tuple(a.shape) != tuple(b.shape):
        return None
    if (
        isinstance(a, SparseTensor)
        and isinstance(b, SparseTensor)
        and a.dense_dim() == b.dense_dim()
    ):
        aligned = align(a, b, "either")
        return aligned.a.detach(), aligned.b.detach()
    return _dense(a), _dense(b)


def _require_tensors(**operands: Any) -> None:
    for name, x in operands.items():
        if not isinstance(x, torch.Tensor):
            raise ArgumentKindError(
                f"`{name}` is {checks.describe_kind(x)}; a sparse or dense tensor is accepted. "
                f"{checks.tensor_hint(x)}"
            )


def _sparse_or_dense(arg: str, x: Any) -> torch.Tensor:
    return sparse_operand(arg, x) if is_sparse(x) else dense_operand(arg, x)


def _data(x: torch.Tensor) -> torch.Tensor:
    return stored_values(x) if isinstance(x, SparseTensor) else x


def _dense(x: torch.Tensor) -> torch.Tensor:
    return to_dense(x.detach()) if isinstance(x, SparseTensor) else x.detach()
