"""Stores results in existing tensors: for `out`, and for in-place methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.errors import StateError, UnsupportedError
from spgrad.ops.shapes.resize import exchanged
from spgrad.public import public_as
from spgrad.torch_protocol.aten import replace
from spgrad.torch_protocol.inplace import with_new_result


def has_out(kwargs: dict[str, Any]) -> bool:
    """True where `out` is one tensor that a result can be put into."""
    return isinstance(kwargs.get("out"), torch.Tensor)


def store(result: Any, out: torch.Tensor) -> torch.Tensor:
    """`out` with the contents of `result`."""
    if not isinstance(result, torch.Tensor) or result.requires_grad:
        raise UnsupportedError(
            "`out` is given where a gradient is recorded, or for several results; a "
            "call without is accepted. Take the result that is returned.",
            function="dropin",
        )
    _require_cast(result, out)
    sparse = isinstance(result, SparseTensor), isinstance(out, SparseTensor)
    if sparse == (False, False) and out.layout is torch.strided:
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)
    if sparse != (True, True) or result.layout != out.layout:
        raise UnsupportedError(
            f"`out` has layout {out.layout}; {result.layout}, the layout of the "
            "result, is accepted. Take the result that is returned.",
            function="dropin",
        )
    return become(out, result.to(out.dtype))


def _require_cast(result: torch.Tensor, out: torch.Tensor) -> None:
    if not torch.can_cast(result.dtype, out.dtype):
        raise UnsupportedError(
            f"result type {result.dtype} can't be cast to {out.dtype}, the dtype of "
            "`out`; a dtype that holds it is accepted. Take the result that is returned.",
            function="dropin",
        )


@public_as("dropin")
def become(A: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Gives the object A the pattern and the values of `made`, and its place in the graph."""
    if made is A:
        return A
    if not isinstance(A, SparseTensor) or not isinstance(made, SparseTensor):
        raise UnsupportedError(
            "a dense result can't be stored in a sparse tensor, nor the other way "
            "round; a tensor of the same kind is accepted. Take the result that is returned."
        )
    same = (A.shape, A.dtype, A.device) == (made.shape, made.dtype, made.device)
    if same and not made.requires_grad and (A.is_leaf or not torch.is_grad_enabled()):
        return replace(A, made._vals, made._pattern)
    return exchanged(A, made)


def in_place(op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls spgrad; if the result of an in-place method has another pattern, A gets it too."""
    try:
        return op(*args, **kwargs)
    except StateError:
        plain = with_new_result(op)
        if plain is None or not args or not isinstance(args[0], SparseTensor):
            raise
        A = args[0]
        if A.requires_grad and A.is_leaf and torch.is_grad_enabled():
            raise
        result = plain(*args, **kwargs)
        if not isinstance(result, SparseTensor) or result.shape != A.shape:
            raise
        _require_cast(result, A)
        return become(A, result.to(A.dtype))
