"""In-place forms: the result of an operation, stored in its first operand."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor, requires_grad
from spgrad.errors import ArgumentValueError, StateError

_NEW_RESULT: dict[Callable[..., Any], Callable[..., Any]] = {}
"""In-place form -> its operation."""


def is_in_place(torch_name: str) -> bool:
    """True for torch's names of in-place forms, such as `torch.Tensor.abs_` and `__iadd__`."""
    last = torch_name.rpartition(".")[2]
    return bool(re.fullmatch(r"[a-z]\w*_|__i(?!nvert)\w+__|__setitem__", last))


def in_place(name: str, op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The in-place form of an operation of this name."""

    @functools.wraps(op)
    def run(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # autograd may save the operands, so the operation reads a copy of the tensor to overwrite
        kept = torch.is_grad_enabled() and isinstance(input, SparseTensor) and requires_grad(input)
        return store(name, input, op(input.clone() if kept else input, *args, **kwargs))

    _NEW_RESULT[run] = op
    return run


def with_new_result(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The operation whose in-place form is `function`; None if there is none."""
    return _NEW_RESULT.get(function)


def store(name: str, input: torch.Tensor, result: torch.Tensor) -> Any:
    """Puts `result` into `input`, if dtype and pattern allow this."""
    own, new = checks.values_of(input).dtype, checks.values_of(result).dtype
    if not torch.can_cast(new, own):
        raise ArgumentValueError(
            f"`input` has dtype {checks.short(own)}, and the result {checks.short(new)}; a dtype "
            f"that holds the result is accepted. Use spgrad.{name}, which returns it.",
            function=f"{name}_",
        )
    text = (
        f"the result is {_elements(result)}, and `input` {_elements(input)}; in place, a "
        f"result with the elements of `input` is accepted. Use spgrad.{name}, which returns it."
    )
    if isinstance(input, SparseTensor) and isinstance(result, SparseTensor):
        same = input._pattern.agrees_with(result._pattern, text)
    else:
        mixed = isinstance(input, SparseTensor) or isinstance(result, SparseTensor)
        same = not mixed and input.shape == result.shape
    if not same:
        raise StateError(text, function=f"{name}_")
    return input.copy_(result)


def _elements(x: torch.Tensor) -> str:
    if isinstance(x, SparseTensor):
        state = "" if x._pattern.coalesced else "uncoalesced "
        return f"{state}{x._pattern.name} of shape {tuple(x.shape)} with nse {x.nse}"
    return f"dense of shape {tuple(x.shape)}"
