"""The switch of drop-in mode: a context manager, a decorator, and on and off for a program."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch.overrides import _get_current_function_mode

from spgrad.dropin import hooks
from spgrad.dropin.mode import Mode
from spgrad.dropin.state import state
from spgrad.errors import ArgumentValueError, StateError

F = TypeVar("F", bound=Callable[..., Any])

_FALLBACKS = ("torch", "warn", "refuse")
_TURNS = threading.local()


class dropin:  # noqa: N801
    """Drop-in mode: while it is on, torch's sparse functions run on spgrad and give SparseTensors.

    Within the block, every constructor and conversion of torch gives a SparseTensor. Native sparse
    tensors that are passed to a function are taken as SparseTensors. A call that spgrad refuses is
    computed by torch on native tensors. Outside of the block, nothing of torch is changed. The mode
    is on only in the thread that turns it on. Blocks nest; the `fallback` of the inner one counts.

    Args:
        fallback: What to do with a call that spgrad refuses: "torch" lets torch try it on native
            tensors, "warn" does so with a warning, and "refuse" raises spgrad's error.

    Returns:
        A context manager that decorates functions as well, with `enable` and `disable` for a whole
        program.

    Gradient:
        On the pattern of the sparse operand, also if torch computed the result.

    Cost:
        A microsecond or so for each call of a torch function.

    Raises:
        ValueError: `fallback` is something else.

    Example:
        >>> with spgrad.dropin():
        ...     A = torch.eye(3).to_sparse().requires_grad_()
        ...     torch.sparse.mm(A, torch.ones(3, 2)).sum().backward()
        >>> type(A.grad).__name__, A.grad.values()
        ('SparseTensor', tensor([2., 2., 2.]))
    """

    def __init__(self, fallback: str = "torch") -> None:
        if fallback not in _FALLBACKS:
            raise ArgumentValueError(
                f"`fallback` is {fallback!r}; {', '.join(map(repr, _FALLBACKS))} "
                "are accepted. Leave it out for 'torch'.",
                function="dropin",
            )
        self.fallback = fallback

    def __enter__(self) -> dropin:
        if not state.fallbacks:
            mode = _TURNS.mode = Mode()
            hooks.install()
            mode.__enter__()
        state.fallbacks.append(self.fallback)
        return self

    def __exit__(self, *error: Any) -> None:
        if not state.fallbacks:
            raise StateError(
                "the mode is not on in this thread; `disable` is accepted after "
                "`enable`. Call it in the thread that enabled the mode.",
                function="dropin",
            )
        if len(state.fallbacks) == 1:
            if _get_current_function_mode() is not _TURNS.mode:
                raise StateError(
                    "another torch function mode was entered within this one and is "
                    "still on; modes are left in the opposite order. Leave that one first.",
                    function="dropin",
                )
            _TURNS.mode.__exit__(*(error or (None, None, None)))
            hooks.remove()
        state.fallbacks.pop()

    def __call__(self, function: F) -> F:
        """`function` in drop-in mode."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with dropin(self.fallback):
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]

    def enable(self) -> None:
        """Turns the mode on in this thread until `disable`."""
        self.__enter__()

    def disable(self) -> None:
        """Turns off what `enable` turned on."""
        self.__exit__()
