"""Checks the numbers of a text before SciPy parses them.

SciPy's reader of Matrix Market reads 1 from ``1-2``, 0 from ``0x10`` and the column 1 from ``1.5``,
skips the rest of a line, and reads beyond its memory after a NUL.
"""

from __future__ import annotations

from typing import Any

_SPACE, _END, _DIGIT, _SIGN, _POINT, _EXPONENT, _LETTER, _OTHER = range(8)
_BYTES = (b" \t\r", b"\n", b"0123456789", b"+-", b".", b"eE", b"nanityfNANITYF")
_BLANK = (_SPACE, _END)
_FOLLOWS = {
    _SPACE: (*_BLANK, _DIGIT, _SIGN, _POINT, _LETTER),
    _END: (*_BLANK, _DIGIT, _SIGN, _POINT, _LETTER),
    _DIGIT: (*_BLANK, _DIGIT, _POINT, _EXPONENT),
    _SIGN: (_DIGIT, _POINT, _LETTER),
    _POINT: (*_BLANK, _DIGIT, _EXPONENT),
    _EXPONENT: (_DIGIT, _SIGN),
    _LETTER: (*_BLANK, _LETTER),
}


class Numbers:
    """Checks that the numbers of a text are well formed, and whole where they must be.

    Args:
        width: Numbers in a line.
        whole: The first `whole` numbers of a line must be whole.
        line: The number of the first line, for messages.
    """

    def __init__(self, width: int, whole: int, line: int) -> None:
        import numpy as np

        self.count = 0  # numbers that were seen
        self._width, self._whole, self._line = width, whole, line
        self._last = _END  # the kind of the last byte
        self._marked = {_POINT: -1, _EXPONENT: -1}  # the last number that has one
        self._kinds = np.full(256, _OTHER, np.uint8)
        for kind, some in enumerate(_BYTES):
            self._kinds[list(some)] = kind
        self._bad = np.ones(64, bool)
        for kind, following in _FOLLOWS.items():
            self._bad[[8 * kind + k for k in following]] = False

    def check(self, piece: bytes) -> None:
        """Checks the next bytes of the text; ValueError names the line of a wrong byte."""
        import numpy as np

        kinds = np.empty(len(piece) + 1, np.uint8)
        kinds[0], kinds[1:] = self._last, self._kinds[np.frombuffer(piece, np.uint8)]
        before, here = kinds[:-1], kinds[1:]
        wrong = self._bad[before * np.uint8(8) + here]
        self._require(wrong, piece, 0)
        starts = (before <= _END) & (here > _END)
        number = np.cumsum(starts) + (self.count - 1)  # which number each byte belongs to
        if self._whole:
            marks = np.flatnonzero(here > (_DIGIT if self._whole < self._width else _SIGN))
            self._require(number[marks] % self._width < self._whole, piece, marks)
        for mark, last in self._marked.items():
            marks = np.flatnonzero(here == mark)
            if marks.size:
                numbers = number[marks]
                self._require(np.diff(numbers, prepend=last) == 0, piece, marks)
                self._marked[mark] = int(numbers[-1])
        self._last = int(kinds[-1])
        self.count += int(np.count_nonzero(starts))
        self._line += piece.count(b"\n")

    def _require(self, wrong: Any, piece: bytes, at: Any) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            first = first if isinstance(at, int) else int(at[first])
            line = self._line + piece.count(b"\n", 0, first)
            raise ValueError(f"it has {piece[first : first + 1]!r} in line {line}, out of place")
