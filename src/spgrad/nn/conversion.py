"""Exchanges the dense layers of a module for sparse ones, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

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
        `module`. A layer that the module contains several times is converted once, and layers that
        share a weight or a bias share the new one. Make the optimizer afterwards, because the
        parameters are new.

    Cost:
        That of finding the largest elements of each weight.

    Raises:
        TypeError: `module` is no torch.nn.Module, or the rule gives none of the above.
        ValueError: A name of a mapping fits no layer, a density or pattern does not fit one, or a
            layer shares its weight with one that gets other elements or stays as it is.

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
        `module`. Layers that share their values share the new weight. Make the optimizer
        afterwards, because the parameters are new.

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
    """`module` with new(name, layer) in place of each layer within; once for each object.

    An error leaves the module as it was.
    """
    made: dict[int, nn.Module] = {}
    changed: list[_Change] = []
    places = [("", None, module), *_children(module)]
    for name, _, child in places:
        if id(child) not in made:
            made[id(child)] = new(name, child)
            if made[id(child)] is not child:
                changed.append(_Change(name, child, made[id(child)]))
    _tie(module, changed)
    for name, owner, child in places:
        if owner is not None:
            owner._modules[name.rpartition(".")[2]] = made[id(child)]
    return made[id(module)]


class _Change(NamedTuple):
    name: str
    old: Any
    new: Any


def _tie(module: nn.Module, changed: list[_Change]) -> None:
    """Lets new layers share parameters where the old ones do; refuses what can't be shared."""
    owners: dict[int, list[str]] = {}
    for name, layer in module.named_modules():
        for parameter in layer._parameters.values():
            owners.setdefault(id(parameter), []).append(name)
    names, first = {change.name for change in changed}, dict[int, _Change]()
    for change in changed:
        name, old, new = change
        if old.bias is not None and len(owners[id(old.bias)]) > 1:
            new.bias = old.bias
        parameter = old.values if isinstance(old, SparseLinear) else old.weight
        others = [other for other in owners[id(parameter)] if other not in names]
        one = first.setdefault(id(parameter), change)
        sparse = (one.old, old) if isinstance(old, SparseLinear) else (one.new, new)
        if others or not sparse[0].pattern.same_as(sparse[1].pattern):
            other, kept = (others[0], "stays as it is") if others else (one.name, "differs")
            raise ArgumentValueError(
                f"`{name}` shares its weight with `{other}`, which {kept}; layers that share a "
                "weight and all get the same elements are accepted. Leave them out of the rule, "
                "or give each a weight of its own."
            )
        if one is not change:
            shared = "weight" if isinstance(old, SparseLinear) else "values"
            setattr(new, shared, getattr(one.new, shared))


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
