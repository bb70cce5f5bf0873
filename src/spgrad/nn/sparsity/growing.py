"""Exchanges elements: removes the smallest, and adds as many at other places."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from spgrad.core import checks
from spgrad.errors import ArgumentKindError, UnsupportedError
from spgrad.lowering.operands import is_sparse
from spgrad.nn.choose import distinct_beside
from spgrad.nn.sparsity.moving import magnitudes, move_to_positions, positions_of
from spgrad.nn.sparsity.schedule import Schedule
from spgrad.nn.sparsity.scores import Seen, fill_groups, gradient_scores, largest_beside
from spgrad.nn.sparsity.together import (
    all_have,
    generator_of_all,
    processes_of,
    warn_of_others,
)
from spgrad.nn.weight import SparseWeight
from spgrad.public import public_as

_TILE = 16 << 20


class _Exchange(Schedule):
    """Removes a share of the elements, the smallest; `_grown` chooses those that replace them."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        fraction: float,
        memory: int,
        **when: Any,
    ) -> None:
        super().__init__(module, optimizer, **when)
        hint = "It is the share of elements that a change exchanges."
        checks.require_number("fraction", fraction, hint, least=0, most=1)
        checks.require_number("memory", memory, "It is a number of bytes.", least=1)
        self.fraction, self.memory = fraction, memory
        self._group = processes_of(module)

    def _share(self) -> float:
        """The share that this change exchanges."""
        return self.fraction

    def _change(self, layer: SparseWeight) -> None:
        positions, total = positions_of(layer)
        nse = positions.numel()
        n = int(self._share() * nse)
        if n == 0 and nse:
            return
        stay = magnitudes(layer).topk(nse - n).indices.sort().values
        kept = positions[stay]
        found = self._grown(layer, kept, n, total)
        if found is not None:
            move_to_positions(layer, found, self.optimizer)

    @abstractmethod
    def _grown(
        self, layer: SparseWeight, kept: torch.Tensor, n: int, total: int
    ) -> torch.Tensor | None:
        """The positions of all elements after the change; None for no change."""


