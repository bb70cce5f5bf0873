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


EQUIVALENT: tuple[Equivalent, ...] = ()

_KEYS = frozenset(entry[:4] for entry in EQUIVALENT)
