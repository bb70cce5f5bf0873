"""How each library takes parts of a matrix: functions of their own matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Functions = Mapping[str, Callable[..., Any]]


def row(A: Any) -> Any:
    """The row in the middle."""
    return A[A.shape[0] // 2]


def rows_slice(A: Any) -> Any:
    """The second quarter of the rows."""
    return A[A.shape[0] // 4 : A.shape[0] // 2]


def columns_slice(A: Any) -> Any:
    """The second quarter of the columns."""
    return A[:, A.shape[1] // 4 : A.shape[1] // 2]


def rows_listed(A: Any, chosen: Any) -> Any:
    """A row for each number, in that order."""
    return A[chosen]


def _narrowed(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def narrowed(A: torch.Tensor) -> torch.Tensor:
        start, end = A.shape[dim] // 4, A.shape[dim] // 2
        return torch.narrow_copy(A, dim, start, end - start)

    return narrowed


SPGRAD: Functions = {
    "row": row,
    "rows_slice": rows_slice,
    "columns_slice": columns_slice,
    "rows_listed": lambda A, chosen: torch.index_select(A, 0, chosen),
}

TORCH_CSR: Functions = {"row": row}

TORCH_COO: Functions = {
    "row": row,
    "rows_slice": _narrowed(0),
    "columns_slice": _narrowed(1),
    "rows_listed": lambda A, chosen: torch.index_select(A, 0, chosen),
}

SCIPY: Functions = {
    "row": row,
    "rows_slice": rows_slice,
    "columns_slice": columns_slice,
    "rows_listed": rows_listed,
}
