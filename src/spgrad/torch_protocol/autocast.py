"""Operations under `torch.autocast`.

Products have the precision that torch's own products have there. Solves, factors, eigenvalues and
what is made of them have that of their operands, forwards and backwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
_CAST = (torch.float32, torch.bfloat16, torch.float16)


def lowered(product: Callable[P, T]) -> Callable[P, T]:
    """`product` with its operands in autocast's dtype if autocast is on for their device."""

    @functools.wraps(product)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch._C._is_any_autocast_enabled():
            args = tuple(map(in_its_dtype, args))  # type: ignore[assignment]
            kwargs = {k: in_its_dtype(v) for k, v in kwargs.items()}  # type: ignore[assignment]
        return product(*args, **kwargs)

    return run


def in_given_precision(function: Callable[P, T]) -> Callable[P, T]:
    """`function` without autocast, whose dtypes have too few digits for it."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        with torch._C._DisableAutocast():
            return function(*args, **kwargs)

    return run


def in_its_dtype(x: Any) -> Any:
    """A tensor in autocast's dtype if autocast is on for its device; anything else as it is."""
    if not isinstance(x, torch.Tensor) or x.dtype not in _CAST:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type)) if converts(x) else x


def converts(x: torch.Tensor) -> bool:
    """Whether autocast is on for the device of a tensor."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
