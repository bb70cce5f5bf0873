"""Tells code of torch that updates parameters from code that computes with them.

An optimizer treats a parameter as a bag of numbers: it adds eps to each, divides one by the other,
and knows no rows or columns. For a sparse parameter these numbers are the specified elements. The
same `add_(eps)` elsewhere means every element of the tensor, the unspecified ones too, and is
refused. Which of the two is meant is decided by whose code calls: only the code of torch's own
optimizers, gradient clipping and gradient scaling, and the methods of any `torch.optim.Optimizer`,
and only where no gradient is recorded.

This looks at the frames of the stack, here and nowhere else, because torch offers nothing that
would do: its hooks around every step (`register_optimizer_step_pre_hook`) are not called for
clipping and scaling, are not called after a step that raises, so that a flag which they set would
turn later computations into wrong numbers, and do not tell a closure from the step that calls it.
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
_TRACERS = ("torch._dynamo.utils", "torch.fx.interpreter")
_BETWEEN = (
    "spgrad.core.slots",
    "torch._ops",
    "torch._tensor",
    "torch.functional",
    "torch.overrides",
)


def optimizing(func: Any = None) -> bool:
    """True in what an optimizer's step calls; to be asked from `__torch_function__` or a property.

    A closure that the step calls is not such code. What `torch.compile` traces is if it stands in
    a file of torch's optimizers.
    Adagrad fills its state when it is made, where gradients are recorded.
    """
    if torch.is_grad_enabled() and func is not torch.full_like:
        return False
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module not in _BETWEEN and frame.f_code.co_name != "__torch_function__":
            if torch.compiler.is_compiling():
                return module in _TRACERS and _traced_from().startswith(_FILES)
            return module.startswith(_UPDATING) or _of_an_optimizer(frame)
        frame = frame.f_back
    return False


def _traced_from() -> str:
    """The file of the innermost line that a trace is at, as Dynamo or its graph notes it."""
    meta = sys.modules["torch.fx.traceback"].get_current_meta()
    if "stack_trace" in meta:
        return meta["stack_trace"].rpartition('File "')[2].partition('"')[0]
    stack = TracingContext.extract_stack() if TracingContext.try_get() is not None else None
    return stack[-1].filename if stack else ""


def _of_an_optimizer(frame: FrameType) -> bool:
    """True for a method of an optimizer that is not torch's."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return names[:1] == ("self",) and isinstance(frame.f_locals.get("self"), torch.optim.Optimizer)
