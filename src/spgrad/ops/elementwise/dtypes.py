"""Conversions between dtypes: torch converts, and this module adds the derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from spgrad.core.checks import describe_option
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError
from spgrad.ops.elementwise.inside_transforms import inside_transform
from spgrad.torch_protocol.arguments import of_arguments
from spgrad.torch_protocol.func_transforms import in_torch_func


def _converting(name: str) -> Callable[..., Any]:
    """A method of torch that converts, whose derivative into complex dtypes is known.

    Autograd takes the real part of a complex gradient by a view of it as real numbers, which no
    SparseTensor has. So real values that require a gradient become complex by themselves.
    """
    function = getattr(torch.Tensor, name)

    @functools.wraps(function)
    def run(A: Any, *args: Any, **kw: Any) -> Any:
        try:
            return _with_other_dtype(function, A, args, kw)
        except Exception as error:
            if not of_arguments(error):
                raise
            raise _no_conversion(name, (*args, *kw.values())) from error

    run.__doc__ = f"As torch.Tensor.{name}, on the specified elements; differentiable."
    return run


def _with_other_dtype(function: Any, A: Any, args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
    if in_torch_func() or torch.compiler.is_exporting():
        return inside_transform(function, (A, *args), kw)
    with torch._C.DisableTorchFunctionSubclass():
        if _is_real_variable(A):
            dtype = getattr(function(A._vals.new_empty(0), *args, **kw), "dtype", A.dtype)
            A = on_pattern(stored_values(A).to(dtype), A._pattern) if dtype.is_complex else A
        return function(A, *args, **kw)


_ACCEPTED = {
    "to": "a torch.dtype, a torch.device or its name, or a tensor",
    "type": "a torch.dtype or its name",
}


def _no_conversion(name: str, given: tuple[Any, ...]) -> ArgumentKindError:
    """The error for arguments that torch's method does not take."""
    accepted, example = _ACCEPTED.get(name, "no argument"), f"{name}(torch.float64)"
    return ArgumentKindError(
        f"the arguments are ({', '.join(map(describe_option, given))}); {accepted} is accepted. "
        f"For example A.{example if name in _ACCEPTED else f'{name}()'}.",
        function=name,
    )


def _is_real_variable(A: Any) -> bool:
    found = isinstance(A, SparseTensor) and A.is_floating_point() and A.requires_grad
    return found and torch.is_grad_enabled() and not torch.compiler.is_compiling()


to = _converting("to")
type = _converting("type")
cfloat = _converting("cfloat")
cdouble = _converting("cdouble")
