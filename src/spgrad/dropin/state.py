"""Whether drop-in mode is on in this thread."""

from __future__ import annotations

import threading


class _State(threading.local):
    """For this thread, the `fallback` of each active block, the innermost last."""

    def __init__(self) -> None:
        self.fallbacks: list[str] = []


state = _State()
