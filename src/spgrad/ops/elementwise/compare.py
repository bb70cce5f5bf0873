"""Comparisons, as sparse bool tensors."""

from __future__ import annotations

import operator
from typing import Any

import torch

from spgrad.ops.elementwise import rules
from spgrad.ops.elementwise.rules import Rule
from spgrad.public import public_op

# Where neither operand has an element, 0 is compared with 0.
_EQ = Rule(torch.eq, "none", operator.eq, dense=True)
_GE = Rule(torch.ge, "none", operator.ge, dense=True)
_GT = Rule(torch.gt, "either", operator.gt, dense=True)
_LE = Rule(torch.le, "none", operator.le, dense=True)
_LT = Rule(torch.lt, "either", operator.lt, dense=True)
_NE = Rule(torch.ne, "either", operator.ne, dense=True)


@public_op
def ne(input: Any, other: Any) -> torch.Tensor:
    """input != other, element by element, with one or both operands sparse.

    Args:
        input: Sparse or dense tensor, or a number.
        other: Sparse of the same shape, in any layout and with any elements; dense, broadcasting
            as in torch; or a number for which the comparison with 0 is False.

    Returns:
        Bool tensor without gradient. For two sparse operands it is sparse, in the layout of
        `input`, with the elements of either. For a sparse tensor and a number it is on the pattern
        of the tensor. For a sparse and a dense tensor it is dense.

    Cost:
        As `spgrad.add`.

    Raises:
        TypeError: Neither operand is sparse, or one is neither a tensor nor a number.
        ValueError: Shapes or devices don't fit, or a number would make the result dense.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
        >>> (A > 1.5).to_dense()
        tensor([[False, False],
                [ True,  True]])
    """
    return rules.apply(_NE, input, other)


@public_op
def eq(input: Any, other: Any) -> torch.Tensor:
    """input == other, element by element: as `spgrad.ne` with this comparison.

    Two sparse operands are refused: they are equal wherever neither has an element.
    """
    return rules.apply(_EQ, input, other)


@public_op
def gt(input: Any, other: Any) -> torch.Tensor:
    """input > other, element by element: as `spgrad.ne` with this comparison."""
    return rules.apply(_GT, input, other)


@public_op
def ge(input: Any, other: Any) -> torch.Tensor:
    """input >= other, element by element: as `spgrad.ne` with this comparison.

    Two sparse operands are refused: they are equal wherever neither has an element.
    """
    return rules.apply(_GE, input, other)


@public_op
def lt(input: Any, other: Any) -> torch.Tensor:
    """input < other, element by element: as `spgrad.ne` with this comparison."""
    return rules.apply(_LT, input, other)


@public_op
def le(input: Any, other: Any) -> torch.Tensor:
    """input <= other, element by element: as `spgrad.ne` with this comparison.

    Two sparse operands are refused: they are equal wherever neither has an element.
    """
    return rules.apply(_LE, input, other)
