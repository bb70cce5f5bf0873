"""What all changes of patterns have in common: when they happen, and their `state_dict`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spgrad.core import checks
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.nn.sparsity.moving import sparse_layers
from spgrad.nn.weight import SparseWeight


class Schedule:
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
        self.layers = sparse_layers(module)
        self.optimizer = optimizer
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentKindError(
                f"`optimizer` is {checks.describe_kind(optimizer)}; a torch.optim.Optimizer or "
                "None is accepted. Its states move with the elements."
            )
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
        return True

    def state_dict(self) -> dict[str, Any]:
        """The state to save beside those of module and optimizer, so that training can resume."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state that `state_dict` gave."""
        self.steps = state["steps"]

    def _is_due(self, step: int) -> bool:
        if step < self.begin or (self.end is not None and step > self.end):
            return False
        return (step - self.begin) % self.every == 0

    def _change(self, layer: SparseWeight) -> None:
        raise NotImplementedError
