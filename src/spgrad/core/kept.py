"""The keys of all that patterns keep, so that a second call need not work on indices again.

`Pattern.derive` keeps something as long as its pattern lives, `Pattern.derive_with` as long as both
patterns do, and `spgrad.lowering.rebuild.remembered` the last few of a kind.
"""

from __future__ import annotations

from typing import Any


class Key:
    """Names one kind of thing that patterns keep; `of` names one of the kind by its parameters."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def of(self, *parameters: Any) -> tuple[Any, ...]:
        """The key of the one with these parameters."""
        return (self, *parameters)


# As long as the pattern lives

ROWS = Key("rows")
"""The matrix by rows: a `View`."""

COLS = Key("cols")
"""The matrix by columns: a `View`."""

BLOCK_ROWS = Key("block_rows")
"""The matrix of blocks by rows: a `View` that counts in blocks."""

BLOCK_COLS = Key("block_cols")
"""The matrix of blocks by columns: a `View` that counts in blocks."""

ITEMS = Key("items")
"""The batch sizes where all items have equal nse, () otherwise."""

COALESCED = Key("coalesced")
"""The pattern without repeated elements, and the `Segments` of old elements that become one."""

LAYOUT = Key("layout")
"""Of a layout and a block size: the pattern in it, and a `Gather` of the values."""

TRANSPOSED = Key("transposed")
"""The pattern of the transpose, and a `Gather` of the values."""

CHECKSUM = Key("checksum")
"""A number that says which elements these are, by which processes compare patterns."""

INT64 = Key("int64")
"""The pattern with int64 indices."""

LINEAR = Key("linear")
"""The row-major position of each element among the sparse dimensions (nse,), int64."""

POSITION = Key("position")
"""Of some sparse dimensions: the row-major position of each element among these (nse,)."""

SEGMENTS = Key("segments")
"""Of reduced dimensions: the elements of each segment."""

MISSING = Key("missing")
"""Of reduced dimensions: how many elements of each segment are not specified."""

DIVISORS = Key("divisors")
"""Of a dtype: the elements of each row, at least 1, as a column (rows, 1) that divides sums."""

AXES = Key("axes")
"""Of the arguments of a reduction: its dimensions and segments, as `Axes`."""

LEFT = Key("left")
"""Of the axes of a reduction: the pattern of a sparse result."""

PLACES = Key("places")
"""Of reduced dimensions: the index of each element within its segment."""

DIAGONAL = Key("diagonal")
"""Whether each element is on the main diagonal."""

LOOPS = Key("loops")
"""Of a graph: the pattern of the self-loops that it lacks, and that of all."""

NONEMPTY_ROWS = Key("nonempty rows")
"""The rows that have elements."""

IGNORED = Key("ignored")
"""Of a triangle: which elements a solve with it ignores (elements,), or None if it uses all."""

TRIANGLE = Key("triangle")
"""Of a side: the CSR pattern of that triangle, where its values stand, and which are diagonal."""

SIDE = Key("side")
"""Which triangle, "lower" or "upper", has all elements; None if neither has."""

EXPANDED = Key("expanded")
"""Of batch sizes: the pattern repeated over them, and which item each element is from."""

PROJECTED = Key("projected")
"""Of some dimensions: the distinct indices in these, and which of them each element has."""

INNER = Key("inner")
"""Of sizes: the same elements in a pattern with dense dimensions of these sizes."""

DENSE = Key("dense")
"""Of a shape that differs in a dense dimension: the same elements in a pattern of that shape."""

MIRRORED = Key("mirrored")
"""Where the values of (i, j) and of (j, i) are, for i < j; None if some (j, i) is no element."""

DIAGONAL_PLACES = Key("diagonal places")
"""The rows that have a diagonal element, and where its value is."""

ANALYSIS = Key("analysis")
"""Of an ordering and a mode of pivoting: the `Analysis` that factors of the pattern share."""

IDENTITY = Key("identity")
"""The pattern of the identity with as many rows as the matrix."""

# As long as both patterns live

EITHER = Key("either")
"""The union of two patterns, and a `Gather` of the values of each."""

BOTH = Key("both")
"""The intersection of two patterns, and a `Gather` of the values of each."""

FIRST = Key("first")
"""The first of two patterns, and a `Gather` of the values of the second."""

PRODUCT = Key("product")
"""The pattern of the product of two matrices."""

KRON = Key("kron")
"""The pattern of the Kronecker product of two tensors."""

ASSERTED = Key("asserted")
"""Set where a traced graph already asserts that the two patterns are equal."""

# The last few of a kind

REBUILT = Key("rebuilt")
"""Of an operation and its arguments: the pattern it makes, and a `Gather` of the values."""

PART = Key("part")
"""Of a subscript of ints and slices: the pattern of what it takes, and a `Gather`."""
