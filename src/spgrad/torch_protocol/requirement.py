"""Refuses a torch that is too old, before the first import that would fail in it."""

from __future__ import annotations

import re

import torch

from spgrad.errors import MissingPackageError

OLDEST = (2, 11)
"""The first torch whose stable C interface the compiled kernels can use."""


def require_torch(version: str) -> None:
    """Refuses a version of torch before `OLDEST`; accepts a version without a number."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingPackageError(
            f"torch {version} is installed; torch {oldest} or newer is needed. Upgrade it with: "
            f"pip install 'torch>={oldest}'"
        )


require_torch(torch.__version__)
