"""What users write for arguments: NumPy's names, other objects than tensors, index expressions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from spgrad.errors import SpgradError, UnsupportedError

_NUMPYS = {"axis": "dim", "keepdims": "keepdim"}
_OTHERS = frozenset([*_NUMPYS, "out"])


_OF_NAMES = ("Expected one of cpu, ", "invalid type: ")
"""How torch's errors begin for a str that names no device, and for one that names no dtype."""


def of_arguments(error: Exception) -> bool:
    """True for an error of torch or Python about the kinds or the number of the arguments."""
    if isinstance(error, SpgradError):
        return False
    return isinstance(error, TypeError) or str(error).startswith(_OF_NAMES)


def as_ours(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of torch's `func`, under spgrad's names.

    torch also accepts NumPy's names. An `out` that is None is left out; a tensor is refused.
    """
    if _OTHERS.isdisjoint(kwargs):
        return kwargs
    if kwargs.get("out") is not None:
        name = getattr(func, "__name__", str(func))
        raise UnsupportedError(
            "`out` is a tensor; None is accepted. Take the result that is returned.", function=name
        )
    found = {}
    for name, value in kwargs.items():
        ours = _NUMPYS.get(name, name)
        if name != "out":
            # under torch's name, so Python refuses an argument that is given twice
            found[name if ours in kwargs else ours] = value
    return found


_EXPRESSIONS = {
    "__getitem__": "A[{}]",
    "__setitem__": "A[{}] = {}",
    **dict.fromkeys(("__rtruediv__", "__rdiv__"), "{} / A"),
    "__rfloordiv__": "{} // A",
    "__rmod__": "{} % A",
    "__rpow__": "{} ** A",
    **{f"__{kind}__": f"{kind}(A)" for kind in ("bool", "complex", "float", "int")},
}
"""Methods that Python calls for an expression, and how users write it; A is the tensor."""


def as_written(torch_name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    """`op` for a name of torch such as "torch.Tensor.__bool__": its errors name the expression."""
    form = _EXPRESSIONS.get(torch_name.rpartition(".")[2])
    if form is None:
        return op

    @functools.wraps(op)
    def run(A: Any, *operands: Any) -> Any:
        try:
            return op(A, *operands)
        except SpgradError as error:
            if len(operands) == form.count("{}"):  # else it was called by name, with too few
                error.expression = form.format(*map(_code, operands))
            raise

    return run


def _code(x: Any) -> str:
    """A part of an expression as Python writes it, if it is short; its class otherwise."""
    if isinstance(x, slice):
        start, stop, step = ("" if end is None else _code(end) for end in (x.start, x.stop, x.step))
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
    if isinstance(x, tuple):
        return ", ".join(map(_code, x))
    if x is Ellipsis:
        return "..."
    plain = x is None or type(x) in (bool, int, float, complex, str, list)
    written = repr(x) if plain else ""
    return written if 0 < len(written) <= 40 and "\n" not in written else type(x).__name__
