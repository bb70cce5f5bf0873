"""Shapes of tiles, and launches: what happens on the host before a Triton kernel runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from spgrad.kernels.declare import NATIVE, REFERENCES
from spgrad.kernels.triton.common.lines import LONG

SERVED = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
"""Dtypes that the kernels take; sums of the last two are formed in float32."""
_LONGEST = WeakIdKeyDictionary()
"""Pointers that are in use -> most entries of a line, or None if they were used once."""


class Tile(NamedTuple):
    """Lines, entries of each line, and columns that a program reads at a time; powers of two."""

    lines: int
    entries: int
    columns: int


def power_of_two(n: int) -> int:
    """The smallest power of two that is n or more, at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def tile(nse: int, m: int, columns: int, elements: int, most: int = 128) -> Tile:
    """The tile for lines of nse / m entries in the mean, and rows of this many columns.

    It has so many elements, or more if a row has. It follows from shapes alone, so no number is
    read from the device.
    """
    width = power_of_two(min(max(columns, 1), most))
    room = max(elements // width, 1)
    entries = min(power_of_two(nse // max(m, 1)), 32, room)
    return Tile(min(max(room // entries, 1), 128), entries, width)


def blocks(count: int, size: int) -> int:
    """How many blocks of this size are needed for so many things."""
    return -(-count // size)


def chunks(ptr: Tensor, nse: int, size: int | None = None) -> int:
    """How many chunks, of LONG entries or of `size`, may have parts of long lines.

    0 where no line can be long, or is.
    """
    size = LONG.value if size is None else size
    if nse <= size:
        return 0
    longest = _longest_line(ptr)
    return 0 if longest is not None and longest <= size else blocks(nse, size)


def _longest_line(ptr: Tensor) -> int | None:
    """Most entries of a line, or None while the host does not know it.

    The host reads the number from the device when these pointers are used the second time, and
    keeps it as long as they live. So a pattern that is used once makes the host wait for nothing,
    and neither does one in a CUDA graph.
    """
    if ptr.is_meta:
        return None
    if ptr not in _LONGEST:
        _LONGEST[ptr] = None
        return None
    known = _LONGEST[ptr]
    if known is None and not (ptr.is_cuda and torch.cuda.is_current_stream_capturing()):
        known = _LONGEST[ptr] = int(ptr.diff().max())
    return known


def part_programs(ptr: Tensor, nse: int, lines: int) -> int:
    """How many programs read parts of long lines, if each reads so many."""
    return blocks(2 * chunks(ptr, nse), lines)


class Launch(NamedTuple):
    """Programs, how many of them read parts, and the lines and entries of a tile."""

    programs: int
    parts: int
    lines: int
    entries: int


def launches(ptr: Tensor, nse: int, columns: int, elements: int, most: int) -> list[Launch]:
    """One for short lines, and one for parts of long ones where there may be some."""
    m = ptr.shape[0] - 1
    lines, entries, _ = tile(nse, m, columns, elements, most)
    parts = part_programs(ptr, nse, lines)
    made = Launch(blocks(m, lines), 0, lines, entries), Launch(parts, parts, lines, entries)
    return [launch for launch in made if launch.programs]


def part_rows(made: list[Launch]) -> int:
    """Rows that are needed for the results of parts."""
    return sum(launch.parts * launch.lines for launch in made)


def elsewhere(name: str, *args: Any) -> Any:
    """The result of the backend below this one, for operands that no Triton kernel takes."""
    return NATIVE.get(name, REFERENCES[name])(*args)


def served(*operands: Tensor) -> bool:
    """Whether the kernels take operands of this dtype, and there is something to multiply."""
    return operands[0].dtype in SERVED and all(t.numel() > 0 for t in operands)
