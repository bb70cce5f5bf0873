"""The decorator of every public function: an error says which one was called, and with what."""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from spgrad import annotations
from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.core.refusals import jit_state, refuse_tracers
from spgrad.core.slots import above
from spgrad.errors import ArgumentKindError, SpgradError, UnsupportedError, word_as_kernels
from spgrad.torch_protocol.compile import (
    has_its_sizes,
    in_trace,
    lost_by_strict_export,
    of_data,
)
from spgrad.torch_protocol.func_transforms import is_mapped

P = ParamSpec("P")
T = TypeVar("T")
_MOST = 6
_NOTE = "in spgrad."
UNKNOWN_SIZE = (
    "torch.compile or torch.export traces the call, whose result depends on numbers that the trace "
    "does not know; a call outside of the traced function is accepted. Leave out fullgraph=True, "
    "or make the pattern before."
)
_STRICT = (
    "torch.export with strict=True traces the call, which makes a pattern whose number of elements "
    "only a run knows; strict=False, the default of torch.export, is accepted. Leave out strict, "
    "or make the pattern before."
)
_MIXED = "got mixed torch.Tensor and DTensor"
_UNMAPPED = ("doesn't have storage", "vmap: ")
"""What torch says where a kernel, or Python, reads numbers that torch.func.vmap maps over."""
_DEEPEST = 5
"""Levels of nested lists that are searched for NumPy numbers, as a list may contain itself."""


class Call(NamedTuple):
    """A call of a public function.

    Attributes:
        op: The function.
        name: Its name for users.
        args: The arguments.
        kwargs: Those by keyword.
    """

    op: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def public_op(op: Callable[P, T]) -> Callable[P, T]:
    """Wraps `op`, so that its errors name it and list its arguments.

    Where public functions call one another, an error names the one that the user called.
    """
    return public_as(op.__name__)(op)


