"""Comparisons, as sparse bool tensors."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.ops import pairs
from spgrad.ops.pairs import Rule


def _compares(fn: Any, *, at_zero: bool) -> Rule:
    return Rule(fn, where="none" if at_zero else "either", dense=True)


_EQ = _compares(torch.eq, at_zero=True)
_GE = _compares(torch.ge, at_zero=True)
_GT = _compares(torch.gt, at_zero=False)
_LE = _compares(torch.le, at_zero=True)
_LT = _compares(torch.lt, at_zero=False)
_NE = _compares(torch.ne, at_zero=False)


def ne(input: Any, other: Any) -> torch.Tensor:
    """input != other, element by element, with one or both operands sparse.

    Args:
        input: Sparse or dense tensor, or a number.
        other: Sparse of the same shape, in any layout and with any elements; dense, broadcasting as
            in torch; or a number of which the comparison with 0 is False.

    Returns:
        Bool tensor without gradient. Of two sparse operands sparse, in the layout of `input` with
        the elements of either; of a sparse tensor and a number on the pattern of the tensor; of a
        sparse and a dense tensor dense.

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
    return pairs.apply("ne", _NE, input, other)


def eq(input: Any, other: Any) -> torch.Tensor:
    """input == other: `spgrad.ne` with == in place of !=.

    Two sparse operands are refused: they are equal wherever neither has an element.
    """
    return pairs.apply("eq", _EQ, input, other)


def gt(input: Any, other: Any) -> torch.Tensor:
    """input > other: `spgrad.ne` with > in place of !=."""
    return pairs.apply("gt", _GT, input, other)


def ge(input: Any, other: Any) -> torch.Tensor:
    """input >= other: `spgrad.ne` with >= in place of !=.

    Two sparse operands are refused: they are equal wherever neither has an element.
    """
    return pairs.apply("ge", _GE, input, other)


def lt(input: Any, other: Any) -> torch.Tensor:
    """input < other: `spgrad.ne` with < in place of !=."""
    return pairs.apply("lt", _LT, input, other)


def le(input: Any, other: Any) -> torch.Tensor:
    """input <= other: `spgrad.ne` with <= in place of !=.

    Two sparse operands are refused: they are equal wherever neither has an element.
    """
    return pairs.apply("le", _LE, input, other)
