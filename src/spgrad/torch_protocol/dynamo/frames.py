"""Functions that Dynamo does not compile when Python calls them, outside of the graphs.

Importing Dynamo doubles the time that ``import torch`` takes, so functions wait until it is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

DYNAMO = "torch._dynamo"
_UNREAD: set[CodeType] = set()


def when_called(function: Callable[..., Any]) -> None:
    """Keeps Dynamo, once imported, from compiling `function` and its callees on their own.

    Such calls come from code that a graph break left to Python, where Dynamo would find nothing to
    compile. Inside a graph, Dynamo reads the function like any other. The rule applies to a code
    object, and so to all functions that one decorator made.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return
    if DYNAMO in sys.modules:
        _leave_alone(code)
    else:
        _UNREAD.add(code)


def leave_all_alone() -> None:
    """Keeps Dynamo, which is imported now, from compiling the functions that wait."""
    for code in _UNREAD:
        _leave_alone(code)
    _UNREAD.clear()


def _leave_alone(code: CodeType) -> None:
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    eval_frame.set_code_exec_strategy(code, skip)
