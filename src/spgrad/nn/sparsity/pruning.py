"""Prunes by magnitude, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spgrad.core import checks
from spgrad.errors import ArgumentValueError
from spgrad.nn.sparsity.moving import magnitudes, move_to_positions, positions_of
from spgrad.nn.sparsity.schedule import Schedule
from spgrad.nn.weight import SparseWeight
from spgrad.public import public_as


class GradualMagnitude(Schedule):
    """Removes the smallest elements of each layer, fewer at a time, until a density is reached.

    The density is density + (first - density) (1 - s)^3, where `first` is the density before and s
    goes from 0 at step `begin` to 1 at step `end`. Blocks are removed as a whole, by their norm.

    Args:
        module: Holds SparseLinear layers; begin with ``spgrad.nn.convert(module, 1.0)``.
        optimizer: Its states move with the elements (`spgrad.nn.sparsity.move`).
        density: Density of each layer in the end.
        end: Step of the last change.
        begin: Step of the first change.
        every: Steps from one change to the next; there is always one at `end`.

    Cost:
        A change takes O(nse). The number of values falls, so a wrapper that keeps parameters in
        memory of its own, as DistributedDataParallel does, has to be made again after a change.

    Raises:
        TypeError: `module` has no SparseLinear.
        ValueError: A number is out of range, or a layer has n of m elements in a row, a structure
            that removing single elements would break.

    Source:
        Zhu and Gupta, To prune, or not to prune, 2017.

    Example:
        >>> layer = spgrad.nn.SparseLinear(8, 8, density=1.0)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        >>> prune = spgrad.nn.sparsity.GradualMagnitude(layer, optimizer, density=0.25, end=4)
        >>> for _ in range(4):
        ...     layer(torch.ones(2, 8)).sum().backward()
        ...     optimizer.step()
        ...     _ = prune.step()
        ...     print(layer.values.numel())
        36
        22
        17
        16
    """

    @public_as("nn.sparsity.GradualMagnitude")
    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        density: float,
        end: int,
        begin: int = 0,
        every: int = 1,
    ) -> None:
        super().__init__(module, optimizer, every=every, begin=begin, end=end)
        hint = "It is the share of elements that are left."
        checks.require_number("density", density, hint, least=0, most=1)
        checks.require_number("end", end, "It is the step of the last change.", whole=True)
        if any(getattr(layer, "n_m", None) for layer in self.layers):
            raise ArgumentValueError(
                "`module` has a layer with n of m elements in a row; layers without are accepted. "
                "Make it with a density, or leave it out of `module`."
            )
        self.density = density
        self._first = [layer.density for layer in self.layers]

    def state_dict(self) -> dict[str, Any]:
        """Steps so far, and the densities that the layers had at first."""
        return {**super().state_dict(), "first": list(self._first)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state that `state_dict` gave."""
        super().load_state_dict(state)
        self._first = list(state["first"])

    def _is_due(self, step: int) -> bool:
        return step == self.end or super()._is_due(step)

    def _change(self, layer: SparseWeight) -> None:
        assert self.end is not None
        first = self._first[next(i for i, other in enumerate(self.layers) if other is layer)]
        span = self.end - self.begin
        done = (self.steps - self.begin) / span if span else 1.0
        density = self.density + (first - self.density) * (1 - done) ** 3
        positions, total = positions_of(layer)
        n = round(density * total)
        if n < positions.numel():
            kept: torch.Tensor = magnitudes(layer).topk(n).indices.sort().values
            move_to_positions(layer, positions[kept], self.optimizer)
