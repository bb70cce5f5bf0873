"""Products of bool tensors, as counts that are compared with 0."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.lowering.operands import is_sparse, sparse_operand


def are_bools(*operands: Any) -> bool:
    """True if all operands are bool tensors, which torch has no products of."""
    return all(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in operands)


def as_counts(arg: str, x: torch.Tensor) -> torch.Tensor:
    """1 for True and 0 for False, in a dtype that counts the products of any row."""
    if not is_sparse(x):
        return x.to(torch.int32)
    A = sparse_operand(arg, x)
    return on_pattern(A._vals.to(torch.int32), A._pattern)


T = TypeVar("T", bound=torch.Tensor)


def as_truth(y: T) -> T:
    """Whether each count is not 0."""
    return on_pattern(y._vals != 0, y._pattern) if isinstance(y, SparseTensor) else y != 0  # type: ignore[return-value]
