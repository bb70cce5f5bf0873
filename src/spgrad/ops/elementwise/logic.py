"""And, or, exclusive or: of truth values, and of the bits of integers."""

from __future__ import annotations

import operator
from typing import Any

import torch

from spgrad.ops.elementwise import rules
from spgrad.ops.elementwise.rules import Rule
from spgrad.public import public_op


def _or(a: Any, b: Any) -> bool:
    return bool(a) or bool(b)


def _exactly_one(a: Any, b: Any) -> bool:
    return bool(a) != bool(b)


_BITWISE_AND = Rule(torch.bitwise_and, "both")
_BITWISE_OR = Rule(torch.bitwise_or, "either", operator.or_, dense=True)
_BITWISE_XOR = Rule(torch.bitwise_xor, "either", operator.xor, dense=True)
_LOGICAL_AND = Rule(torch.logical_and, "both")
_LOGICAL_OR = Rule(torch.logical_or, "either", _or, dense=True)
_LOGICAL_XOR = Rule(torch.logical_xor, "either", _exactly_one, dense=True)


@public_op
def bitwise_and(input: Any, other: Any) -> torch.Tensor:
    """input & other of bool or integer tensors, with one or both operands sparse.

    Args:
        input: Sparse or dense tensor, or a number.
        other: Sparse of the same shape, in any layout and with any elements; dense, broadcasting
            to the shape of the sparse operand; or a number.

    Returns:
        SparseTensor without gradient. For two sparse operands, it is in the layout of `input` and
        has the elements that both have; otherwise it is on the pattern of the sparse operand.

    Gradient:
        None.

    Cost:
        As `spgrad.mul`.

    Raises:
        TypeError: Neither operand is sparse, or one is neither a tensor nor a number.
        ValueError: Shapes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1, 0], [6, 2]]))
        >>> (A & 2).to_dense(), ((A > 1) & (A.t() > 1)).to_dense()
        (tensor([[0, 0],
                [2, 2]]), tensor([[False, False],
                [False,  True]]))
    """
    return rules.apply(_BITWISE_AND, input, other)


@public_op
def bitwise_or(input: Any, other: Any) -> torch.Tensor:
    """input | other of bool or integer tensors, with one or both operands sparse.

    Args:
        input: Sparse or dense tensor, or the number 0.
        other: Sparse of the same shape, in any layout and with any elements; dense, broadcasting
            as in torch; or the number 0.

    Returns:
        Tensor without gradient. For two sparse operands, a SparseTensor in the layout of `input`
        with the elements of either; for a sparse and a dense operand, a dense tensor.

    Gradient:
        None.

    Cost:
        As `spgrad.add`.

    Raises:
        TypeError: Neither operand is sparse, or one is neither a tensor nor a number.
        ValueError: Shapes, dtypes or devices don't fit, or a number would make the result dense.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1, 0], [6, 2]]))
        >>> (A | A.t()).to_dense()
        tensor([[1, 6],
                [6, 2]])
    """
    return rules.apply(_BITWISE_OR, input, other)


@public_op
def bitwise_xor(input: Any, other: Any) -> torch.Tensor:
    """input ^ other: `spgrad.bitwise_or` with the exclusive or in place of or."""
    return rules.apply(_BITWISE_XOR, input, other)


@public_op
def logical_and(input: Any, other: Any) -> torch.Tensor:
    """True where both elements are not zero, as `spgrad.bitwise_and` with truth values; any dtype.

    The result is bool. As in torch, a number is given as a tensor without dimensions.
    """
    return rules.apply(_LOGICAL_AND, input, other)


@public_op
def logical_or(input: Any, other: Any) -> torch.Tensor:
    """True where one or both are not zero, as `spgrad.bitwise_or` with truth values; any dtype.

    The result is bool. As in torch, a number is given as a tensor without dimensions.
    """
    return rules.apply(_LOGICAL_OR, input, other)


@public_op
def logical_xor(input: Any, other: Any) -> torch.Tensor:
    """True where exactly one is not zero, as `spgrad.bitwise_xor` with truth values; any dtype.

    The result is bool. As in torch, a number is given as a tensor without dimensions.
    """
    return rules.apply(_LOGICAL_XOR, input, other)
