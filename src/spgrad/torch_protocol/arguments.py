"""Renames the keyword arguments that torch's functions also take under NumPy's names."""

from __future__ import annotations

from typing import Any

from spgrad.errors import UnsupportedError

_NUMPYS = {"axis": "dim", "keepdims": "keepdim"}
_OTHERS = frozenset([*_NUMPYS, "out"])


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
