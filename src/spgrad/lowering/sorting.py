"""The lexicographic order of coordinates, by counting sorts where these are short."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spgrad import kernels
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.torch_protocol.compile import known

_SHORT = 1 << 16


def many(lines: int, pattern: Pattern) -> bool:
    """True where an array with one element for each line would be much larger than the pattern."""
    return lines > _SHORT and lines > 4 * pattern.nse  # a trace may not know the second number


def lexicographic(
    indices: torch.Tensor, sizes: Sequence[int], leading: int | None = None
) -> torch.Tensor:
    """The order (n,) that sorts distinct coordinates (d, n), int64.

    Args:
        indices: Coordinates of the elements, no two of them equal.
        sizes: Exclusive bounds of the coordinates (d,).
        leading: Number of dimensions to sort by, if elements with the same coordinates in these
            dimensions are in order already; by default all.

    Returns:
        Position of each sorted element. O(d (n + size)) by one stable counting sort for each
        dimension (Knuth, TAOCP 3, 5.2.5, algorithm R), least significant first. If a dimension is
        much longer than n, the radix sort of `kernels.coalesce` is used.
    """
    count = indices.shape[1]
    limit = max(2 * count, _SHORT) if known(count) else _SHORT
    keys = _joined_keys(indices[:leading], list(sizes[:leading]), limit)
    if keys is None:
        return kernels.sort_coo(indices.contiguous(), list(sizes))[2].to(torch.int64)
    order = None
    for key, size in reversed(keys):
        short = key.to(index_dtype(torch.int32, (size, count)))
        step = counting_sort(short if order is None else short.index_select(0, order), size)[1]
        order = step if order is None else order.index_select(0, step)
    return indices.new_ones(count).cumsum(0) - 1 if order is None else order.to(torch.int64)


def inverse(to: torch.Tensor, size: int) -> torch.Tensor:
    """For each of `size` places, the position in `to` that names it, or -1; skips -1 in `to`."""
    position = torch.ones_like(to).cumsum(0, dtype=torch.int64) - 1
    found = position.new_full((size + 1,), -1)
    return found.index_copy_(0, torch.where(to < 0, size, to).to(torch.int64), position)[:size]


def _joined_keys(
    indices: torch.Tensor, sizes: list[int], limit: int
) -> list[tuple[torch.Tensor, int]] | None:
    """Sort keys, neighbours joined if the result stays below `limit`; None if one is above."""
    if any(size > limit for size in sizes):
        return None
    limit = min(limit, torch.iinfo(indices.dtype).max)  # of the joined keys too
    keys: list[tuple[torch.Tensor, int]] = []
    for index, size in zip(indices, sizes, strict=True):
        if keys and keys[-1][1] * size <= limit:
            above, extent = keys.pop()
            keys.append((above * size + index, extent * size))
        else:
            keys.append((index, size))
    return keys


def counting_sort(keys: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pointers (size + 1,) to each key below `size`, and the positions (n,) in sorted order.

    The sort is stable: equal keys stay in order. Results are in the dtype of the keys, which has to
    hold n. The sort is the transpose of a matrix of one row; O(n + size).
    """
    row = torch.stack([keys.new_zeros(()), keys.new_full((), keys.shape[0])])
    ptr, _, order = kernels.transpose_plan(row, keys.contiguous(), size)
    return ptr, order
