"""The torch function mode, which decides whether spgrad or torch runs a torch function."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.core.refusals import SCRIPTED, jit_traces
from spgrad.core.slots import TORCH_FUNCTIONS
from spgrad.core.tensor import SparseTensor
from spgrad.dropin import constructors, native, outputs, torch_semantics
from spgrad.dropin.state import state
from spgrad.errors import SpgradError, of_memory
from spgrad.torch_protocol.arguments import as_ours
from spgrad.torch_protocol.callers import optimizing
from spgrad.torch_protocol.compile import traced

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Mode(TorchFunctionMode):
    """Sends torch functions on sparse tensors to spgrad, and refused calls back to torch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        ours = bool(types) and SparseTensor in types
        if not ours and jit_traces():  # torch.jit.trace follows native tensors alone
            return func(*args, **kwargs)
        construct = constructors.CONSTRUCTORS.get(func)
        if construct is not None and not optimizing(func):
            made = construct(func, args, kwargs)
            if made is not NotImplemented:
                return made
        if not ours and not _native_among(args) and not (kwargs and _asks_sparse(kwargs)):
            return func(*args, **kwargs)
        if ours and func in torch_semantics.LEFT_TO_TORCH and traced(shown=True):
            return SparseTensor.__torch_function__(func, types, args, kwargs)
        # torch's optimizers treat the native gradient of an embedding in their own way
        if optimizing(func):
            if not ours:
                return func(*args, **kwargs)
            return SparseTensor.__torch_function__(func, types, args, kwargs)
        return _call(func, types if ours else (), args, kwargs)


def _native_among(args: tuple[Any, ...]) -> bool:
    for a in args:
        kind = type(a)
        if kind in _PLAIN:
            if a.layout is not torch.strided:
                return True
        elif (kind is tuple or kind is list) and _native_among(a):
            return True
    return False


def _asks_sparse(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("layout") in LAYOUT_NAMES or _native_among(tuple(kwargs.values()))


def _call(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a call that has a sparse operand, or a sparse layout as an option."""
    if type(func) is SCRIPTED:
        return native.run_script(func, args, kwargs)
    if not types and getattr(func, "__name__", "") in ("__get__", "__set__"):
        return func(*args, **kwargs)  # attributes of a native tensor are its own
    try:
        if outputs.has_out(kwargs):
            rest = {name: value for name, value in kwargs.items() if name != "out"}
            return outputs.store(_call(func, types, args, rest), kwargs["out"])
        return _answer(func, types, args, kwargs)
    except (SpgradError, TypeError, RuntimeError) as error:
        if of_memory(error) or jit_traces():
            raise
        refused = not isinstance(error, torch_semantics.LeftToTorchError)
        wish = state.fallbacks[-1] if refused else "torch"
        if wish == "refuse" or TORCH_FUNCTIONS.get(func) in torch_semantics.REFUSALS:
            raise
        return native.fall_back(func, args, kwargs, error, warn=wish == "warn")


def _answer(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of spgrad, which raises if it refuses the call."""
    own = torch_semantics.TORCH_SEMANTICS.get(func)
    if own is None and func not in TORCH_FUNCTIONS:
        if not types:  # no SparseTensor, only native tensors or a sparse layout as an option
            return _changed_or_sparse(func, args, kwargs)
        return native.made_by_torch(SparseTensor.__torch_function__(func, types, args, kwargs))
    if not types and native.changed(func, args, kwargs):
        return _changed_or_sparse(func, args, kwargs)
    sparse, options = native.sparsed(args), native.sparsed(kwargs)
    of_sparse = isinstance(sparse[0] if sparse else None, SparseTensor)
    if own is not None and (of_sparse or func not in TORCH_FUNCTIONS):
        return own(*sparse, **as_ours(func, options))
    return outputs.in_place(TORCH_FUNCTIONS[func], sparse, as_ours(func, options))


def _changed_or_sparse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's result for native tensors: the tensor changed in place, or a new SparseTensor."""
    result = func(*args, **kwargs)
    return result if args and result is args[0] else native.made_by_torch(result)
