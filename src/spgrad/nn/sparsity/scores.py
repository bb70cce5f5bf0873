"""Scores of the elements that a layer does not have, computed in tiles of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from spgrad.nn.choose import as_blocks
from spgrad.nn.weight import SparseWeight

Seen = list[tuple[torch.Tensor, torch.Tensor]]
"""Inputs of a layer with the gradients of its outputs."""

Scores = Callable[[int, int], torch.Tensor]
"""scores(start, stop) gives the scores of these rows, or rows of blocks, (stop - start, width)."""


def gradient_scores(
    layer: SparseWeight, seen: Seen, reduce: Callable[[torch.Tensor], Any] | None
) -> Scores:
    """The magnitude of the gradient of each element, or its norm on each block."""
    pairs = []
    for x, g in seen:
        dtype = torch.promote_types(x.dtype, g.dtype)
        pairs.append((x.reshape(-1, x.shape[-1]).to(dtype).conj(), g.reshape(-1, g.shape[-1])))
    blocks = layer.blocksize
    height = blocks[0] if blocks else 1

    def scores(start: int, stop: int) -> torch.Tensor:
        at = slice(start * height, stop * height)
        (x, g), *more = pairs
        found = g[:, at].to(x.dtype).T @ x
        for x, g in more:
            found += g[:, at].to(x.dtype).T @ x
        if reduce is not None:
            reduce(found)
        return found.abs() if blocks is None else as_blocks(found, blocks).norm(dim=(2, 3))

    return scores


def largest_beside(
    layer: SparseWeight, kept: torch.Tensor, n: int, scores: Scores, memory: int
) -> torch.Tensor:
    """Positions of the n largest scores outside of `kept`, which is sorted."""
    best, at, bound = torch.empty(0, device=kept.device), kept[:0], -0.5
    for start, score, held in _tiles(layer, kept, scores, memory):
        flat = score.reshape(-1)
        flat[held] = -1
        more = (flat > bound).nonzero().squeeze(1)
        best, at = torch.cat([best, flat[more]]), torch.cat([at, more + start])
        if best.numel() > n > 0:
            best, first = best.topk(n, sorted=False)
            at, bound = at[first], float(best.min())
    return at[:n]


def fill_groups(
    layer: SparseWeight, kept: torch.Tensor, n_m: tuple[int, int], scores: Scores, memory: int
) -> torch.Tensor:
    """Positions of n elements in each group of m: those `kept`, and the largest scores."""
    n, m = n_m
    found = [kept[:0]]
    for start, score, held in _tiles(layer, kept, scores, memory):
        score.view(-1)[held] = torch.inf
        chosen = score.reshape(-1, m).topk(n, dim=1).indices.sort(dim=1).values
        base = torch.arange(start, start + score.numel(), m, device=score.device)
        found.append((chosen + base[:, None]).reshape(-1))
    return torch.cat(found)


def _tiles(
    layer: SparseWeight, kept: torch.Tensor, scores: Scores, memory: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yields the first position of each tile, its scores, and where in it elements `kept` are."""
    rows, cols = layer.weight.shape
    height, width = layer.blocksize or (1, 1)
    lines, per_line = rows // height, cols // width
    numbers = 2 * height * width * layer.values.element_size()  # the gradient, its magnitudes
    bytes_of_line = per_line * (numbers + 4 * 8)  # and the positions of candidates, copied
    tile = max(1, memory // max(bytes_of_line, 1))
    for start in range(0, lines, tile):
        stop = min(start + tile, lines)
        ends = torch.tensor([start, stop], device=kept.device) * per_line
        first, last = torch.searchsorted(kept, ends).tolist()
        score = scores(start, stop).nan_to_num_(0.0)
        yield start * per_line, score, kept[first:last] - start * per_line
