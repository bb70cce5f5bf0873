"""Moves the values of a layer, and the states of its optimizer, to another pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spgrad.core.checks import bad_shape, describe_kind
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentKindError, UnsupportedError
from spgrad.nn.choose import at_positions, given_pattern
from spgrad.nn.weight import SparseWeight
from spgrad.ops.indexing.mask import sparse_mask
from spgrad.public import public_as


@public_as("nn.sparsity.move")
@torch.no_grad()
def move(
    layer: SparseWeight, pattern: torch.Tensor, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Gives a layer another pattern; elements in both keep their values, new ones are 0.

    The parameter `layer.values` stays the same object, so the optimizer goes on with it. Where an
    average of the model is kept, as by torch.optim.swa_utils.AveragedModel, its layer has to move
    to the new pattern too, before the next average; else values of other elements are averaged.

    Args:
        layer: A SparseLinear.
        pattern: SparseTensor whose elements are taken, or a dense bool tensor, of the shape of the
            weight; with a block size, the blocks that hold any of them.
        optimizer: Its states for `layer.values` that have the shape of the values, such as momenta,
            or that shape with sizes of 1 within blocks, move with the elements; those of new
            elements are 0. Not LBFGS, whose states join all parameters.

    Gradient:
        If `layer.values` has a gradient, it moves too.

    Cost:
        O(nse of both patterns) for the values and each state.

    Raises:
        TypeError: `layer` has no sparse weight, or `pattern` is not a pattern.
        ValueError: `pattern` has another shape than the weight.

    Example:
        >>> layer = spgrad.nn.SparseLinear(4, 2, pattern=torch.eye(2, 4) > 0)
        >>> spgrad.nn.sparsity.move(layer, torch.ones(2, 4) > 0)
        >>> layer.density
        1.0
    """
    if not isinstance(layer, SparseWeight):
        raise ArgumentKindError(
            f"`layer` is {describe_kind(layer)}; a SparseLinear is accepted. Make one with "
            "SparseLinear.from_dense."
        )
    _require_all_values("layer", layer)
    require_optimizer(optimizer)
    size = tuple(layer.weight.shape)
    if isinstance(pattern, torch.Tensor) and tuple(pattern.shape) != size:
        raise bad_shape("pattern", tuple(pattern.shape), str(size), "It is that of layer.weight.")
    new = given_pattern(pattern, (size[0], size[1]), layer.blocksize)
    moved: Any = new.to(layer.values.device)
    _move(layer, moved, optimizer)


def move_to_positions(
    layer: SparseWeight, positions: torch.Tensor, optimizer: torch.optim.Optimizer | None
) -> None:
    """`move` to sorted row-major positions of elements, or of blocks."""
    size = layer.weight.shape
    new = at_positions(positions, (size[0], size[1]), layer.blocksize, torch.bool)
    _move(layer, new, optimizer)


def positions_of(layer: SparseWeight) -> tuple[torch.Tensor, int]:
    """Row-major positions of the elements, or of the blocks, and the number of all positions."""
    ptr, idx = layer.pattern.indices
    height, width = layer.blocksize or (1, 1)
    rows, cols = layer.weight.shape
    line = torch.repeat_interleave(ptr.diff(), output_size=idx.numel())
    return line * (cols // width) + idx, (rows // height) * (cols // width)


def magnitudes(layer: SparseWeight) -> torch.Tensor:
    """The absolute value of each element, or the norm of each block."""
    values = layer.values.detach()
    return values.abs() if layer.blocksize is None else values.flatten(1).norm(dim=1)


def _move(layer: SparseWeight, new: SparseTensor, optimizer: torch.optim.Optimizer | None) -> None:
    old = layer.pattern
    parameter = layer.values

    def carried(t: torch.Tensor) -> torch.Tensor:
        return sparse_mask(on_pattern(t.detach(), old), new)._vals

    shape = parameter.shape
    grad = None if parameter.grad is None else carried(parameter.grad)
    states = optimizer.state.get(parameter, {}) if optimizer is not None else {}
    found = {
        name: carried(state.expand(shape))[tuple(slice(size) for size in (None, *state.shape[1:]))]
        for name, state in states.items()
        if isinstance(state, torch.Tensor) and _is_of_elements(state.shape, shape)
    }
    layer.set_weight(on_pattern(carried(parameter), new._pattern))
    parameter.grad = grad
    for name, state in found.items():
        if state.shape == shape:
            states[name].copy_(state)
        else:
            states[name] = state


def _is_of_elements(state: torch.Size, values: torch.Size) -> bool:
    """Whether a state has numbers for each element or block; Adafactor's are sums over lines."""
    if len(state) != len(values) or state[0] != values[0]:
        return False
    return all(size in (1, whole) for size, whole in zip(state[1:], values[1:], strict=True))


def require_optimizer(optimizer: Any) -> None:
    """Refuses what is no optimizer whose states can move."""
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentKindError(
            f"`optimizer` is {describe_kind(optimizer)}; a torch.optim.Optimizer or None is "
            "accepted. Its states move with the elements."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError(
            "`optimizer` is LBFGS, whose states join all parameters in one vector; other "
            "optimizers and None are accepted. Make another LBFGS after each change."
        )


def sparse_layers(module: nn.Module) -> list[SparseWeight]:
    """The layers of a module that have a sparse weight."""
    layers = module.modules() if isinstance(module, nn.Module) else ()
    found = [layer for layer in layers if isinstance(layer, SparseWeight)]
    if not found:
        raise ArgumentKindError(
            f"`module` is {describe_kind(module)} without a SparseLinear; one with some is "
            "accepted. Convert its layers with spgrad.nn.convert."
        )
    for layer in found:
        _require_all_values("module", layer)
    return found


def _require_all_values(name: str, layer: SparseWeight) -> None:
    """Refuses a layer of which each process has a part of the values."""
    if hasattr(layer.values, "placements"):
        raise UnsupportedError(
            f"`{name}` has a layer whose values are a DTensor, as after fully_shard; a layer with "
            "all values in each process is accepted. Train it with DistributedDataParallel, or "
            "change the pattern before fully_shard."
        )
