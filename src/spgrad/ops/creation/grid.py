"""Patterns of the points of a grid and their neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.pattern import Pattern
from spgrad.errors import ArgumentValueError
from spgrad.lowering.convert import convert
from spgrad.ops.layouts.convert import require_layout
from spgrad.public import public_op


@public_op
def neighbourhood_pattern(
    shape: Sequence[int],
    radius: float,
    *,
    diagonal: bool = True,
    upper: bool | None = None,
    layout: torch.layout = torch.sparse_csr,
    device: torch.device | str | None = None,
) -> Pattern:
    """Which points of a grid are near one another: the pattern of a stencil or a random field.

    Point i has an element with each point j whose distance is at most the radius; points are
    numbered in row-major order. `spgrad.from_values` puts values there.

    Args:
        shape: The points along each dimension of the grid.
        radius: Greatest Euclidean distance, in steps of the grid, from 0.
        diagonal: Whether each point is its own neighbour.
        upper: True for the elements with j >= i alone, False for those with j <= i.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.
        device: Of the index tensors.

    Returns:
        `Pattern` (points, points).

    Gradient:
        None.

    Cost:
        O(nse + points of a cube with 2 radius + 1 points a side).

    Raises:
        TypeError: `layout` is not a sparse layout.
        ValueError: `shape` is no sequence of positive integers, or `radius` negative.

    Example:
        >>> pattern = spgrad.neighbourhood_pattern((2, 2), 1)
        >>> spgrad.from_values(torch.ones(pattern.nse), pattern).to_dense()
        tensor([[1., 1., 1., 0.],
                [1., 1., 0., 1.],
                [1., 0., 1., 1.],
                [0., 1., 1., 1.]])
    """
    require_layout(layout)
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ArgumentValueError(
            f"`shape` is {shape!r}; a positive int, or a sequence of them, is accepted. For "
            "example (64, 64)."
        )
    if not radius >= 0 or math.isinf(radius):
        raise ArgumentValueError(
            f"`radius` is {radius}; numbers from 0 are accepted. 1 takes the next point along each "
            "dimension."
        )
    points = math.prod(sizes)
    steps = [step for step in neighbour_steps(len(sizes), radius) if side_is(step, upper)]
    steps += [(0,) * len(sizes)] if diagonal else []
    pairs = [grid_pairs(sizes, step, device=device) for step in steps]
    indices = torch.cat(pairs, 1) if pairs else torch.empty(2, 0, dtype=torch.int64, device=device)
    made = sparse_coo_tensor(indices, torch.ones(indices.shape[1], device=device), (points, points))
    return convert(made, layout)._pattern  # type: ignore[arg-type]


def neighbour_steps(dims: int, radius: float) -> list[tuple[int, ...]]:
    """The steps to all neighbours of a point within the radius, without that to itself."""
    most = math.floor(radius)
    every = itertools.product(range(-most, most + 1), repeat=dims)
    return [s for s in every if 0 < sum(x * x for x in s) <= radius * radius]


def side_is(step: Sequence[int], upper: bool | None) -> bool:
    """Whether the step from a column to its row leads to this side of the diagonal."""
    first = next((x for x in step if x), 0)
    return upper is None or (first < 0 if upper else first > 0)


def grid_pairs(
    sizes: Sequence[int], step: Sequence[int], dtype: torch.dtype = torch.int64, device: Any = None
) -> torch.Tensor:
    """The numbers (2, pairs) of the points r and c with r - c = step, those of r in order."""
    number = torch.arange(math.prod(sizes), dtype=dtype, device=device).view(tuple(sizes))
    back = [-x for x in step]
    return torch.stack(
        (part_with_neighbours(number, step).flatten(), part_with_neighbours(number, back).flatten())
    )


def part_with_neighbours(x: torch.Tensor, step: Sequence[int]) -> torch.Tensor:
    """The part of a grid whose points p have a point p - step on it."""
    ends = zip(step, x.shape, strict=True)
    return x[tuple(slice(max(s, 0), max(n + min(s, 0), 0)) for s, n in ends)]