class SET(_Exchange):
    """Exchanges the smallest elements of each layer for others at random places.

    The number of elements stays. An element whose place is drawn again keeps its value and its
    optimizer states; other new elements are 0. Blocks are exchanged as a whole, and layers with n
    of m elements in a row keep that: a group exchanges its elements within itself. Where n = m, or
    blocks fill the layer, nothing is exchanged. `GradualMagnitude` lowers n.

    Args:
        module: Holds SparseLinear layers. Processes that train one module together pass their
            DistributedDataParallel, so that all of them draw the same places.
        optimizer: Its states move with the elements (`spgrad.nn.sparsity.move`).
        fraction: The share of elements that a change exchanges.
        every: Steps from one change to the next.
        begin: Step of the first change.
        end: Step after which there is no change; None for no end.
        generator: Draws the places; None takes torch's default generator, or for
            DistributedDataParallel one whose seed the first process draws. Processes that pass
            another module must each pass a generator of the same seed.

    Cost:
        A change takes O(nse) time and memory; O(rows columns) time for layers with n of m.

    Raises:
        TypeError: `module` has no SparseLinear.
        ValueError: A number is out of range, or the generators of processes differ.

    Source:
        Mocanu et al., Scalable training of artificial neural networks with adaptive sparse
        connectivity, 2018. There, the smallest positive and the largest negative elements are
        removed, the same share of each; here the smallest in magnitude.

    Example:
        >>> layer = spgrad.nn.SparseLinear(8, 8, density=0.25)
        >>> change = spgrad.nn.sparsity.SET(layer, fraction=0.5)
        >>> change.step(), layer.values.numel()
        (True, 16)
    """

    @public_as("nn.sparsity.SET")
    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        fraction: float = 0.3,
        every: int = 1,
        begin: int = 0,
        end: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        when = {"every": every, "begin": begin, "end": end}
        super().__init__(module, optimizer, fraction, _TILE, **when)
        checks.require_generator(generator)
        self.generator = generator
        if self._group is not None:
            device = self.layers[0].values.device
            self.generator = generator_of_all(generator, self._group, device)
        elif generator is None:
            warn_of_others("SET", "a `generator` of the same seed in each")

    def state_dict(self) -> dict[str, Any]:
        """Steps so far, and the state of the generator."""
        generator = self.generator
        state = None if generator is None else generator.get_state()
        return {**super().state_dict(), "generator": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state that `state_dict` gave."""
        super().load_state_dict(state)
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"])

    def _grown(self, layer: SparseWeight, kept: torch.Tensor, n: int, total: int) -> torch.Tensor:
        n_m = getattr(layer, "n_m", None)
        if n_m is not None:
            return fill_groups(layer, kept, n_m, self._drawn(layer), self.memory)
        new = distinct_beside(kept, total, n, self.generator)
        return torch.cat([kept, new]).sort().values

    def _drawn(self, layer: SparseWeight) -> Callable[[int, int], torch.Tensor]:
        device = layer.values.device if self.generator is None else self.generator.device
        cols = layer.weight.shape[1]

        def scores(start: int, stop: int) -> torch.Tensor:
            drawn = torch.rand(stop - start, cols, generator=self.generator, device=device)
            return drawn.to(layer.values.device)

        return scores


class RigL(_Exchange):
    """Exchanges the smallest elements of each layer for those whose gradient is largest.

    The gradient of the elements that a layer does not have is g^T x, where g is the gradient of its
    output and x its input. It is computed in tiles of rows, of which only the largest elements are
    kept. Inputs and gradients are recorded only in the step that ends with a change, for every
    `backward` since the last `step()`, so gradients that are summed over several batches count as
    one. Modules run uncompiled in these steps.

    The number of elements stays. An element that is removed and added in one change keeps its value
    and its optimizer states; other new elements are 0. Blocks are exchanged as a whole, by the norm
    of their gradient. Layers with n of m elements in a row keep that: a group exchanges its
    elements within itself. `GradualMagnitude` lowers n.

    Args:
        module: Holds SparseLinear layers. Processes that train one module together pass their
            DistributedDataParallel, so that the gradients of all of them count.
        optimizer: Its states move with the elements (`spgrad.nn.sparsity.move`).
        end: Step of the last change; the share that is exchanged falls to 0 there, as a cosine.
        fraction: The share that a change at step 0 would exchange.
        every: Steps from one change to the next.
        begin: Step of the first change.
        memory: Most bytes of a tile of g^T x with its magnitudes and positions; a tile has at least
            one row, or one row of blocks.
        reduce: A function that is called with each tile of g^T x and may change it in place; None
            adds up the tiles of all processes of a DistributedDataParallel. Processes that pass
            another module pass torch.distributed.all_reduce.

    Cost:
        A change takes O(rows columns batch) time, as the dense layer would, and O(nse) memory
        besides a tile. Inputs and output gradients of one step are kept until the change.

    Raises:
        TypeError: `module` has no SparseLinear.
        ValueError: A number is out of range.

    Source:
        Evci et al., Rigging the lottery: making all tickets winners, 2020.

    Example:
        >>> layer = spgrad.nn.SparseLinear(8, 8, density=0.25)
        >>> optimizer = torch.optim.Adam(layer.parameters())
        >>> change = spgrad.nn.sparsity.RigL(layer, optimizer, end=100, every=1)
        >>> layer(torch.randn(5, 8)).square().sum().backward()
        >>> optimizer.step()
        >>> change.step(), layer.values.numel()
        (True, 16)
    """

    @public_as("nn.sparsity.RigL")
    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        end: int,
        fraction: float = 0.3,
        every: int = 100,
        begin: int = 0,
        memory: int = _TILE,
        reduce: Callable[[torch.Tensor], Any] | None = None,
    ) -> None:
        when = {"every": every, "begin": begin, "end": end}
        super().__init__(module, optimizer, fraction, memory, **when)
        if reduce is None and self._group is not None:
            reduce = partial(torch.distributed.all_reduce, group=self._group)
        elif reduce is None:
            warn_of_others("RigL", "`reduce=torch.distributed.all_reduce`")
        elif not callable(reduce):
            raise ArgumentKindError(
                f"`reduce` is {checks.describe_kind(reduce)}; a function of a tensor or None is "
                "accepted. For example torch.distributed.all_reduce."
            )
        self.reduce = reduce
        self._seen = {layer: Seen() for layer in self.layers}
        self._hooks = [
            layer.register_forward_hook(partial(self._note, seen), with_kwargs=True)
            for first, seen in self._seen.items()
            for layer in (first, *self._twins[first])
        ]

    def remove(self) -> None:
        """Takes the hooks off the layers; no change follows."""
        for hook in self._hooks:
            hook.remove()
        self.end = -1

    def step(self) -> bool:
        """Counts a step, and changes the patterns if it is time to; tells whether it was."""
        changed = super().step()
        for seen in self._seen.values():
            seen.clear()
        return changed

    @public_as("nn.sparsity.RigL")
    def _note(
        self,
        seen: Seen,
        layer: nn.Module,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        output: torch.Tensor,
    ) -> None:
        if not self._is_due(self.steps + 1) or not output.requires_grad:
            return
        x = inputs[0] if inputs else named["input"]
        if is_sparse(x):
            raise UnsupportedError(
                "`module` has a layer whose input is sparse; dense inputs are accepted, as the "
                "gradient of all elements is a product with it. Use SET, which needs none."
            )
        output.register_hook(lambda g: seen.append((x.detach(), g.detach())))

    def _share(self) -> float:
        assert self.end is not None
        return self.fraction / 2 * (1 + math.cos(math.pi * self.steps / max(self.end, 1)))

    def _grown(
        self, layer: SparseWeight, kept: torch.Tensor, n: int, total: int
    ) -> torch.Tensor | None:
        seen = self._seen[layer]
        if not all_have(bool(seen), self._group, layer.values.device):
            return None  # no gradient came: the elements stay
        scores = gradient_scores(layer, seen, self.reduce)
        n_m = getattr(layer, "n_m", None)
        if n_m is not None:
            return fill_groups(layer, kept, n_m, scores, self.memory)
        new = largest_beside(layer, kept, n, scores, self.memory)
        return torch.cat([kept, new]).sort().values
