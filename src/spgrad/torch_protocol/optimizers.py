"""Applies torch functions that an optimizer's step calls to the specified elements."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor, of_parts
from spgrad.errors import ArgumentValueError, UnsupportedError
from spgrad.torch_protocol.callers import optimizer_file

_T = torch.Tensor
_GRAD = operator.attrgetter("grad.__get__")(_T)
_NDIM = operator.attrgetter("ndim.__get__")(_T)
OF_THE_TENSOR = frozenset(
    [
        *(
            getattr(getattr(_T, name), access)
            for name in ("grad", "requires_grad", "_grad", "grad_fn", "is_leaf", "_version")
            for access in ("__get__", "__set__", "__delete__")
        ),
        _T.data.__get__,  # type: ignore[attr-defined]
        *(_T.requires_grad_, _T.detach_, _T.retain_grad, _T.register_hook, _T.backward),
        *(_T.__hash__, _T.__deepcopy__, _T.__reduce_ex__, _T.__repr__),
    ]
)
"""Functions that concern the tensor itself and not the numbers in it."""

_NO_MUON = (
    "torch.optim.Muon got a SparseTensor, and makes each update an orthogonal matrix, which is "
    "dense; dense matrices are accepted. Give the SparseTensors to another optimizer, such as "
    "torch.optim.AdamW, and only the dense matrices to Muon; call `step` of both."
)


def on_values(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> Any:
    """Calls `func` with the values of all SparseTensors; results of that shape get the pattern.

    O(nse), with the memory that `func` takes for a dense tensor of nse elements.
    """
    if func in OF_THE_TENSOR:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return _gradient(out) if func == _GRAD else out
    if func == _NDIM and args[0]._vals.dim() != 2 and optimizer_file().endswith("muon.py"):
        raise UnsupportedError(_NO_MUON)
    given = [*args, *kwargs.values()] if kwargs else args
    pattern = _common(func, [a for a in given if isinstance(a, SparseTensor)])
    lists = [a for a in given if isinstance(a, (list, tuple))]
    patterns = _common_of_lists(func, lists) if lists else None
    stored = map(_stored, args)
    out = func(*stored, **{k: _stored(v) for k, v in kwargs.items()}) if kwargs else func(*stored)
    if isinstance(out, (list, tuple)):
        found = patterns if patterns is not None else [pattern] * len(out)
        return type(out)([_wrapped(o, p) for o, p in zip(out, found, strict=True)])
    if pattern is not None and isinstance(args[0], SparseTensor) and out is args[0]._vals:
        fits = out.shape == pattern.values_shape  # False after a change of its shape in place
        return args[0] if fits else out
    return _wrapped(out, pattern)


def _gradient(grad: torch.Tensor | None) -> torch.Tensor | None:
    """The gradient that an optimizer's step reads; raises if it is dense."""
    if grad is None or isinstance(grad, SparseTensor):
        return grad
    raise ArgumentValueError(
        f"the gradient of a SparseTensor is a dense tensor of shape {tuple(grad.shape)}; for an "
        "optimizer, one on the pattern of the parameter is accepted. Use grad.sparse_mask(A), or "
        "spgrad.from_values(numbers, A.pattern)."
    )


def _stored(x: Any) -> Any:
    if isinstance(x, SparseTensor):
        return x._vals
    if isinstance(x, (list, tuple)) and any(isinstance(a, SparseTensor) for a in x):
        return type(x)([_stored(a) for a in x])
    return x


def _wrapped(out: Any, pattern: Pattern | None) -> Any:
    if pattern is None or not isinstance(out, torch.Tensor) or out.shape != pattern.values_shape:
        return out
    return of_parts(out, pattern)


def _common(func: Any, operands: list[SparseTensor]) -> Pattern | None:
    """The pattern of all operands; raises if their patterns differ."""
    if not operands:
        return None
    first = operands[0]._pattern
    for other in operands[1:]:
        if other._pattern is first:
            continue
        text = _different(func, first, other._pattern)
        if not first.agrees_with(other._pattern, text):
            raise ArgumentValueError(text)
    return first


def _different(func: Any, a: Pattern, b: Pattern) -> str:
    name = getattr(func, "__name__", str(func))
    return (
        f"`{name}` in an optimizer got two SparseTensors of different patterns ({a.name}, nse "
        f"{a.nse}; {b.name}, nse {b.nse}) for one parameter; a gradient and a state on the pattern "
        "of the parameter are accepted. Make a new optimizer when the pattern of a parameter "
        "changes."
    )


def _common_of_lists(func: Any, lists: list[Any]) -> list[Pattern | None] | None:
    """The patterns of the operands at the same place of each list."""
    sparse = [x for x in lists if any(isinstance(a, SparseTensor) for a in x)]
    if not sparse:
        return None
    length = len(sparse[0])
    rows = zip(*(x for x in sparse if len(x) == length), strict=True)
    return [_common(func, [a for a in row if isinstance(a, SparseTensor)]) for row in rows]
