"""Scales of systems whose numbers are so large, or so small, that their squares are lost.

An iteration forms squared norms, also of A^H A x. It runs on A and b divided by powers of two,
which rounds nothing, and gives the solution of the system as it was.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_EXPONENTS = {torch.float32: (30, -126, 127), torch.float64: (240, -1022, 1023)}
"""The exponents that are safe as they are, up to a sign, and the least and the largest of all."""


def unit_of(sizes: torch.Tensor) -> torch.Tensor | None:
    """Powers of two near these sizes, to divide by; None if all are safe to square as they are."""
    exponent = torch.frexp(sizes).exponent
    most, least, largest = _EXPONENTS[sizes.dtype]
    exponent = torch.where((sizes > 0) & sizes.isfinite(), exponent, 0)
    if bool((exponent.abs() <= most).all()):
        return None
    return torch.ldexp(torch.ones_like(sizes), (exponent - 1).clamp(least, largest))


class Units(NamedTuple):
    """What the matrix (a number) and the right-hand sides (items, n) were divided by, or None."""

    A: torch.Tensor | None = None
    b: torch.Tensor | None = None

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """x (items, m, n) for the system that was divided."""
        x = x if self.b is None else x / self.b[:, None]
        return x if self.A is None else x * self.A

    def outside(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `inside`."""
        x = x if self.b is None else x * self.b[:, None]
        return x if self.A is None else x / self.A

    def residual(self, size: torch.Tensor, least: bool) -> torch.Tensor:
        """A size (items, n) of b - A x, or with `least` of A^H (b - A x), of the divided system."""
        size = size if self.b is None else size / self.b
        return size / self.A if least and self.A is not None else size


AS_GIVEN = Units()
"""Of a system that nothing was divided by."""
