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
"""Pointers that are in use -> most entries of a line, or the `_Copy` that brings this number."""


class _Copy(NamedTuple):
    """A number on the host: there once the event is done, or now if there is no event."""

    number: Tensor
    event: torch.cuda.Event | None


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


def warps(count: int) -> dict[str, int | bool]:
    """The options of a launch with so many warps a program.

    Products are added without a rounding between; Triton from 3.10 on has to be asked for it.
    """
    return {"num_warps": count, "enable_fp_fusion": True}


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

    In the first use of these pointers the device begins to copy the number to the host, which does
    not wait for it: later uses look whether it is there. It is kept as long as the pointers live.
    While a CUDA graph is captured nothing is copied, and no event is asked.
    """
    if ptr.is_meta:
        return None
    found = _LONGEST.get(ptr)
    if isinstance(found, int):
        return found
    if _captured(ptr):
        return None
    if found is None:
        _LONGEST[ptr] = _copy_longest(ptr)
        return None
    if found.event is not None and not found.event.query():
        return None
    known = _LONGEST[ptr] = int(found.number)
    return known


def _captured(ptr: Tensor) -> bool:
    """Whether a CUDA graph is captured, in which nothing may be asked of the device."""
    return ptr.is_cuda and torch.cuda.is_current_stream_capturing()


def _copy_longest(ptr: Tensor) -> _Copy:
    """Lets the device copy the most entries of a line into memory of the host."""
    number = torch.empty((), dtype=ptr.dtype, device="cpu", pin_memory=ptr.is_cuda)
    number.copy_(ptr.diff().max(), non_blocking=True)
    return _Copy(number, _record_event(ptr))


def _record_event(ptr: Tensor) -> torch.cuda.Event | None:
    """An event that is done when the device has done what was asked of it so far."""
    if not ptr.is_cuda:
        return None
    event = torch.cuda.Event()
    event.record()
    return event


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
