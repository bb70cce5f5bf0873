"""Shapes of tiles, and launches: what happens on the host before a Triton kernel runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgrad.kernels.declare import NATIVE, REFERENCES
from spgrad.kernels.triton.common.lines import LONG

SERVED = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
"""Dtypes that the kernels take; sums of the last two are formed in float32."""
ELEMENTS = 2048
"""Elements of a tile, of 16 to a thread where 128 threads work on it."""


class Tile(NamedTuple):
    """Lines, entries of each line, and columns that a program reads at a time; powers of two."""

    lines: int
    entries: int
    columns: int


def power_of_two(n: int) -> int:
    """The smallest power of two that is n or more, at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def tile(nse: int, m: int, columns: int, most: int = 128) -> Tile:
    """The tile for lines of nse / m entries in the mean, and rows of this many columns.

    It follows from shapes alone, so no number is read from the device.
    """
    width = power_of_two(min(max(columns, 1), most))
    entries = power_of_two(min(max(nse // max(m, 1), 1), 32, max(ELEMENTS // width, 1)))
    lines = min(max(ELEMENTS // (width * entries), 1), 64)
    return Tile(lines, entries, width)


def part_tile(columns: int, most: int = 128, entries: int = 128) -> Tile:
    """The tile for the two parts of long lines in a chunk."""
    width = power_of_two(min(max(columns, 1), most))
    return Tile(2, max(min(ELEMENTS // (2 * width), entries), 1), width)


def blocks(count: int, size: int) -> int:
    """How many blocks of this size are needed for so many things."""
    return -(-count // size)


def chunks(nse: int, size: int | None = None) -> int:
    """How many chunks, of LONG entries or of `size`, may have parts of long lines.

    0 where no line can be long.
    """
    size = LONG.value if size is None else size
    return blocks(nse, size) if nse > size else 0


def elsewhere(name: str, *args: Any) -> Any:
    """The result of the backend below this one, for operands that no Triton kernel takes."""
    return NATIVE.get(name, REFERENCES[name])(*args)


def served(*operands: Tensor) -> bool:
    """Whether the kernels take operands of this dtype, and there is something to multiply."""
    return operands[0].dtype in SERVED and all(t.numel() > 0 for t in operands)
