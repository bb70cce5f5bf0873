"""Decides whether the caller is an optimizer step, gradient clipping or gradient scaling.

An optimizer treats a parameter as a bag of numbers: it adds eps to each, divides one by the other,
and knows no rows or columns. For a sparse parameter these numbers are the specified elements. The
same `add_(eps)` elsewhere means every element of the tensor, the unspecified ones too, and is
refused. The caller decides which of the two is meant. Arithmetic applies to the specified elements
where torch's own optimizers, gradient clipping or gradient scaling, or a method of any
`torch.optim.Optimizer`, calls it, and no gradient is recorded.

This module reads the frames of the stack, because the hooks that torch calls around every step
(`register_optimizer_step_pre_hook`) do not suffice: torch does not call them for clipping and
scaling, nor after a step that raises, so that a flag which they set would turn later computations
into wrong numbers, and they do not tell a closure from the step that calls it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._guards import TracingContext

_UPDATING = ("torch.optim.", "torch.nn.utils.clip_grad", "torch.amp.grad_scaler")
_FILES = tuple(
    str(Path(torch.__file__).parent / part)
    for part in ("optim/", "nn/utils/clip_grad.py", "amp/grad_scaler.py")
)
_ALSO_RECORDED = (torch.full_like, torch._foreach_zero_)
_TRACERS = ("torch._dynamo.utils", "torch.fx.interpreter")
_BETWEEN = frozenset(
    ("spgrad.core.slots", "torch._ops", "torch._tensor", "torch.functional", "torch.overrides")
)


def optimizing(func: Any = None) -> bool:
    """True if an optimizer's step called the `__torch_function__` or property that asks.

    A closure that the step calls does not count. Code that `torch.compile` traces counts if it is
    in a file of torch's optimizers. Two functions also count while gradients are recorded: with
    `torch.full_like` the constructor of Adagrad fills its state, and with `torch._foreach_zero_`
    `zero_grad(set_to_none=False)` clears gradients.
    """
    if torch.is_grad_enabled() and func not in _ALSO_RECORDED:
        return False
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module not in _BETWEEN and frame.f_code.co_name != "__torch_function__":
            if torch.compiler.is_compiling():
                return module in _TRACERS and updates(_traced_from())
            return module.startswith(_UPDATING) or _of_an_optimizer(frame)
        frame = frame.f_back
    return False


def optimizer_file() -> str:
    """The file of the innermost function of torch's optimizers on the stack; "" for none."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_FILES[0]):
            return frame.f_code.co_filename
        frame = frame.f_back
    return ""


def updates(file: str) -> bool:
    """True for a file of torch's optimizers, gradient clipping or gradient scaling."""
    return file.startswith(_FILES)


def _traced_from() -> str:
    """The file of the innermost line that is being traced, as Dynamo or its graph notes it."""
    meta = sys.modules["torch.fx.traceback"].get_current_meta()
    if "stack_trace" in meta:
        return meta["stack_trace"].rpartition('File "')[2].partition('"')[0]
    stack = TracingContext.extract_stack() if TracingContext.try_get() is not None else None
    return stack[-1].filename if stack else ""


def _of_an_optimizer(frame: FrameType) -> bool:
    """True for a frame of a method of any `torch.optim.Optimizer`."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return names[:1] == ("self",) and isinstance(frame.f_locals.get("self"), torch.optim.Optimizer)
