"""What spgrad raises.

::

    SpgradError
    |-- ArgumentKindError    (TypeError)            not the kind of object that is accepted
    |-- ArgumentValueError   (ValueError)           wrong shape, dtype or device
    |   |-- ArgumentIndexError (IndexError)         an index or dimension that is not there
    |   `-- MissingFileError (FileNotFoundError)    a path that leads to no file or folder
    |-- ConvergenceError     (RuntimeError)         an iteration ended before its tolerance
    |-- MissingPackageError  (ImportError)          an optional package is not installed
    |-- PivotError           (RuntimeError)         a zero or wrong pivot; also torch's LinAlgError
    |-- StateError           (RuntimeError)         a tensor that has to be changed first
    `-- UnsupportedError     (NotImplementedError)  outside the support table

Each is also the built-in exception beside it, so that ``except ValueError`` keeps working.

The code that raises an error says what is wrong; ``spgrad.public`` adds the public function that
the user called and its arguments. ``str(error)`` joins the three.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    LinAlgError = RuntimeError
else:
    try:
        from torch.linalg import LinAlgError
    except ImportError:  # this torch is too old; spgrad.torch_protocol.requirement says so
        LinAlgError = RuntimeError


class SpgradError(Exception):
    """The base of everything that spgrad raises on purpose.

    Attributes:
        function: The public function that was called, such as "mm"; None where there was none.
        expression: How the user wrote the call, such as "A[7]", where it was not by that name.
        operands: What it was called with: names, kinds and shapes.
        in_gradient: Whether its gradient was computed, in a backward.
    """

    in_gradient = False
    expression = ""

    def __init__(self, *args: object, function: str | None = None) -> None:
        super().__init__(*args)
        self.function = function
        self.operands = ""

    def __str__(self) -> str:
        function = f"spgrad.{self.function}" if self.function else "spgrad"
        function = f"spgrad, in {self.expression}" if self.expression else function
        function += ", in its gradient" if self.in_gradient else ""
        called = f"\n  called with {self.operands}" if self.operands else ""
        return f"{function}: {super().__str__()}{called}"

    def __repr__(self) -> str:  # torch.compile shows only the repr of an error
        return f"{type(self).__name__}({str(self)!r})"


class ArgumentKindError(SpgradError, TypeError):
    """An argument is of a kind that the function does not take."""


class ArgumentValueError(SpgradError, ValueError):
    """An argument has a shape, dtype, device or index that the function can't use."""


class ArgumentIndexError(ArgumentValueError, IndexError):
    """An index or the number of a dimension is out of range."""


class MissingFileError(ArgumentValueError, FileNotFoundError):
    """A path leads to no file, or to no folder where a file is to be written."""


class ConvergenceError(SpgradError, RuntimeError):
    """An iterative solver ended before its tolerance.

    Attributes:
        info: A `spgrad.linalg.Info` with the iterations, residuals and the reason.
        x: What the iteration had found when it ended, without a gradient; may be None. Both are of
            `spgrad.linalg.solve` in the shapes that it returns.
    """

    def __init__(self, *args: object, info: Any = None, x: Any = None) -> None:
        super().__init__(*args)
        self.info = info
        self.x = x


class MissingPackageError(SpgradError, ImportError):
    """A package that only this function needs is not installed."""


class PivotError(SpgradError, LinAlgError):
    """An element that a solve or a factorisation divides by is zero, missing or not positive."""


class StateError(SpgradError, RuntimeError):
    """A tensor is not in the state that the function needs, such as coalesced."""


class UnsupportedError(SpgradError, NotImplementedError):
    """The support table does not list this operation for this layout."""


def in_gradient_of(function: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Lets errors of a backward name the function whose gradient it computes."""

    def decorate(backward: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(backward)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return backward(*args, **kwargs)
            except SpgradError as error:
                if error.function is None:
                    error.function, error.in_gradient = function, True
                raise

        return run

    return decorate


_OF_TORCH = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes")


def of_memory(error: Exception) -> bool:
    """Whether an allocation failed, which says nothing about the arguments."""
    from torch import OutOfMemoryError

    if isinstance(error, (MemoryError, OutOfMemoryError)):
        return True
    texts = "out of memory", "DefaultCPUAllocator: "
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def word_as_kernels(error: Exception) -> None:
    """Words a failed allocation of torch as the kernels word theirs; it stays a RuntimeError."""
    found = _OF_TORCH.search(str(error)) if type(error) is RuntimeError else None
    if found is not None:
        wanted = int(found[1])
        text = (
            f"spgrad: out of memory: the system has no {wanted} bytes ({wanted / 1e9:.1f} GB), "
            "which are wanted at once. Free other tensors, or work on a part at a time."
        )
        error.args = (text,)
