"""Matrices whose shapes, patterns or values are special cases."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values
from spgrad.lowering.views import positions_among

ZOO: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: _drawn(6, 8, 0.4),
    "no_entries": lambda: torch.zeros(4, 6),
    "empty_rows": lambda: _drawn(8, 6, 0.5) * (torch.arange(8) % 3 == 0)[:, None],
    "one_row": lambda: _drawn(2, 12, 0.5)[:1].repeat(2, 1),
    "one_column": lambda: _drawn(8, 2, 0.7) * torch.tensor([0.0, 1.0]),
    "dense_row": lambda: _drawn(8, 10, 0.1) + 3.0 * (torch.arange(8) == 5)[:, None],
    "full": lambda: _drawn(4, 4, 1.1),
    "wide": lambda: _drawn(2, 64, 0.2),
    "tall": lambda: _drawn(64, 2, 0.2),
    "no_rows": lambda: torch.zeros(0, 4),
    "no_columns": lambda: torch.zeros(4, 0),
}
"""Name -> a dense float32 matrix whose shape or pattern is a corner case; sizes are even."""


def _drawn(rows: int, columns: int, density: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    keep = torch.rand(rows, columns, generator=generator) < density
    return torch.randn(rows, columns, generator=generator) * keep


def dominant(A: torch.Tensor) -> torch.Tensor:
    """A sparse batch of square matrices with a diagonal of 1.5 to 2.4 and small numbers elsewhere.

    Repeated elements of the diagonal add up to more. Integers stay as they are.
    """
    assert isinstance(A, SparseTensor)
    if not (A.dtype.is_floating_point or A.dtype.is_complex):
        return A
    pattern = A._pattern
    dims = len(pattern.shape)
    row, col = (positions_among(pattern, (dim,)) for dim in (dims - 2, dims - 1))
    vals = A._vals.reshape(-1)
    on_diagonal = row == col
    vals = torch.where(on_diagonal, 1.5 + vals.abs(), vals / max(pattern.matrix[0], 1))
    return from_values(vals.to(A.dtype).view(pattern.values_shape), pattern)
