"""Calls on a SparseTensor that torch itself would execute, in torch.func and in torch.export.

torch.func wraps every tensor that reaches its dispatcher in a tensor that is no SparseTensor. The
dispatcher of torch.export knows no wrapper that an operation made. So these calls act on the
values, or are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import UnsupportedError

_DETACH = (torch.Tensor.detach, torch.detach)
_OF_VALUES = {
    getattr(torch.Tensor, name)
    for name in (
        "bfloat16",
        "bool",
        "byte",
        "cdouble",
        "cfloat",
        "chalf",
        "char",
        "contiguous",
        "cpu",
        "cuda",
        "double",
        "float",
        "half",
        "int",
        "long",
        "positive",
        "resolve_conj",
        "resolve_neg",
        "short",
        "to",
        "type",
    )
} | {torch.positive, torch.resolve_conj, torch.resolve_neg}
"""Functions that give a tensor on the same pattern, or its dtype."""


def inside_transform(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> Any:
    """What a torch function without a spgrad function gives inside of a transform."""
    first = args[0] if args else None
    if isinstance(first, SparseTensor):
        if func in _DETACH:
            return SparseTensor(first._vals.detach(), first._pattern)
        if func in _OF_VALUES:
            out = func(stored_values(first), *args[1:], **(kwargs or {}))
            if not isinstance(out, torch.Tensor):  # the name of a dtype
                return out
            return on_pattern(out, first._pattern.moved(out.device))
        if func is torch.Tensor.copy_ and torch.compiler.is_exporting():
            return _copied_into(first, *args[1:], **(kwargs or {}))
    with torch._C.DisableTorchFunctionSubclass():
        out = func(*args, **(kwargs or {}))
    if _hides_a_sparse_tensor(out):
        raise UnsupportedError(
            f"torch's {getattr(func, '__name__', func)} of a SparseTensor is called in a transform "
            "of torch.func; functions of spgrad are accepted there. Call it before the transform, "
            "or on the values: spgrad.from_values(function(A.values()), A)."
        )
    return out


def _copied_into(A: SparseTensor, source: Any, non_blocking: bool = False) -> SparseTensor:
    """A with the values of `source`; exported programs are for inference alone."""
    if not isinstance(source, SparseTensor) or not A._pattern.same_as(source._pattern):
        raise UnsupportedError(
            "torch.export traces a call of copy_ whose `source` is no SparseTensor that shares the "
            "pattern of `self`; one that does is accepted. Use spgrad.from_values."
        )
    A._vals.copy_(source._vals, non_blocking)
    return A


def _hides_a_sparse_tensor(out: Any) -> bool:
    while type(out) is torch.Tensor and is_functorch_wrapped_tensor(out):
        out = get_unwrapped(out)
        if isinstance(out, SparseTensor):
            return True
    return False
