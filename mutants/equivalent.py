"""Changes that no test can notice, each with the reason.

A change is known by its file, its function and the text of the statement before and after, so that
an entry survives when lines move, and goes stale (which a test says) when the statement changes.
"""

from __future__ import annotations

from typing import NamedTuple

from mutants.changes import Change


class Equivalent(NamedTuple):
    """A change of `function` in `file`, and why the results are the same."""

    file: str
    function: str
    was: str
    becomes: str
    why: str


def is_equivalent(change: Change) -> bool:
    """Whether the list holds this change."""
    key = (change.file, change.function, change.was, change.becomes)
    return key in _KEYS


_WAY = "Chooses the quicker of two ways to one result."

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "src/spgrad/lowering/views.py",
        "_from_coordinates",
        "if pattern.ordered:",
        "if False:",
        "Coordinates in order are sorted again, which leaves them as they are.",
    ),
    Equivalent(
        "src/spgrad/ops/shapes/join.py",
        "_ranges",
        "parts = [lines_of(p, dtype) if p.layout == layout else None for p in patterns]",
        "parts = [lines_of(p, dtype) if p.layout != layout else None for p in patterns]",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/ops/shapes/repeat.py",
        "_repeated",
        "checks.require_addressable(tuple(s * n for s, n in zip(shape, times, strict=True)))",
        "checks.require_addressable(tuple(s * n for s, n in zip(shape, times, strict=False)))",
        "The lines above make both of one length.",
    ),
    Equivalent(
        "src/spgrad/ops/shapes/kron.py",
        "_kron_pattern",
        "if of_a.entry is not None or of_b.entry is not None:",
        "if of_a.entry is not None or of_b.entry is None:",
        "Without entries of their own, the pairs are numbered in their order, as they are stored.",
    ),
    Equivalent(
        "src/spgrad/ops/shapes/kron.py",
        "_kron_pattern",
        "found = Placed(indices, entry, max(len(shape) - 1, 0))",
        "found = Placed(indices, entry, max(len(shape) - 0, 0))",
        "Also sorts by the last dimension, in which the pairs of a row are in order.",
    ),
    Equivalent(
        "src/spgrad/ops/creation/random.py",
        "_below_diagonal",
        "row -= (row * (row - 1) // 2 > t).long() # corrects the rounding of the root",
        "row -= (row * (row - 1) // 2 <= t).long() # corrects the rounding of the root",
        "The next line adds what this one takes too much.",
    ),
    Equivalent(
        "src/spgrad/testing/__init__.py",
        "_text",
        'return getattr(value, "__name__", None) or str(value)',
        'return getattr(value, "__name__", None) and str(value)',
        "The names of tests say less; no result depends on them.",
    ),
)

_KEYS = frozenset(entry[:4] for entry in EQUIVALENT)
