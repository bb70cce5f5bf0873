"""Elements of the inverse of a matrix, by its factors, and their derivative."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch

from spgrad.core.pattern import Pattern
from spgrad.errors import in_gradient_of
from spgrad.linalg.direct.engines import Factored, coordinates
from spgrad.linalg.direct.selected import selected_elements
from spgrad.linalg.solve import Kept, System, solve_with
from spgrad.lowering.products.spmm import spmm, wants_grad
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import Function

_COLUMNS = 64
"""Columns of the inverse, or of the matrix of a second derivative, that are found at once."""


class Wanted(NamedTuple):
    """Elements of the inverse of the matrix that `kept` factors, at a pattern of its size."""

    kept: Kept
    pattern: Pattern
    transpose: bool  # element (j, i) for every (i, j) of the pattern


def inverse_elements(found: Factored, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Elements (row, column) of A^-1, without gradient.

    Takahashi's equations give the elements at the pattern of the factors. The others, or all if the
    engine gives no factors, are read from the columns of A^-1 that hold them: one solve for each
    column, 64 columns at once.
    """
    row, column = row.cpu().to(torch.int64), column.cpu().to(torch.int64)
    out, missing = _by_factors(found, row, column)
    if missing.numel() == 0:
        return out
    missing = missing[torch.argsort(column[missing])]
    distinct, counts = torch.unique_consecutive(column[missing], return_counts=True)
    ends = counts.cumsum(0)
    for start in range(0, distinct.shape[0], _COLUMNS):
        some = distinct[start : start + _COLUMNS]
        unit = torch.zeros(found.size, some.shape[0], dtype=found.dtype, device="cpu")
        unit[some, torch.arange(some.shape[0], device="cpu")] = 1
        x, _ = found.solve(unit)
        a = int(ends[start - 1]) if start else 0
        which = missing[a : int(ends[start + some.shape[0] - 1])]
        out[which] = x[row[which], torch.searchsorted(some, column[which])]
    return out


def _by_factors(
    found: Factored, row: torch.Tensor, column: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements (row, column) of A^-1, and which of them the factors don't have."""
    if found.selected is None:
        found.selected = selected_elements(found)
    if found.selected is None:
        return torch.zeros(row.shape, dtype=found.dtype, device="cpu"), torch.arange(
            row.shape[0], device="cpu"
        )
    chosen = found.selected
    out, at = chosen.elements(chosen.to_column[row], chosen.to_row[column])
    return out, torch.nonzero(at < 0).squeeze(-1)


def inverse_values(vals: torch.Tensor, wanted: Wanted) -> torch.Tensor:
    """Flat values of the inverse at a pattern.

    d(A^-1) = -A^-1 dA A^-1, so the gradient for a cotangent G on the pattern is -A^-H G A^-H, of
    which the elements at the pattern of A are found.
    """
    if wants_grad(vals):
        return _Inverse.apply(vals, wanted)  # type: ignore[return-value]
    return _found(vals, wanted)


def _found(vals: torch.Tensor, wanted: Wanted) -> torch.Tensor:
    row, column = coordinates(wanted.pattern)
    if row.numel() == 0:
        return vals.new_empty(0)
    if wanted.transpose:
        row, column = column, row
    with torch.no_grad():
        found = cast(Factored, wanted.kept.prepared(vals))
        return inverse_elements(found, row, column).to(vals.device)


class _Inverse(Function):
    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, wanted: Wanted) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(vals)
        ctx.wanted = wanted
        return _found(vals, wanted)

    @staticmethod
    @in_gradient_of("linalg.inverse_at")
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        (vals,) = ctx.saved_tensors
        return -_sandwich(vals, g, ctx.wanted), None


def _sandwich(vals: torch.Tensor, g: torch.Tensor, wanted: Wanted) -> torch.Tensor:
    """A^-H G A^-H at the pattern of A, in blocks of columns; G has the values g at the pattern."""
    pattern = wanted.kept.pattern
    size, m = pattern.extent[0], pattern.matrix[0]
    if m == 0:
        return vals * 0  # empty, but part of the graph
    row, column = coordinates(pattern)
    system = System(pattern, wanted.kept, adjoint=True, cotangent=True)
    order = torch.argsort(column % m, stable=True)
    row, column = row[order], column[order] % m
    line = torch.arange(size, device=vals.device)
    parts = []
    for start in range(0, m, _COLUMNS):
        width = min(_COLUMNS, m - start)
        bounds = torch.tensor([start, start + width], device=column.device)
        a, b = torch.searchsorted(column, bounds).tolist()
        unit = vals.new_zeros(size, width)
        inside = (line % m >= start) & (line % m < start + width)
        unit[line[inside], line[inside] % m - start] = 1
        middle = spmm(g, solve_with(vals, unit, system), wanted.pattern, wanted.transpose)
        parts.append(solve_with(vals, middle, system)[row[a:b], column[a:b] - start])
    return torch.cat(parts)[torch.argsort(order)]
