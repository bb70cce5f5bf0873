"""Products of groups of rows, each with a matrix of its own."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import ops


def segment_mm(a: torch.Tensor, b: torch.Tensor, seglen_a: torch.Tensor) -> torch.Tensor:
    """As `spgrad.segment_mm`.

    Example:
        >>> segment_mm(torch.ones(3, 2), torch.ones(2, 2, 1), torch.tensor([1, 2])).shape
        torch.Size([3, 1])
    """
    return ops.segment_mm(a, b, seglen_a)


def gather_mm(a: torch.Tensor, b: torch.Tensor, idx_b: torch.Tensor) -> torch.Tensor:
    """As `spgrad.gather_mm`.

    Example:
        >>> gather_mm(torch.ones(3, 2), torch.ones(2, 2, 1), torch.tensor([1, 0, 1])).shape
        torch.Size([3, 1])
    """
    for x in (a, b, idx_b):
        _require_tensor(x)
    return ops.gather_mm(a, b, idx_b)


def _require_tensor(x: Any) -> None:
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{type(x).__name__} is given; tensors are taken")