def public_as(name: str, *, collective: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`public_op` for a function that users know by another name, such as "io.load".

    Args:
        name: The name.
        collective: Whether processes make the call together. Then it is made once, with Python's
            numbers from the start, and checks its flags itself: a process that raised alone, or
            called again, would leave the others waiting.
    """

    def decorate(op: Callable[P, T]) -> Callable[P, T]:
        flags = () if collective else annotations.flags(op)

        @functools.wraps(op)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            if collective and _has_numpys((args, kwargs)):
                again: Any = run
                return again(*_pythons(args), **_pythons(kwargs))
            try:
                if flags or jit_state() is not None:
                    _require_call(name, flags, args, kwargs)
                out = op(*args, **kwargs)
                if type(out) is not torch.Tensor:
                    _require_sizes(out)
                return out
            except Exception as given:
                refuse_tracers(name)  # torch.onnx makes tensors of numbers, which others refuse
                error = UnsupportedError(UNKNOWN_SIZE) if of_data(given) else given
                if isinstance(error, (SpgradError, TypeError)) and _has_numpys((args, kwargs)):
                    again: Any = run
                    return again(*_pythons(args), **_pythons(kwargs))
                operands = _operands(op, args, kwargs)
                word_as_kernels(error)
                _shorten(error, (*args, *kwargs.values()))
                if isinstance(error, TypeError):
                    hint = above.elsewhere(name, (*args, *kwargs.values()))
                    if hint is not None:
                        other = ArgumentKindError(hint)
                        _explain(other, name, operands)
                        raise other from None
                refused = named_error(Call(op, name, args, kwargs), error)
                if refused is not None:
                    _explain(refused, name, operands)
                    raise refused from error
                _explain(error, name, operands)
                if error is given:
                    raise
                raise error from given

        return run

    return decorate


def _require_call(name: str, flags: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses a call that torch.jit.trace or torch.onnx records, and flags that are no bool."""
    refuse_tracers(name)
    annotations.require_flags(flags, args, kwargs)


def named_error(call: Call, error: Exception) -> SpgradError | None:
    """The error that names the argument of a call where torch or Python raised one that does not.

    None if no argument explains the error, or the error names it.
    """
    return _of_a_misfit(call, error) or _of_an_argument(call.op, call.args, call.kwargs, error)


def _require_sizes(out: Any) -> None:
    """Refuses a result that a trace can't have, as it can't tell one of its sizes."""
    if torch.compiler.is_dynamo_compiling() or type(getattr(out, "_vals", None)) is torch.Tensor:
        return
    if in_trace() and _outermost():
        if lost_by_strict_export(out):
            raise UnsupportedError(_STRICT)
        if not has_its_sizes(out):
            raise UnsupportedError(UNKNOWN_SIZE)


def _outermost() -> bool:
    """Whether no other public function called the one that asks for the sizes of its result."""
    frame = sys._getframe(2)
    code, caller = frame.f_code, frame.f_back
    while caller is not None and caller.f_code is not code:
        caller = caller.f_back
    return caller is None


def _of_a_misfit(call: Call, error: Exception) -> ArgumentKindError | None:
    """The error for arguments that are too many, missing or unknown; Python lists no names."""
    if not isinstance(error, TypeError) or isinstance(error, SpgradError):
        return None
    signature = inspect.signature(call.op)
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError:
        names = [
            p.replace(annotation=p.empty, default=p.empty)
            for p in signature.parameters.values()
            if p.name != "self" and not p.name.startswith("_")
        ]
        says = str(error).partition("() ")[2] or str(error)
        accepted = f"{call.name.rpartition('.')[2]}{inspect.Signature(names)}"
        return ArgumentKindError(
            f"{says}; {accepted} is accepted. Check the names and the number of the arguments."
        )
    return None


def _of_an_argument(
    op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> SpgradError | None:
    """The error that names the argument, where torch or Python raised one that does not."""
    alien = error.__cause__ if isinstance(error, SpgradError) else error
    if alien is None or isinstance(alien, SpgradError):
        return None
    if isinstance(alien, RuntimeError) and "out of a tracing tensor" in str(alien):
        return UnsupportedError(
            "the call reads numbers of its operands, and it is traced by torch.func.linearize or "
            "make_fx, which have none for it; operands with numbers are accepted. Take "
            "torch.func.jvp, or torch.compile."
        )
    if isinstance(alien, RuntimeError) and _MIXED in str(alien):
        return _with_dtensor(op, args, kwargs)
    if isinstance(alien, RuntimeError) and any(text in str(alien) for text in _UNMAPPED):
        return _with_mapped_integers(op, args, kwargs)
    refused = annotations.refusal(op, args, kwargs, alien)
    if refused is None or alien is error or annotations.BEYOND in str(alien):
        return refused
    named = str(refused).partition("`")[2].partition("`")[0]  # the library may have named it too
    return None if f"`{named}`" in str(error) else refused


def _by_name(op: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by their names, also those in a list or tuple."""
    given = dict(inspect.signature(op).bind(*args, **kwargs).arguments)
    for name, x in tuple(given.items()):
        if type(x) in (tuple, list):
            given |= {f"{name}[{i}]": item for i, item in enumerate(x)}
    return given


def _with_mapped_integers(op: Callable[..., Any], args: Any, kwargs: Any) -> SpgradError | None:
    """The error for indices, of which torch.func.vmap has several and a call takes one."""
    for name, x in _by_name(op, args, kwargs).items():
        whole = type(x) is torch.Tensor and not (x.is_floating_point() or x.is_complex())
        if whole and is_mapped(x):
            return UnsupportedError(
                f"`{name}` has ints or bools that torch.func.vmap maps over; the same for all "
                "items are accepted. Map over values and dense numbers, or call in a loop."
            )
    return None


def _with_dtensor(op: Callable[..., Any], args: Any, kwargs: Any) -> SpgradError | None:
    """The error for a DTensor beside a SparseTensor, for which torch names a kernel alone."""
    given = _by_name(op, args, kwargs)
    names = [name for name, x in given.items() if type(x).__name__ == "DTensor"]
    if not names:
        return None
    return UnsupportedError(
        f"`{names[0]}` is a DTensor beside a SparseTensor, which each process has for itself; a "
        "plain tensor is accepted. Distribute the matrix with spgrad.distributed.distribute, "
        f"whose products take DTensors, or pass {names[0]}.full_tensor()."
    )


def _has_numpys(x: Any, depth: int = _DEEPEST) -> bool:
    """Whether NumPy numbers are among the arguments; torch takes them like Python's numbers."""
    if type(x) in (tuple, list, dict):
        items = x.values() if type(x) is dict else x
        return depth > 0 and any(_has_numpys(item, depth - 1) for item in items)
    return type(x).__module__ == "numpy" and getattr(x, "shape", None) == ()


def _pythons(x: Any, depth: int = _DEEPEST) -> Any:
    """Arguments with Python's numbers in place of those of NumPy."""
    if type(x) not in (tuple, list, dict):
        if not _has_numpys(x):
            return x
        number = x.item()  # of a long double the same once more; Python has none
        if type(number) is type(x):
            return complex(x) if x.dtype.kind == "c" else float(x)
        return number
    if not depth:
        return x
    if type(x) is dict:
        return {name: _pythons(value, depth - 1) for name, value in x.items()}
    return type(x)(_pythons(item, depth - 1) for item in x)


def _shorten(error: Exception, given: tuple[Any, ...]) -> None:
    """Writes an argument in one line where the text has its repr, as that of an array has many."""
    if isinstance(error, SpgradError) and error.args and "\n" in error.args[0]:
        text = error.args[0]
        for value in given:
            if isinstance(value, (torch.Tensor, tuple, list, dict)) or hasattr(value, "dtype"):
                text = text.replace(repr(value), _SHORT.repr(value))
        error.args = (text, *error.args[1:])


def _explain(error: Exception, name: str, operands: str) -> None:
    """Adds the call to `error`; an outer public function overwrites it with its own call."""
    if isinstance(error, SpgradError):
        if not error.in_gradient:
            error.function, error.operands, error.expression = name, operands, ""
    elif hasattr(error, "add_note"):  # Python 3.11
        called = f"{_NOTE}{name}, called with {operands}" if operands else f"{_NOTE}{name}"
        notes = [n for n in vars(error).get("__notes__", ()) if not n.startswith(_NOTE)]
        vars(error)["__notes__"] = [*notes, called]


def _operands(op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call by their names, such as "A: csr (3, 4) nse 5 float32, dim: 1"."""
    signature = inspect.signature(op)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python's own error already says that they do not fit the signature
        return ""
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    if op.__name__ == "__init__" or isinstance(given.get("self"), torch.nn.Module):
        given.pop("self", None)  # which is not made yet, or is as long as a layer's repr
    shown = [f"{name}: {_SHORT.repr(value)}" for name, value in given.items()]
    return ", ".join([*shown[:_MOST], *(["..."] if len(shown) > _MOST else [])])


class _Short(reprlib.Repr):
    """`repr`, short, and with kind and shape in place of a tensor's numbers."""

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, torch.Tensor):
            return _of_tensor(x)
        if type(x).__name__ == "Pattern":
            return f"{x.name} {tuple(x.shape)} nse {x.nse}"
        found = x.__name__ if inspect.isroutine(x) else super().repr1(x, level)
        return " ".join(found.split())  # the repr of SciPy's arrays has two lines


def _of_tensor(x: torch.Tensor) -> str:
    pattern = getattr(x, "_pattern", None)
    if x.is_nested:  # which has no shape
        kind = f"nested {_dtype(x)}"
    elif pattern is not None:
        kind = f"{pattern.name} {tuple(pattern.shape)} nse {pattern.nse} {_dtype(x)}"
    elif x.layout in LAYOUT_NAMES:
        kind = f"native {LAYOUT_NAMES[x.layout]} {tuple(x.shape)} nse {x._nnz()} {_dtype(x)}"
    else:
        kind = f"{_dtype(x)} {tuple(x.shape)}"
    return kind if x.device.type == "cpu" else f"{kind} on {x.device}"


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


_SHORT = _Short()
_SHORT.maxtuple = _SHORT.maxlist = _SHORT.maxdict = 4
_SHORT.maxlevel = 2
_SHORT.maxother = _SHORT.maxstring = 60
