"""Bytes that a kernel has to move, by the sizes of its operands."""

from __future__ import annotations

from typing import NamedTuple

INDEX = 4
"""Bytes of an index, of a pointer, and of a number in float32 that is kept for every row."""


class Sizes(NamedTuple):
    """Of a matrix, its values and the dense operands beside it."""

    m: int  # rows
    n: int  # columns
    entries: int
    columns: int  # of the dense operands, those of all heads together
    size: int  # bytes of a value
    heads: int = 1
    block: int = 1  # side of a block; the entries are then those of the blocks


class Moved(NamedTuple):
    """Bytes that move once, bytes of the rows of all entries, and of the arrays of these rows."""

    once: int
    gathered: int = 0
    source: int = 0

    @property
    def far(self) -> int:
        """Bytes if every row that an entry asks for comes from memory."""
        return self.once + self.gathered

    @property
    def near(self) -> int:
        """Bytes if a row comes from memory once, and from a cache afterwards."""
        return self.once + min(self.source, self.gathered)

    def __add__(self, other: tuple[int, ...]) -> Moved:  # type: ignore[override]
        return Moved(*(a + b for a, b in zip(self, other, strict=True)))


def _rows(s: Sizes, count: int) -> int:
    """Of an array of so many rows."""
    return s.size * s.columns * count


def spmm(s: Sizes) -> Moved:
    """Reads the view, values and rows of x; writes y."""
    once = s.entries * (INDEX + s.size * s.heads) + INDEX * (s.m + 1) + _rows(s, s.m)
    return Moved(once, _rows(s, s.entries), _rows(s, s.n))


def sddmm(s: Sizes) -> Moved:
    """Reads the view, g and rows of x; writes a number for each entry and head."""
    return spmm(s)  # g in place of y, and results in place of values


def spmm_sddmm(s: Sizes) -> Moved:
    """Both gradients of A x in one pass by columns: gathers rows of g.

    Reads x, and for each entry its index, its place and its value; writes a gradient of x, and of
    each value.
    """
    of_entry = 2 * INDEX + 2 * s.size
    once = s.entries * of_entry + INDEX * (s.n + 1) + 2 * _rows(s, s.n)
    return Moved(once, _rows(s, s.entries), _rows(s, s.m))


def step(s: Sizes) -> Moved:
    """A x, and both gradients."""
    return spmm(s) + spmm_sddmm(s)


def softmax(s: Sizes) -> Moved:
    """Reads and writes the values."""
    return Moved(2 * s.size * s.entries + INDEX * (s.m + 1))


def softmax_backward(s: Sizes) -> Moved:
    """Reads the result and its cotangent, writes the gradient."""
    return Moved(3 * s.size * s.entries + INDEX * (s.m + 1))


def softmax_step(s: Sizes) -> Moved:
    """The softmax and its gradient."""
    return softmax(s) + softmax_backward(s)


def attention(s: Sizes) -> Moved:
    """Reads the pattern, q, and rows of k and v; writes the result, and a number for each row."""
    once = INDEX * (s.entries + s.m + 1 + s.m) + 2 * _rows(s, s.m)
    return Moved(once, 2 * _rows(s, s.entries), 2 * _rows(s, s.n))


def attention_backward(s: Sizes) -> Moved:
    """By rows with rows of k and v, and by columns with rows of q and g and their two numbers.

    Reads both views, q and g, k and v, and two numbers for each row; writes dq, dk and dv.
    """
    views = INDEX * (2 * s.entries + s.m + 1 + s.n + 1)
    once = views + 2 * INDEX * s.m + 3 * _rows(s, s.m) + 4 * _rows(s, s.n)
    gathered = 4 * _rows(s, s.entries) + 2 * INDEX * s.entries
    return Moved(once, gathered, 2 * _rows(s, s.m) + 2 * _rows(s, s.n) + 2 * INDEX * s.m)


def attention_step(s: Sizes) -> Moved:
    """Attention and its gradients."""
    return attention(s) + attention_backward(s)


def _of_heads(s: Sizes, count: int) -> int:
    """Of an array of so many rows that has a number for each head."""
    return s.size * s.heads * count


def _float32_of_heads(s: Sizes) -> int:
    """Of an array of the rows that has a number in float32 for each head."""
    return INDEX * s.heads * s.m


def additive_attention(s: Sizes) -> Moved:
    """Reads the pattern, left, and rows of right and x; writes the result, two numbers a head."""
    once = INDEX * (s.entries + s.m + 1) + _of_heads(s, s.m) + 2 * _float32_of_heads(s)
    gathered, source = (_rows(s, count) + _of_heads(s, count) for count in (s.entries, s.n))
    return Moved(once + _rows(s, s.m), gathered, source)


def additive_attention_split(s: Sizes) -> Moved:
    """The same, and what the gradient of left needs: sums like the result, a number a head."""
    return additive_attention(s) + Moved(_rows(s, s.m) + _float32_of_heads(s))


def additive_attention_backward(s: Sizes) -> Moved:
    """By rows without entries, then by columns with rows of g and of the four numbers a head.

    The first reads g, the results, left and three numbers a head; it writes four, and the gradient
    of left. The second reads the view, right and x; it writes their gradients.
    """
    by_rows = 3 * _rows(s, s.m) + 2 * _of_heads(s, s.m) + 7 * _float32_of_heads(s)
    by_columns = INDEX * (s.entries + s.n + 1) + 2 * (_rows(s, s.n) + _of_heads(s, s.n))
    gathered = _rows(s, s.entries) + 4 * INDEX * s.heads * s.entries
    return Moved(by_rows + by_columns, gathered, _rows(s, s.m) + 4 * _float32_of_heads(s))


def additive_attention_step(s: Sizes) -> Moved:
    """Attention with additive scores, and its gradients."""
    return additive_attention_split(s) + additive_attention_backward(s)


def block_spmm(s: Sizes) -> Moved:
    """Reads blocks, and for each of them as many rows of x as it has columns; writes y."""
    stored = s.size * s.entries + INDEX * (s.entries // s.block**2 + s.m // s.block + 1)
    return Moved(stored + _rows(s, s.m), _rows(s, s.entries // s.block), _rows(s, s.n))


def block_sddmm(s: Sizes) -> Moved:
    """Reads g, and rows of x for each block; writes blocks."""
    return block_spmm(s)


def bsr_step(s: Sizes) -> Moved:
    """A x with A in blocks, and both gradients."""
    return block_spmm(s) + block_sddmm(s) + block_spmm(s._replace(m=s.n, n=s.m))
