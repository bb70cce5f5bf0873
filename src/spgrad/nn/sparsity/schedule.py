"""What all changes of patterns have in common: when they happen, and their `state_dict`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spgrad.core import checks
from spgrad.errors import ArgumentValueError, StateError
from spgrad.nn.sparsity.moving import require_optimizer, sparse_layers
from spgrad.nn.weight import SparseWeight


class Schedule(ABC):
    """Changes the patterns of the sparse layers of a module every so many steps.

    Call `step()` after each step of the optimizer, before its gradients are set to zero.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        every: int,
        begin: int,
        end: int | None,
    ) -> None:
        self.layers, self._twins = _by_parameter(sparse_layers(module))
        self.optimizer = optimizer
        require_optimizer(optimizer)
        hint = "It counts steps."
        checks.require_number("every", every, hint, least=1, whole=True)
        for name, step in (("begin", begin), ("end", 0 if end is None else end)):
            checks.require_number(name, step, hint, whole=True)
        if begin < 0 or (end is not None and end < begin):
            raise ArgumentValueError(
                f"`begin` is {begin} and `end` {end}; 0 <= begin <= end is accepted. They are the "
                "steps of the first and of the last change."
            )
        self.every, self.begin, self.end = every, begin, end
        self.steps = 0

    def step(self) -> bool:
        """Counts a step, and changes the patterns if it is time to; tells whether it was."""
        self.steps += 1
        if not self._is_due(self.steps):
            return False
        for layer in self.layers:
            self._change(layer)
            for twin in self._twins[layer]:
                twin.take_indices(layer)
        return True

    def state_dict(self) -> dict[str, Any]:
        """The state to save beside those of module and optimizer, so that training can resume."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state that `state_dict` gave."""
        self._require_state(state)
        self.steps = state["steps"]

    def _require_state(self, state: Any) -> None:
        parts = self.state_dict().keys()
        if not isinstance(state, Mapping) or not parts <= state.keys():
            found = list(state) if isinstance(state, Mapping) else checks.describe_kind(state)
            wrong = f"is {found}; a dict with {', '.join(parts)}"
        elif type(state["steps"]) is not int:
            wrong = f"has {state['steps']!r} steps; a number of steps, an int,"
        else:
            return
        raise StateError(
            f"`state` {wrong} is accepted. Pass what state_dict() of this class gave.",
            function=f"nn.sparsity.{type(self).__name__}.load_state_dict",
        )

    def _is_due(self, step: int) -> bool:
        if step < self.begin or (self.end is not None and step > self.end):
            return False
        return (step - self.begin) % self.every == 0

    @abstractmethod
    def _change(self, layer: SparseWeight) -> None:
        """Changes the elements of a layer whose turn it is."""


def _by_parameter(
    layers: list[SparseWeight],
) -> tuple[list[SparseWeight], dict[SparseWeight, list[SparseWeight]]]:
    """A layer for each parameter, and the others that share its values, on the same elements."""
    twins: dict[SparseWeight, list[SparseWeight]] = {}
    first: dict[int, SparseWeight] = {}
    for layer in layers:
        one = first.setdefault(id(layer.values), layer)
        if one is layer:
            twins[layer] = []
        elif one.pattern.same_as(layer.pattern):
            twins[one].append(layer)
        else:
            raise ArgumentValueError(
                "`module` has layers that share their `values` on other elements; layers with the "
                "same elements are accepted. Make the second of `first.weight` as its pattern."
            )
    return list(twins), twins
