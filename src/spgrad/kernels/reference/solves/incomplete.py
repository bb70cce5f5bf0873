"""References of the factorisations that keep the pattern of the matrix."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel


def _factor_shapes(
    ptr: Tensor, idx: Tensor, val: Tensor, relaxation: float = 0.0
) -> tuple[Tensor, Tensor]:
    return val.new_empty(val.shape), val.new_empty(1, dtype=torch.int64)


def _lines(ptr: Tensor, idx: Tensor, val: Tensor) -> list[dict[int, Any]]:
    """The entries of each row: column -> value."""
    starts, columns, numbers = ptr.tolist(), idx.tolist(), val.tolist()
    pairs = list(zip(columns, numbers, strict=True))
    return [dict(pairs[a:b]) for a, b in itertools.pairwise(starts)]


def _result(lines: list[dict[int, Any]], val: Tensor, failed: int) -> tuple[Tensor, Tensor]:
    numbers = [number for line in lines for number in line.values()]
    factor = torch.tensor(numbers, dtype=val.dtype, device=val.device).view(val.shape)
    return factor, torch.tensor([failed], device=val.device)


@kernel(
    "incomplete_cholesky(Tensor ptr, Tensor idx, Tensor val) -> (Tensor, Tensor)",
    fake=_factor_shapes,
)
def incomplete_cholesky(ptr: Tensor, idx: Tensor, val: Tensor) -> tuple[Tensor, Tensor]:
    """Values of L with (L L^H)_ij = a_ij at every entry of the lower triangle of A: IC(0).

    The columns of a row are sorted and do not repeat, and are not above the diagonal.

    Args:
        ptr: Row pointers (m + 1,) of the lower triangle.
        idx: Column of every entry (nse,).
        val: Values (nse,), float32, float64 or complex. Of the diagonal the real part counts.

    Returns:
        Values of L (nse,), and the first row whose pivot is missing or not positive (1,), int64, or
        -1. From that row on the values mean nothing.
    """
    lines = _lines(ptr, idx, val)
    for i, line in enumerate(lines):
        if i not in line:
            return _result(lines, val, i)
        for j in line:
            other = lines[j]
            before = [k for k in line if k < j and k in other]
            rest = line[j] - sum(line[k] * other[k].conjugate() for k in before)
            if j < i:
                line[j] = rest / other[j]
            elif not rest.real > 0:
                return _result(lines, val, i)
            else:
                line[j] = math.sqrt(rest.real)
    return _result(lines, val, -1)


@kernel(
    "relaxed_cholesky(Tensor ptr, Tensor idx, Tensor val, float relaxation) -> (Tensor, Tensor)",
    fake=_factor_shapes,
)
def relaxed_cholesky(
    ptr: Tensor, idx: Tensor, val: Tensor, relaxation: float
) -> tuple[Tensor, Tensor]:
    """Values of L with (L L^H)_ij = a_ij at every entry off the diagonal: relaxed IC(0).

    What L L^H has elsewhere is subtracted, times `relaxation`, from the diagonal elements of its
    row and its column. The rows of a column are sorted and do not repeat, and are not above the
    diagonal.

    Args:
        ptr: Column pointers (m + 1,) of the lower triangle.
        idx: Row of every entry (nse,).
        val: Values (nse,), float32, float64 or complex. Of the diagonal the real part counts.
        relaxation: From 0, for IC(0), to 1, with which L L^H has the row sums of a real A.

    Returns:
        Values of L (nse,), and the first column whose pivot is missing or not positive (1,), int64,
        or -1. From that column on the values mean nothing.
    """
    lines = _lines(ptr, idx, val)
    lost = [0.0] * len(lines)
    for k, line in enumerate(lines):
        for other in (other for other in lines[:k] if k in other):
            for i, number in other.items():
                product = number * other[k].conjugate()
                if i in line:
                    line[i] = line[i] - product
                elif i > k:
                    lost[k] += product.real
                    lost[i] += product.real
        pivot = line[k].real - relaxation * lost[k] if k in line else math.nan
        if not pivot > 0:
            return _result(lines, val, k)
        for i in line:
            line[i] = math.sqrt(pivot) if i == k else line[i] / line[k]
    return _result(lines, val, -1)


@kernel(
    "incomplete_lu(Tensor ptr, Tensor idx, Tensor val, float relaxation) -> (Tensor, Tensor)",
    fake=_factor_shapes,
)
def incomplete_lu(
    ptr: Tensor, idx: Tensor, val: Tensor, relaxation: float
) -> tuple[Tensor, Tensor]:
    """Values of L, without its diagonal of ones, and U with (L U)_ij = a_ij at every entry: ILU(0).

    With a `relaxation`, the diagonal element of a row is less by that times what L U has in the row
    where A has no entry. The columns of a row are sorted and do not repeat.

    Args:
        ptr: Row pointers (m + 1,).
        idx: Column of every entry (nse,).
        val: Values (nse,), float32, float64 or complex.
        relaxation: From 0, for ILU(0), to 1, with which L U has the row sums of A.

    Returns:
        Values (nse,): left of the diagonal those of L, the others those of U. And the first row
        whose pivot is missing or zero (1,), int64, or -1. From that row on the values mean nothing.
    """
    lines = _lines(ptr, idx, val)
    for i, line in enumerate(lines):
        lost = 0.0
        for k in [k for k in line if k < i]:
            line[k] = line[k] / lines[k][k]
            for j, number in lines[k].items():
                if j > k and j in line:
                    line[j] = line[j] - line[k] * number
                elif j > k:
                    lost = lost + line[k] * number
        if i in line:
            line[i] = line[i] - relaxation * lost
        if line.get(i, 0) == 0:
            return _result(lines, val, i)
    return _result(lines, val, -1)
