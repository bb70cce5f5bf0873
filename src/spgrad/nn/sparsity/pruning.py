"""Prunes by magnitude, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.errors import ArgumentValueError, StateError
from spgrad.nn.choose import in_groups, require_groups
from spgrad.nn.sparsity.moving import magnitudes, move_to_positions, positions_of
from spgrad.nn.sparsity.schedule import Schedule
from spgrad.nn.weight import SparseWeight
from spgrad.ops.reductions.order import among_largest
from spgrad.public import public_as


class GradualMagnitude(Schedule):
    """Removes the smallest elements of each layer, fewer at a time, until a density is reached.

    The density is density + (first - density) (1 - s)^3, where `first` is the density before and s
    goes from 0 at step `begin` to 1 at step `end`. Blocks are removed as a whole, by their norm.

    In layers with n of m elements in a row, the smallest of each group of m are removed, and n
    falls in whole steps: m times this density, rounded. So each group always has as many elements
    as the others, and `SET` or `RigL` may exchange them in the meantime.

    Args:
        module: Holds SparseLinear layers; begin with ``spgrad.nn.convert(module, 1.0)``.
        optimizer: Its states move with the elements (`spgrad.nn.sparsity.move`).
        density: Density of each layer in the end. Layers with n of m elements keep m, so m density
            has to be whole.
        end: Step of the last change.
        begin: Step of the first change.
        every: Steps from one change to the next; there is always one at `end`.
        n_m: (n, m), in place of a density: each layer has n elements in each group of m consecutive
            ones of a row in the end. (2, 4) is what `torch.sparse.to_sparse_semi_structured` takes.

    Cost:
        A change takes O(nse). The number of values falls, so a wrapper that keeps parameters in
        memory of its own, as DistributedDataParallel does, has to be made again after a change.

    Raises:
        TypeError: `module` has no SparseLinear.
        ValueError: A number is out of range, none or both of `density` and `n_m` are given, or a
            layer can't have n of m elements: it has blocks, m does not divide its columns, or a
            group has fewer than n.

    Source:
        Zhu and Gupta, To prune, or not to prune, 2017; of n of m: Kao and others, Training recipe
        for N:M structured sparsity with decaying pruning mask, 2022.

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
        density: float | None = None,
        end: int,
        begin: int = 0,
        every: int = 1,
        n_m: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(module, optimizer, every=every, begin=begin, end=end)
        checks.require_number("end", end, "It is the step of the last change.", whole=True)
        if (density is None) == (n_m is None):
            found = "neither `density` nor `n_m` is" if n_m is None else "`density` and `n_m` are"
            raise ArgumentValueError(
                f"{found} given; one of the two is accepted. For example density=0.1."
            )
        if density is not None:
            hint = "It is the share of elements that are left."
            checks.require_number("density", density, hint, least=0, most=1)
        self.density = density
        names = {layer: f"`{name}`" if name else "it" for name, layer in module.named_modules()}
        self._groups = [_groups_of(layer, names[layer], density, n_m) for layer in self.layers]
        self._first = [
            layer.density if groups is None else _fullest(layer, groups[1]) / groups[1]
            for layer, groups in zip(self.layers, self._groups, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Steps so far, and the densities that the layers had at first."""
        return {**super().state_dict(), "first": list(self._first)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state that `state_dict` gave."""
        self._require_state(state)
        found = len(state["first"])
        if found != len(self.layers):
            raise StateError(
                f"`state` is that of {found} layers for {len(self.layers)}; the state of as many "
                "layers is accepted. Make the schedule for the same module."
            )
        super().load_state_dict(state)
        self._first = list(state["first"])

    def _is_due(self, step: int) -> bool:
        return step == self.end or super()._is_due(step)

    def _change(self, layer: SparseWeight) -> None:
        at = next(i for i, other in enumerate(self.layers) if other is layer)
        groups, first = self._groups[at], self._first[at]
        positions, total = positions_of(layer)
        if groups is None:
            assert self.density is not None
            n = round(self._now(first, self.density) * total)
            if n < positions.numel():
                kept: torch.Tensor = magnitudes(layer).topk(n).indices.sort().values
                move_to_positions(layer, positions[kept], self.optimizer)
            return
        n, m = groups
        n = round(m * self._now(first, n / m))
        stay = among_largest(_grouped(layer, positions, m), magnitudes(layer), n)
        if not bool(stay.all()):
            move_to_positions(layer, positions[stay], self.optimizer)
        setattr(layer, "n_m", (n, m))  # noqa: B010

    def _now(self, first: float, last: float) -> float:
        """The density of this step, between those of the first and of the last change."""
        assert self.end is not None
        span = self.end - self.begin
        done = (self.steps - self.begin) / span if span else 1.0
        return last + (first - last) * (1 - done) ** 3


def _grouped(layer: SparseWeight, positions: torch.Tensor, m: int) -> Pattern:
    rows, columns = layer.weight.shape
    return in_groups(positions, (rows, columns), m)


def _groups_of(
    layer: SparseWeight, name: str, density: float | None, n_m: Any
) -> tuple[int, int] | None:
    """The (n, m) that a layer has in the end, or None; refuses layers that can't have them."""
    if n_m is None:
        made = getattr(layer, "n_m", None)
        if made is None or density is None:
            return None
        n = round(density * made[1])
        if n < 1 or abs(n - density * made[1]) > 1e-6:
            raise ArgumentValueError(
                f"`density` is {density} for {name}, which has {made[0]} of {made[1]} elements "
                f"in a row; a density of which {made[1]} times is a whole number from 1 on is "
                f"accepted. For example {max(made[0] // 2, 1)} / {made[1]}."
            )
        n_m = min(n, made[0]), made[1]  # a density above that of the layer changes nothing
    columns = layer.weight.shape[1]
    if layer.blocksize is not None:
        raise ArgumentValueError(
            f"`n_m` is {n_m!r} for {name}, which has blocks {layer.blocksize}; layers without "
            "are accepted. Give a density, or leave the layer out of `module`."
        )
    require_groups(n_m, columns)
    n, m = n_m
    counts = _grouped(layer, positions_of(layer)[0], m).indices[0].diff()
    if counts.numel() and int(counts.min()) < n:
        raise ArgumentValueError(
            f"`n_m` is {n_m!r} for {name}, in which a group of {m} columns has "
            f"{int(counts.min())} elements; layers with at least {n} in each are accepted. Begin "
            "with spgrad.nn.convert(module, 1.0)."
        )
    return n, m


def _fullest(layer: SparseWeight, m: int) -> int:
    """The most elements that a group of m columns has."""
    counts = _grouped(layer, positions_of(layer)[0], m).indices[0].diff()
    return int(counts.max()) if counts.numel() else m
