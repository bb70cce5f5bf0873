"""The heaps of an HDF5 file, where it keeps its texts: whether HDF5's own reader ends in them.

The layout is that of the HDF5 File Format Specification, version 3, section III.E, "Global Heap".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

_START = b"GCOL\x01\0\0\0"  # a signature, version 1, and three reserved bytes
_OBJECT = 16  # bytes in front of an object: its index (2), a count (2), 4 reserved, its length


def require_sound(path: Path, file: Any) -> None:
    """Raises ValueError if an object of a heap is too short to lead to the next one.

    HDF5 2.0 reads such an object again and again. The whole file is searched for heaps, at the
    speed of memory; nothing is copied.

    Args:
        path: The file.
        file: The same, opened by h5py.
    """
    import numpy as np

    words = np.memmap(path, "<u8", "r", shape=(path.stat().st_size // 8,))
    width = file.id.get_create_plist().get_sizes()[1]  # of a number that says a length
    for start in _starts(words):
        _require_end(words, start, width)


def _starts(words: Any) -> Iterator[int]:
    """The byte at which each heap starts."""
    sought, step = int.from_bytes(_START, "little"), 1 << 16  # half a megabyte at a time
    for first in range(0, words.size, step):
        for at in (words[first : first + step] == sought).nonzero()[0].tolist():
            yield 8 * (first + at)


def _require_end(words: Any, start: int, width: int) -> None:
    """Follows the objects of a heap to its end, or to that of the file."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(words[at // 8 : -(-(at + size) // 8)].tobytes()[:size], "little")

    at = start + _aligned(8 + width)
    end = min(start + number(start + 8, width), 8 * words.size)
    while at + _OBJECT <= end:
        index, length = number(at, 2), number(at + 8, width)
        taken = _OBJECT + _aligned(length) if index else length  # index 0: what is free, and this
        if taken < _OBJECT or taken % 8:
            raise ValueError(f"its heap at byte {start} is damaged: an object of {length} bytes")
        at += taken


def _aligned(size: int) -> int:
    return -(-size // 8) * 8
