"""Replaces parts of torch while drop-in mode is on in a thread, and restores them afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

from spgrad.core.interop import to_torch
from spgrad.core.slots import above
from spgrad.core.tensor import SparseTensor
from spgrad.dropin import legacy
from spgrad.dropin.native import fall_back
from spgrad.dropin.state import state
from spgrad.errors import SpgradError

_LOCK = threading.Lock()
_ORIGINAL: dict[str, Callable[..., Any]] = {}
_USERS = [0]  # threads in which the mode is on


def install() -> None:
    """Replaces the parts of torch when the first thread turns the mode on."""
    with _LOCK:
        _USERS[0] += 1
        if _USERS[0] > 1:
            return
        legacy.install()
        _ORIGINAL.update(describe=above.describe, reduced=above.reduced, refused=above.refused)
        above.fill(describe=_describe, reduced=_reduced, refused=_refused)


def remove() -> None:
    """Restores the parts of torch when the last thread turns the mode off."""
    with _LOCK:
        _USERS[0] -= 1
        if _USERS[0]:
            return
        legacy.remove()
        above.fill(**_ORIGINAL)


def _reduced(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of a method; without `specified` that of the mode, which does not see the call."""
    if not state.fallbacks or "specified" in (kwargs or {}):
        return _ORIGINAL["reduced"](func, args, kwargs)
    return func(*args, **(kwargs or {}))


def _refused(func: Any, args: tuple[Any, ...], error: SpgradError) -> Any:
    """Torch's result for a method that spgrad refuses; function modes don't see these calls."""
    if not state.fallbacks or state.fallbacks[-1] == "refuse":
        raise error
    with torch._C.DisableTorchFunction():
        return fall_back(func, args, {}, error, warn=False)


def _describe(A: SparseTensor) -> str:
    """The text of A; while the mode is on, as torch prints its own sparse tensors."""
    describe = _ORIGINAL["describe"]
    if not state.fallbacks:
        return describe(A)
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            x = to_torch(SparseTensor(A._vals.detach(), A._pattern))
        except SpgradError:  # torch has no ragged batches
            return describe(A)
        if A.requires_grad and A.grad_fn is None:
            x.requires_grad_()
        text = _tensor_str._str(x)
    if A.grad_fn is not None:
        text = f"{text[:-1]}, grad_fn=<{type(A.grad_fn).__name__}>)"
    return text
