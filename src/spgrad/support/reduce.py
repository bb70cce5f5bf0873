"""Rows of the reductions, and of softmax."""

from __future__ import annotations

from spgrad.support.table import Op

ROWS: tuple[Op, ...] = ()
