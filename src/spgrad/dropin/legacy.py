"""Replaces `torch.sparse.FloatTensor` and its siblings, and calls of functions of torch.jit.

No function mode sees these calls.
"""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core.interop import from_torch
from spgrad.core.refusals import SCRIPTED_FUNCTION
from spgrad.core.tensor import SparseTensor
from spgrad.dropin.native import made_by_torch, mapped, run_script
from spgrad.dropin.state import state

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
}
_REPLACED: dict[str, Any] = {}


class _Stand(type):
    """A class in place of one of torch's: makes SparseTensors where the mode is on."""

    native: Any
    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = cls.native(*args, **kwargs)
        return from_torch(made) if state.fallbacks else made

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, SparseTensor):
            return instance._pattern.is_coo and instance.dtype == cls.dtype
        return isinstance(instance, cls.native)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.native, name)


_CALL = SCRIPTED_FUNCTION.__call__


def _call_script(function: Any, *args: Any, **kwargs: Any) -> Any:
    """As a call of `function`; where the mode is on, on native tensors."""
    if not state.fallbacks:
        return _CALL(function, *args, **kwargs)
    found: list[torch.Tensor] = []
    mapped(found.append, (args, kwargs))
    if any(isinstance(x, SparseTensor) for x in found):
        return run_script(function, args, kwargs)
    return made_by_torch(_CALL(function, *args, **kwargs))


def install() -> None:
    """Puts the stand-ins in place."""
    setattr(SCRIPTED_FUNCTION, "__call__", _call_script)  # noqa: B010
    for name, dtype in _DTYPES.items():
        native = getattr(torch.sparse, name, None)
        if native is not None:
            _REPLACED[name] = native
            stand = _Stand(name, (), {"native": native, "dtype": dtype})
            setattr(torch.sparse, name, stand)


def remove() -> None:
    """Puts torch's classes back."""
    setattr(SCRIPTED_FUNCTION, "__call__", _CALL)  # noqa: B010
    for name, native in _REPLACED.items():
        setattr(torch.sparse, name, native)
    _REPLACED.clear()
