"""Scales of systems whose numbers are so large, or so small, that their squares over- or underflow.

An iteration computes squared norms, also of A^H A x. So it runs on A and b divided by powers of
two, which causes no rounding, and returns the solution of the original system. The iterations for
eigenvalues and singular values do the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgrad.torch_protocol.func_transforms import transforming

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


def unit_in_graph(vals: torch.Tensor) -> torch.Tensor | None:
    """The power of two to divide these values by; None if they need none.

    None under torch.func too, where no branch may depend on numbers.
    """
    if vals.numel() == 0 or transforming():
        return None
    return unit_of(vals.detach().abs().amax())


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


class PencilUnits(NamedTuple):
    """What A and M of A x = e M x were divided by, or None; with vectors that M makes orthonormal.

    The division is part of the graph.
    """

    A: torch.Tensor | None
    M: torch.Tensor | None

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor | None) -> PencilUnits:
        """The units of these values."""
        return cls(unit_in_graph(a), None if b is None else unit_in_graph(b))

    @property
    def of_values(self) -> float:
        """An eigenvalue of the pencil over that of the divided one."""
        of_A, of_M = (1.0 if unit is None else float(unit) for unit in self)
        return of_A / of_M

    def inside(
        self, a: torch.Tensor, b: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The values of the divided pencil."""
        a = a if self.A is None else a / self.A
        return a, b if b is None or self.M is None else b / self.M

    def outside(self, E: torch.Tensor, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Eigenvalues and vectors of the pencil as it was."""
        if self.A is not None or self.M is not None:
            E = E * self.of_values
        return E, X if self.M is None else X / self.M.sqrt()


AS_GIVEN = Units()
"""Of a system that nothing was divided by."""
