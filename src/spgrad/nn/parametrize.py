"""Replaces the SparseTensor parameters of a module by dense parameters that hold their values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from spgrad.core.checks import describe_kind
from spgrad.core.pattern import Pattern
from spgrad.core.refusals import refuse_tracers
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, on_pattern
from spgrad.errors import ArgumentKindError, StateError
from spgrad.public import public_as
from spgrad.torch_protocol.processes.collectives import require_agreement
from spgrad.torch_protocol.processes.flattened import parallel_being_made

_INDEX_NAMES = {
    "coo": ("indices",),
    "csr": ("crow_indices", "col_indices"),
    "csc": ("ccol_indices", "row_indices"),
    "bsr": ("crow_indices", "col_indices"),
    "bsc": ("ccol_indices", "row_indices"),
}


class Values(nn.Module):
    """The parametrization: a SparseTensor as a function of its values.

    It has no parameter or buffer, but writes its index tensors to `state_dict` under torch's names,
    and compares them with those of a state that is loaded.
    """

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        # a tensor, because compiled code takes it as an input; not a buffer, because processes
        # would send it; its one number is never read
        number = torch.zeros((), dtype=torch.bool, device=pattern.device)
        self.elements = on_pattern(number.expand(pattern.values_shape), pattern)

    def forward(self, values: torch.Tensor) -> SparseTensor:
        """The SparseTensor with these values."""
        refuse_tracers()
        return from_values(values, self.elements)

    def right_inverse(self, A: SparseTensor) -> tuple[torch.Tensor]:
        """The values, in the memory of `A` if they lie side by side there, as fully_shard needs."""
        return (A._vals.detach().contiguous(),)

    def extra_repr(self) -> str:
        """The pattern in one line."""
        p = self.elements._pattern
        return f"{p.name}, shape={tuple(p.shape)}, nse={p.nse}"

    def _apply(self, fn: Any, recurse: bool = True) -> Values:
        super()._apply(fn, recurse)
        self.elements = fn(self.elements)
        return self

    def __getattr__(self, name: str) -> Any:
        """The index tensors too, as torch looks up each key of `state_dict` in the module."""
        if "elements" in self.__dict__:
            for key, index in self._indices():
                if key == name:
                    return index
        return super().__getattr__(name)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """None, as before; DistributedDataParallel, while it is made, asks each module for them.

        It sends the values of the first process to the others. So their patterns are compared.
        """
        parallel = parallel_being_made(sys._getframe(1))
        if parallel is not None:
            _require_same_patterns(parallel, self)
        return super().named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The index tensors, in which torch.distributed.checkpoint finds the keys of `state_dict`.

        Called for a module that contains this one, the method does not list them.
        """
        yield from super().named_buffers(prefix, recurse, remove_duplicate)
        for name, index in self._indices():
            yield f"{prefix}.{name}" if prefix else name, index.detach()

    def _indices(self) -> Iterator[tuple[str, torch.Tensor]]:
        pattern = self.elements._pattern
        return zip(_INDEX_NAMES[pattern.name], pattern.indices, strict=True)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, index in self._indices():
            destination[prefix + name] = index.clone()  # whoever reads the state may overwrite it

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = []
        for name, index in self._indices():
            key = prefix + name
            names.append(key)
            given = state_dict.get(key)
            if given is None:
                if strict:
                    missing_keys.append(key)
            elif given.shape != index.shape or not torch.equal(given.to(index), index):
                error_msgs.append(
                    f"`{key}` lists other elements than the {self.elements.nse} of the parameter; "
                    "the same elements are accepted. Make the module on the elements of the "
                    "state, or load it before spgrad.nn.parametrize_values."
                )
        if strict:
            found = [key for key in state_dict if key.startswith(prefix) and key not in names]
            unexpected_keys.extend(found)


