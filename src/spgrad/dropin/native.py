"""Calls that torch answers: SparseTensors become native tensors, and its results SparseTensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from spgrad.core.interop import from_torch, to_torch
from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.core.refusals import scripted
from spgrad.core.tensor import SparseTensor
from spgrad.dropin.outputs import become
from spgrad.errors import SpgradError
from spgrad.torch_protocol.inplace import is_in_place

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_POINTERS = {
    torch.sparse_csr: torch.Tensor.crow_indices,
    torch.sparse_bsr: torch.Tensor.crow_indices,
    torch.sparse_csc: torch.Tensor.ccol_indices,
    torch.sparse_bsc: torch.Tensor.ccol_indices,
}


def mapped(fn: Callable[[torch.Tensor], Any], x: Any) -> Any:
    """`x` with `fn` of each tensor in it, in lists, tuples and dictionaries too."""
    if isinstance(x, torch.Tensor):
        return fn(x)
    kind = type(x)
    if kind is list or kind is tuple:
        return kind(mapped(fn, y) for y in x)
    if kind is dict:
        return {name: mapped(fn, y) for name, y in x.items()}
    if isinstance(x, tuple) and kind is not torch.Size:
        parts = [mapped(fn, y) for y in x]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)  # type: ignore[call-arg]
    return x


def is_native(x: torch.Tensor) -> bool:
    """True for a sparse tensor of torch's own class."""
    return type(x) in _PLAIN and x.layout in LAYOUT_NAMES


def sparsed(x: Any) -> Any:
    """`x` with SparseTensors in place of native sparse tensors."""
    return mapped(lambda t: from_torch(t) if is_native(t) else t, x)


def made_by_torch(x: Any) -> Any:
    """The results of a function of torch, with SparseTensors in place of native sparse tensors."""
    return mapped(lambda t: _taken_over(t) if is_native(t) else t, x)


def _taken_over(t: torch.Tensor) -> SparseTensor:
    """A result of torch's as a SparseTensor; a leaf, such as torch.zeros gives, stays one."""
    with torch._C.DisableTorchFunction():
        if t.layout in _POINTERS and t._nnz() == 0 and not t.is_meta:
            pointers = _POINTERS[t.layout](t)
            if pointers.any():  # torch.empty and its like do not initialise the pointers
                pointers.zero_()
        leaf = t.is_leaf and t.requires_grad
        found = from_torch(t.detach() if leaf else t)
        return found.requires_grad_() if leaf else found  # type: ignore[return-value]


def changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call of `func` writes to."""
    found = []
    mapped(found.append, kwargs.get("out"))
    name = getattr(func, "__name__", "")
    if is_in_place(name) and args and isinstance(args[0], torch.Tensor):
        found.append(args[0])
    return found


def fall_back(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, *, warn: bool
) -> Any:
    """Runs a call in torch after spgrad raised `error`; gives torch's result or exception."""
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def lower(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, SparseTensor):
            return x
        if id(x) not in pairs:
            pairs[id(x)] = (x, to_torch(x))
        return pairs[id(x)][1]

    try:
        given, options = mapped(lower, args), mapped(lower, kwargs)
    except SpgradError:  # torch has no such tensor, a ragged batch for example
        raise error from None
    if warn:
        name = getattr(func, "__name__", func)
        warnings.warn(f"torch computes {name}, which spgrad refuses: {error}", stacklevel=4)
    _require_changeable(func, args, kwargs)
    try:
        result = func(*given, **options)
    except Exception as theirs:
        raise theirs from error
    for x in changed(func, args, kwargs):
        if isinstance(x, SparseTensor):
            become(x, from_torch(pairs[id(x)][1]))
    known = {id(low): x for x, low in pairs.values()}
    return mapped(lambda t: known.get(id(t)) if id(t) in known else made_by_torch(t), result)


def run_script(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs code of TorchScript, which knows no SparseTensor, on native tensors."""
    return fall_back(func, args, kwargs, scripted(func), warn=False)


def _require_changeable(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises torch's error for a change in place that the native copy of a leaf would allow."""
    for x in changed(func, args, kwargs):
        leaf = isinstance(x, SparseTensor) and x.is_leaf and x.requires_grad
        if leaf and torch.is_grad_enabled():
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation."
            )
