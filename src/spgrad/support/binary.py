"""Rows of the functions of two elements."""

from __future__ import annotations

from spgrad.support.table import Op

ROWS: tuple[Op, ...] = ()
