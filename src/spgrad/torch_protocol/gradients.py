"""The gradient of a SparseTensor: assignment to `grad` and `data`, hooks, and what computes it.

While torch runs a function that was dispatched to a SparseTensor, it looks up no function for one.
For a function that runs a backward that would hold for hooks, for what `torch.utils.checkpoint`
computes again and for derivatives in Python too. So these functions run without that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import at_elements, on_pattern
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.public import public_as
from spgrad.torch_protocol.aten import alike, replace, require_no_gradient
from spgrad.torch_protocol.func_transforms import Recorded, transforming

SET_GRAD: Any = torch.Tensor.grad.__set__  # type: ignore[attr-defined]
SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]


@public_as("grad")
def set_grad(A: SparseTensor, grad: Any) -> None:
    """`A.grad = grad`: one number for each specified element, or None."""
    if isinstance(grad, torch.Tensor) and type(A._vals) is torch.Tensor:
        if not isinstance(grad, SparseTensor):
            raise ArgumentValueError(
                f"`grad` is {checks.describe_kind(grad)}; for a SparseTensor, one on its own "
                "pattern is accepted. Use grad.sparse_mask(A), or spgrad.from_values(numbers, "
                "A.pattern)."
            )
        checks.require_same_device(tensor=A._vals, grad=grad._vals)
        if not A._pattern.same_as(grad._pattern):
            raise ArgumentValueError(
                f"`grad` is {grad._pattern.name} with nse {grad.nse}, and the tensor "
                f"{A._pattern.name} with nse {A.nse}; the same elements in the same layout are "
                "accepted. Use grad.sparse_mask(A)."
            )
    with torch._C.DisableTorchFunctionSubclass():
        SET_GRAD(A, grad)


@public_as("data")
def set_data(A: SparseTensor, data: Any) -> None:
    """`A.data = data`: A takes values, dtype and device of `data`, and its pattern if it differs.

    Graphs that were recorded before keep the values that A had.
    """
    if not isinstance(data, SparseTensor):
        raise ArgumentKindError(
            f"`data` is {checks.describe_kind(data)}; for a SparseTensor, a SparseTensor is "
            "accepted. Convert with spgrad.from_dense or spgrad.from_torch."
        )
    other = data._pattern
    if not alike(A._pattern, other):
        raise ArgumentValueError(
            f"`data` is {_described(data)}, and the tensor {_described(A)}; equal layouts and "
            "shapes are accepted. Make a new tensor."
        )
    if (A.dtype, A.device) != (data.dtype, data.device):
        with torch._C.DisableTorchFunctionSubclass():
            SET_DATA(A, data)  # what torch holds of A beside values and pattern
    if A._pattern.same_as(other):
        A._vals = data._vals.detach()
    else:
        require_no_gradient(A, other)
        replace(A, data._vals.detach(), other)


def _described(A: SparseTensor) -> str:
    where = "" if A.device.type == "cpu" else f" on {A.device}"
    return f"{A._pattern.name} of shape {tuple(A._pattern.shape)} in {checks.short(A.dtype)}{where}"


def register_hook(A: SparseTensor, hook: Callable[[Any], Any]) -> Any:
    """`A.register_hook(hook)`; of the result of `hook`, only the specified elements are used."""

    def run(g: Any) -> Any:
        given = hook(g)
        if not isinstance(given, torch.Tensor) or not isinstance(g, SparseTensor):
            return given
        if isinstance(given, SparseTensor) and given._pattern.same_as(g._pattern):
            return given
        return on_pattern(at_elements(g._pattern, given), g._pattern)

    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.register_hook(A, run)


def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **options: Any
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` of SparseTensors, or with respect to them.

    Torch gets edges of the graph in place of the SparseTensors; it does not dispatch on edges.
    """
    own_way = args or transforming() or options.get("materialize_grads")
    ends, starts = (None, None) if own_way else (_edges(outputs), _edges(inputs))
    if ends is None or starts is None:
        with torch._C.DisableTorchFunctionSubclass():
            return torch.autograd.grad(outputs, inputs, grad_outputs, *args, **options)
    return torch.autograd.grad(ends, starts, grad_outputs, **options)


def _edges(given: Any, *, leaves: bool = False) -> list[Any] | None:
    """The tensors, with edges in place of sparse tensors; None if one of them has no gradient.

    Args:
        given: A tensor, an edge, or a tuple of them, as torch passes it on.
        leaves: Also returns None if one of them is not a leaf.
    """
    tensors = [given] if isinstance(given, (torch.Tensor, GradientEdge)) else list(given)
    for i, t in enumerate(tensors):
        if isinstance(t, SparseTensor):
            if not t.requires_grad or (leaves and t.grad_fn is not None):
                return None
            tensors[i] = GradientEdge(_node(t), t.output_nr)
    return tensors


class _Reader(Recorded):
    """A node that computes nothing, behind the node of its operand."""

    @staticmethod
    def forward(ctx: Any, A: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> None:
        return None


def _node(A: SparseTensor) -> Any:
    """The node of the graph that computes A, or that collects its gradient."""
    if A.grad_fn is not None:
        return A.grad_fn
    with torch.enable_grad():  # a third of the time of an alias of A, which is a SparseTensor too
        return _Reader.apply(A).grad_fn.next_functions[0][0]


def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **options: Any) -> None:
    """`torch.autograd.backward` of SparseTensors, and `A.backward(gradient)`."""
    if "gradient" in options:
        grad_tensors = options.pop("gradient")
    own_way, given = transforming(), options.get("inputs")
    edges = None if own_way else _edges(tensors)
    inputs = None if own_way or given is None else _edges(given, leaves=True)
    if edges is None or (inputs is None and given is not None):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.autograd.backward(tensors, grad_tensors, *args, **options)
    return torch.autograd.backward(edges, grad_tensors, *args, **{**options, "inputs": inputs})
