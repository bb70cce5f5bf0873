"""Operators and attributes of tensors that a sharded matrix lacks: errors that say what to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from spgrad.distributed.functions.torch_names import NO_RIGHT_PRODUCT, form_of_method
from spgrad.errors import UnsupportedError


def _refused(text: str) -> UnsupportedError:
    return UnsupportedError(text, function="distributed.ShardedMatrix")


def _without(shown: str, hint: str) -> Callable[..., NoReturn]:
    """The method of an operator that has no form for a sharded matrix."""

    def method(self: object, *_: object, **__: object) -> NoReturn:
        raise _refused(
            f"a ShardedMatrix has no form of {shown}; products, sums, scaling and functions of "
            f"single values are accepted. {hint}"
        )

    return method


def _compared(sign: str) -> Callable[..., NoReturn]:
    return _without(
        f"D {sign} other", f"Compare the values alone by D.map(lambda values: values {sign} other)."
    )


def _by_map(shown: str) -> Callable[..., NoReturn]:
    return _without(shown, "Call D.map with a function of the values.")


class Refused:
    """The operators and attributes that a sharded matrix lacks."""

    __lt__, __le__, __gt__, __ge__ = map(_compared, ("<", "<=", ">", ">="))
    __and__, __or__, __xor__ = map(_by_map, ("D & other", "D | other", "D ^ other"))
    __rand__, __ror__, __rxor__ = map(_by_map, ("other & D", "other | D", "other ^ D"))
    __floordiv__, __mod__ = map(_by_map, ("D // other", "D % other"))
    __rfloordiv__, __rmod__ = map(_by_map, ("other // D", "other % D"))
    __rpow__ = _by_map("other ** D")
    __invert__ = _without("~D", "Call D.map(torch.logical_not) for the values alone.")
    __setitem__ = _without("D[...] = other", "Call D.with_values with new values.")
    __hash__ = object.__hash__

    def __rmatmul__(self, other: object) -> NoReturn:
        raise _refused(NO_RIGHT_PRODUCT)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same object; numbers and matrices are not compared."""
        if other is self:
            return True
        operand = isinstance(other, (int, float, complex, torch.Tensor, Refused))
        if operand or hasattr(other, "dtype"):
            _compared("==")(self)
        return NotImplemented

    def __getattr__(self, name: str) -> Any:
        hint = form_of_method(name)
        says = f"{type(self).__name__!r} object has no attribute {name!r}."
        raise AttributeError(f"{says} {hint}".strip(), name=name, obj=self)
