"""The part of a derivative of eigenvectors that divides by differences of found eigenvalues."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from spgrad.errors import StateError
from spgrad.torch_protocol.func_transforms import transforming

SAME = 100
"""Eigenvalues that differ by at most this many rounding errors count as equal."""


class Told(NamedTuple):
    """What an error tells the caller of the eigenvalues that a derivative uses.

    Attributes:
        function: The function that was called.
        vector: What it calls an eigenvector.
        value: What it calls an eigenvalue.
        loss: A loss that is the same for every basis of equal eigenvalues.
        unit: The caller's values over those here.
        roots: Whether the caller's values are the square roots, in descending order.
    """

    function: str
    vector: str = "eigenvector"
    value: str = "eigenvalue"
    loss: str = "X @ X.mH"
    unit: float = 1.0
    roots: bool = False

    def number(self, e: float) -> float:
        """The caller's number for an eigenvalue."""
        return (math.sqrt(max(e, 0)) if self.roots else e) * self.unit

    def place(self, p: int, k: int) -> int:
        """Where the caller has eigenvalue p of k."""
        return k - 1 - p if self.roots else p


def quotients(S: torch.Tensor, E: torch.Tensor, scale: torch.Tensor, told: Told) -> torch.Tensor:
    """1 / (e_p - e_q) in row q and column p, and 0 for equal eigenvalues.

    `scale` is the magnitude to which the rounding errors of eigenvalues are relative. Equal
    eigenvalues have many bases of eigenvectors, and any of them may have been found. A loss
    has a derivative if it is the same for all bases, and then S is hermitian there.
    """
    apart = E - E[:, None]
    with torch.no_grad():
        bound = SAME * torch.finfo(E.dtype).eps * torch.maximum(scale, E.abs().max())
        near = apart.abs() <= bound
        if not transforming():  # under torch.func.vmap, no branch may depend on numbers
            _require_same_for_every_basis(S, E, near, bound, told)
    return torch.where(near, 0, 1 / torch.where(near, 1, apart))


def _require_same_for_every_basis(
    S: torch.Tensor, E: torch.Tensor, near: torch.Tensor, bound: torch.Tensor, told: Told
) -> None:
    turned = (S - S.mH).abs()
    depends = near & (turned > torch.finfo(E.dtype).eps ** 0.5 * S.abs().max())
    depends.fill_diagonal_(False)
    if not bool(depends.any()):
        return
    pair = sorted((told.place(int(i), len(E)), float(E[i])) for i in torch.nonzero(depends)[0])
    (first, one), (second, other) = ((place, told.number(e)) for place, e in pair)
    least = max(e for _, e in pair)
    gap = told.number(least + float(bound)) - told.number(least)
    raise StateError(
        f"{told.value}s {first} and {second}, {one:.8g} and {other:.8g}, differ by "
        f"{abs(one - other):.1e}, so that their vectors are one basis of many, and the loss "
        f"depends on which; a gap of more than {gap:.1e}, or a loss that is the same for every "
        f"basis, such as one of {told.loss}, is accepted. Differentiate the {told.value}s alone, "
        "or such a loss.",
        function=told.function,
    )
