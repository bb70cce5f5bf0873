"""Exchanges the dense layers of a module for sparse ones, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from spgrad.core.checks import describe_kind
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.nn.linear import SparseLinear
from spgrad.public import public_as

Choice = float | torch.Tensor | dict[str, Any] | None
Rule = Choice | Mapping[str, Choice] | Callable[[str, nn.Module], Choice]


@public_as("nn.convert")
def convert(module: nn.Module, rule: Rule) -> nn.Module:
    """Exchanges each `torch.nn.Linear` in `module` that the rule chooses for a SparseLinear.

    Subclasses of `torch.nn.Linear` stay as they are, because modules such as
    `torch.nn.MultiheadAttention` read the weights of such layers directly.

    Args:
        module: Changed in place; if it is a `torch.nn.Linear` itself, the result is a new module.
        rule: How to convert a layer: a density, a pattern (SparseTensor or dense bool tensor), or
            a dict of arguments of `SparseLinear.from_dense`, such as {"n_m": (2, 4)}; None leaves
            the layer as it is. One of these applies to all layers. A mapping has one of them for
            each name, in which * matches any text; the first name that matches a layer counts. A
            function takes the name and the layer, and returns one of them.

    Returns:
        `module`. A layer that the module contains several times is converted once. Make the
        optimizer afterwards, because the parameters are new.

    Cost:
        That of finding the largest elements of each weight.

    Raises:
        TypeError: `module` is no torch.nn.Module, or the rule gives none of the above.
        ValueError: A name of a mapping fits no layer, or a density or pattern does not fit one.

    Example:
        >>> mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> spgrad.nn.convert(mlp, {"0": 0.25})
        Sequential(
          (0): SparseLinear(in_features=8, out_features=8, bias=True, nse=16, density=0.25)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
        >>> spgrad.nn.to_dense(mlp)[0]
        Linear(in_features=8, out_features=8, bias=True)
    """
    _require_module(module)
    if isinstance(rule, Mapping) and not _is_arguments(rule):
        names = [name for name, layer in module.named_modules() if type(layer) is nn.Linear]
        for pattern in rule:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ArgumentValueError(
                    f"`rule` names {pattern!r}, which fits none of the linear layers {names}; "
                    "their names are accepted. Use * for any letters."
                )

    def exchanged(name: str, layer: nn.Module) -> nn.Module:
        if type(layer) is not nn.Linear:
            return layer
        choice = _choice(rule, name, layer)
        return layer if choice is None else SparseLinear.from_dense(layer, **_arguments(choice))

    return _exchange(module, exchanged)


@public_as("nn.to_dense")
def to_dense(module: nn.Module) -> nn.Module:
    """Exchanges each SparseLinear in `module` for a `torch.nn.Linear` that computes the same.

    Args:
        module: Changed in place; if it is a SparseLinear itself, the result is a new module.

    Returns:
        `module`. Make the optimizer afterwards, because the parameters are new.

    Cost:
        Time and memory of the dense weights.

    Raises:
        TypeError: `module` is no torch.nn.Module.

    Example:
        >>> spgrad.nn.to_dense(spgrad.nn.SparseLinear(8, 2, density=0.5))
        Linear(in_features=8, out_features=2, bias=True)
    """
    _require_module(module)
    return _exchange(
        module, lambda _, layer: layer.to_dense() if isinstance(layer, SparseLinear) else layer
    )


def _exchange(module: nn.Module, new: Callable[[str, nn.Module], nn.Module]) -> nn.Module:
    """`module` with new(name, layer) in place of each layer within; once for each object."""
    made: dict[int, nn.Module] = {}
    for name, owner, child in [("", None, module), *_children(module)]:
        if id(child) not in made:
            made[id(child)] = new(name, child)
        if owner is not None:
            owner._modules[name.rpartition(".")[2]] = made[id(child)]
    return made[id(module)]


def _children(module: nn.Module) -> list[tuple[str, nn.Module, nn.Module]]:
    """The name, the owner and the module itself, for each place that a module has in another."""

    def of(owner: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module, nn.Module]]:
        if id(owner) in entered:
            return
        entered.add(id(owner))
        for name, child in list(owner._modules.items()):
            if child is None:
                continue
            yield prefix + name, owner, child
            yield from of(child, f"{prefix}{name}.")

    entered: set[int] = set()
    return list(of(module, ""))


def _choice(rule: Rule, name: str, layer: nn.Module) -> Choice:
    if isinstance(rule, Mapping) and not _is_arguments(rule):
        fits = (choice for pattern, choice in rule.items() if fnmatchcase(name, pattern))
        return next(fits, None)
    if callable(rule) and not isinstance(rule, torch.Tensor):
        return rule(name, layer)
    return rule  # type: ignore[return-value]


_ARGUMENTS = {"density", "pattern", "n_m", "blocksize"}


def _is_arguments(rule: Mapping[str, Any]) -> bool:
    return bool(rule) and rule.keys() <= _ARGUMENTS


def _arguments(choice: Any) -> dict[str, Any]:
    if isinstance(choice, torch.Tensor):
        return {"pattern": choice}
    if isinstance(choice, (int, float)) and not isinstance(choice, bool):
        return {"density": choice}
    if isinstance(choice, Mapping) and _is_arguments(choice):
        return dict(choice)
    raise ArgumentKindError(
        f"`rule` gives {describe_kind(choice)} for a layer; a density, a pattern, a dict of the "
        "arguments of SparseLinear.from_dense, or None is accepted. Return one of these."
    )


def _require_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise ArgumentKindError(
            f"`module` is {describe_kind(module)}; a torch.nn.Module is accepted. Pass the module "
            "that holds the layers."
        )
