"""The keys under which patterns keep results, so that a second call need not compute them again.

`Pattern.derive` keeps a result as long as its pattern lives, `Pattern.derive_with` as long as both
patterns do; `spgrad.lowering.rebuild.remembered` keeps the last few results of a kind.
"""

from __future__ import annotations

from typing import Any

from spgrad.torch_protocol.compile import by_symbols


class Key:
    """Names one kind of result; `of` names one result of this kind by its parameters."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def of(self, *parameters: Any) -> tuple[Any, ...]:
        """The key of the result of this kind with these parameters.

        A size that a trace has a symbol for has no hash; its symbol has.
        """
        key = (self, *parameters)
        try:
            hash(key)
        except TypeError:
            return by_symbols(key)
        return key


# As long as the pattern lives

ROWS = Key("rows")
"""The matrix by rows: a `View`."""

POINTERS = Key("pointers")
"""The row pointers of a COO matrix in order, where its view by rows has not been asked for."""

COLS = Key("cols")
"""The matrix by columns: a `View`."""

BLOCK_ROWS = Key("block_rows")
"""The matrix of blocks by rows: a `View` that counts in blocks."""

BLOCK_COLS = Key("block_cols")
"""The matrix of blocks by columns: a `View` that counts in blocks."""

ASCENDING = Key("ascending")
"""How often each index tensor had changed in place when its lines were known to ascend."""

GIVEN = Key("given")
"""The keys of the views that compiled code takes beside the indices. Others, which it derives, are
no part of its results: torch counts these in a run that has not derived as many."""

FLATTENED = Key("flattened")
"""The names of the tensors that compiled code takes, and what else its guards compare."""

ITEMS = Key("items")
"""The batch sizes where all items have equal nse, () otherwise."""

COALESCED = Key("coalesced")
"""The pattern without repeated elements, and the `Segments` of old elements that become one."""

REPEATS = Key("repeats")
"""How often the index of each element is there."""

LAYOUT = Key("layout")
"""For a layout and a block size: the pattern in it, and a `Gather` of the values."""

TRANSPOSED = Key("transposed")
"""The pattern of the transpose, and a `Gather` of the values."""

CHECKSUM = Key("checksum")
"""A checksum of the indices, by which processes compare their patterns."""

INT64 = Key("int64")
"""The pattern with int64 indices."""

LINEAR = Key("linear")
"""The row-major position of each element among the sparse dimensions (nse,), int64."""

POSITION = Key("position")
"""For some sparse dimensions: the row-major position of each element among these (nse,)."""

SEGMENTS = Key("segments")
"""For reduced dimensions: the elements of each segment."""

MISSING = Key("missing")
"""For reduced dimensions: how many elements of each segment are not specified."""

DIVISORS = Key("divisors")
"""For a dtype: the number of elements of each row, at least 1, as divisors of sums (rows, 1)."""

AXES = Key("axes")
"""For the arguments of a reduction: its dimensions and segments, as `Axes`."""

LEFT = Key("left")
"""For the axes of a reduction: the pattern of a sparse result."""

PLACES = Key("places")
"""For reduced dimensions: the index of each element within its segment."""

OFFSETS = Key("offsets")
"""The diagonals that have elements, by column less row; None if there are many."""

DIAGONAL = Key("diagonal")
"""Whether each element is on the main diagonal."""

LOOPS = Key("loops")
"""For "all" or "looped": the pattern of all self-loops, or of a graph with them; for "places": 1
for each node without one."""

NONEMPTY_ROWS = Key("nonempty rows")
"""The rows that have elements."""

IGNORED = Key("ignored")
"""For a triangle: which elements a solve with it ignores (elements,), or None if it uses all."""

TRIANGLE = Key("triangle")
"""For a side: the CSR pattern of that triangle, where its values stand, and which are diagonal."""

SIDE = Key("side")
"""Which triangle, "lower" or "upper", has all elements; None if neither has."""

EXPANDED = Key("expanded")
"""For batch sizes: the pattern repeated over them, and which item each element is from."""

PROJECTED = Key("projected")
"""For some dimensions: the distinct indices in these, and which of them each element has."""

INNER = Key("inner")
"""For sizes: the same elements in a pattern with dense dimensions of these sizes."""

DENSE = Key("dense")
"""For a shape that differs in a dense dimension: the same elements in a pattern of that shape."""

MIRRORED = Key("mirrored")
"""Where the values of (i, j) and of (j, i) are, for i < j; None if some (j, i) is no element."""

DIAGONAL_PLACES = Key("diagonal places")
"""The rows that have a diagonal element, and where its value is."""

ANALYSIS = Key("analysis")
"""For an ordering and a threshold of pivots: the `Analysis` that factors of the pattern share."""

GROUPS = Key("groups")
"""For a number of columns: the elements of each group of so many, or None where they differ."""

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
"""The pattern of the product of two matrices, and its `Pairs` where these are kept."""

KRON = Key("kron")
"""The pattern of the Kronecker product of two tensors."""

ASSERTED = Key("asserted")
"""Set where a traced graph already asserts that the two patterns are equal."""

# The last few results of a kind

REBUILT = Key("rebuilt")
"""For an operation and its arguments: the pattern of the result, and a `Gather` of the values."""

PART = Key("part")
"""For a subscript of ints and slices: the pattern of the result, and a `Gather` of the values."""
