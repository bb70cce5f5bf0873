"""Reference of the search for what repeats in the values of diagonals."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.solves.krylov.diagonals import TILE_ROWS


def _fake_tiles(val: Tensor, rows: int, most: int) -> tuple[Tensor, Tensor]:
    tiles = val.new_empty(torch.library.get_ctx().new_dynamic_size(), TILE_ROWS)
    return tiles, val.new_empty(-(-rows // TILE_ROWS), val.shape[0], dtype=torch.int32)


@kernel(
    "tiles_of_diagonals(Tensor val, SymInt rows, SymInt most) -> (Tensor, Tensor)",
    fake=_fake_tiles,
)
def tiles_of_diagonals(val: Tensor, rows: int, most: int) -> tuple[Tensor, Tensor]:
    """The different tiles of values by diagonals, and which of them each part of a diagonal is.

    A tile has the values of one diagonal at 128 consecutive rows, and 0 behind the last row. Tiles
    are compared bit by bit.

    Args:
        val: Values by diagonals (diagonals, stride), float32 or float64.
        rows: The number of rows.
        most: The most different tiles to list.

    Returns:
        The tiles (tiles, 128), in the order in which they are met by diagonals, and the number of
        each part's tile (rows / 128, rounded up, diagonals), int32; ~number if all values of the
        tile are equal. If there are more tiles, none is returned, and numbers are 0.
    """
    diagonals, parts = val.shape[0], -(-rows // TILE_ROWS)
    padded = val.new_zeros(diagonals, parts * TILE_ROWS)
    padded[:, :rows] = val[:, :rows]
    every = padded.view(diagonals * parts, TILE_ROWS)
    words = every.view(torch.int32 if val.dtype == torch.float32 else torch.int64).tolist()
    numbers: list[int] = []
    found: dict[tuple[int, ...], int] = {}
    for tile in map(tuple, words):
        number = found.setdefault(tile, len(found))
        numbers.append(~number if len(set(tile)) == 1 else number)
    if len(found) > most:
        return val.new_empty(0, TILE_ROWS), val.new_zeros(parts, diagonals, dtype=torch.int32)
    first = [numbers.index(k) if k in numbers else numbers.index(~k) for k in range(len(found))]
    of = torch.tensor(numbers, dtype=torch.int32).view(diagonals, parts)
    return every[first], of.T.contiguous()