@public_as("nn.parametrize_values")
def parametrize_values(module: nn.Module) -> nn.Module:
    """Makes the values of each SparseTensor parameter of `module` a dense parameter, in place.

    Code that flattens parameters, or keeps them in memory of its own, takes a module only after
    this call: `torch.nn.parallel.DistributedDataParallel`, `fully_shard`, `torch.func`,
    `torch.nn.utils.parameters_to_vector`, and optimizers that are not a `torch.optim.Optimizer`.
    The module computes the same as before: `module.weight` is still a SparseTensor, made of the
    values when it is read. Make the optimizer after this call, because the parameters are new.

    Args:
        module: A module whose parameters, or those of the modules within, are SparseTensors of any
            layout. Dense parameters and buffers stay as they are.

    Returns:
        `module`. The parameter `weight` is now called `parametrizations.weight.original0` and has
        the shape of the values. `state_dict` also has the index tensors:
        `parametrizations.weight.0.crow_indices` and the like. A parameter that the module contains
        several times becomes one dense parameter. torch can save the module only by its
        `state_dict`, as every module with parametrizations.

    Gradient:
        Each dense parameter gets the values of the gradient of its SparseTensor.

    Cost:
        O(1) for each parameter: values and indices are shared with it. Values that do not lie side
        by side in memory are copied.

    Raises:
        TypeError: `module` is not a torch.nn.Module.

    Source:
        `torch.nn.utils.parametrize.register_parametrization`, which does the work.

    Example:
        >>> layer = torch.nn.Module()
        >>> layer.weight = torch.nn.Parameter(spgrad.eye(3))
        >>> layer = spgrad.nn.parametrize_values(layer)
        >>> [(name, tuple(p.shape)) for name, p in layer.named_parameters()]
        [('parametrizations.weight.original0', (3,))]
        >>> (layer.weight @ torch.ones(3)).sum().backward()
        >>> layer.parametrizations.weight.original0.grad
        tensor([1., 1., 1.])
    """
    _require_module(module)
    dense: dict[int, nn.Parameter] = {}  # by the SparseTensor, for those in several places
    alive = []
    for owner in list(module.modules()):
        for name, A in list(owner._parameters.items()):
            if not isinstance(A, SparseTensor):
                continue
            alive.append(A)
            parametrize.register_parametrization(owner, name, Values(A._pattern))
            held: Any = owner.parametrizations[name]  # type: ignore[index]
            values = dense.setdefault(id(A), held.original0)
            held.original0 = values
            if A.grad is not None and values.grad is None:
                values.grad = A.grad._vals  # type: ignore[attr-defined]
    return module


@public_as("nn.unparametrize_values")
def unparametrize_values(module: nn.Module) -> nn.Module:
    """Undoes `parametrize_values`: makes its dense parameters SparseTensors again, in place.

    Args:
        module: A module that `parametrize_values` returned; its present values are taken.

    Returns:
        `module`, with the parameters and the names in `state_dict` that it had before. Make the
        optimizer after this call, because the parameters are new.

    Gradient:
        The gradient of a dense parameter becomes the gradient of the SparseTensor.

    Cost:
        O(1) for each parameter: the SparseTensor shares the values.

    Raises:
        TypeError: `module` is not a torch.nn.Module.
        RuntimeError: A parameter has another parametrization on top.

    Source:
        `torch.nn.utils.parametrize.remove_parametrizations`.

    Example:
        >>> layer = torch.nn.Module()
        >>> layer.weight = torch.nn.Parameter(spgrad.eye(3))
        >>> layer = spgrad.nn.unparametrize_values(spgrad.nn.parametrize_values(layer))
        >>> [(name, p.layout) for name, p in layer.named_parameters()]
        [('weight', torch.sparse_csr)]
    """
    _require_module(module)
    sparse: dict[int, nn.Parameter] = {}  # by the dense parameter
    for owner in list(module.modules()):
        if not parametrize.is_parametrized(owner):
            continue
        for name, held in list(owner.parametrizations.items()):  # type: ignore[operator]
            if not any(isinstance(part, Values) for part in held):
                continue
            if len(held) > 1:
                raise StateError(
                    f"`module` has {len(held)} parametrizations of {name!r}; that of "
                    "parametrize_values alone is accepted. Remove the others with "
                    "torch.nn.utils.parametrize.remove_parametrizations."
                )
            values = held.original0
            if id(values) not in sparse:
                sparse[id(values)] = _joined(values, held[0].elements._pattern)
            _own_class(owner)
            parametrize.remove_parametrizations(owner, name)
            owner._buffers.pop(name, None)  # where a frozen parameter was put
            owner.register_parameter(name, sparse[id(values)])
    return module


def _own_class(module: Any) -> None:
    """Gives a module with parametrizations a class of its own; copies share that of the first.

    torch takes the name of the parameter off the class, and so off all copies of the module.
    """
    old = type(module)
    parts = {k: v for k, v in vars(old).items() if k not in ("__dict__", "__weakref__")}
    module.__class__ = type(old.__name__, old.__bases__, parts)


def _joined(values: nn.Parameter, pattern: Pattern) -> nn.Parameter:
    """A SparseTensor parameter with the values, and the gradient, of a dense one."""
    A: Any = nn.Parameter(SparseTensor(values.detach(), pattern), values.requires_grad)
    if values.grad is not None:
        A.grad = SparseTensor(values.grad, pattern)
    return A


def _require_same_patterns(parallel: Any, asked: Values) -> None:
    """Raises in all processes if patterns differ; compares those of all modules at the first."""
    found, sent = [], []
    for name, module in parallel.module.named_modules():
        held = f"{name.rpartition('.')[0]}.original0"
        if isinstance(module, Values) and held not in parallel.parameters_to_ignore:
            found.append(module)
            dtype = parallel.module.get_parameter(held).dtype
            sent.append((module.elements._pattern, dtype))
    if found and found[0] is asked:
        device = asked.elements.device
        require_agreement("DistributedDataParallel", parallel.process_group, sent, device)


def _require_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise ArgumentKindError(
            f"`module` is {describe_kind(module)}; a torch.nn.Module is accepted. Register the "
            "SparseTensor as a parameter of one."
        )
