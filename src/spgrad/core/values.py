"""values and from_values: each is the other's derivative, which makes every op differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._functorch import unwrap_if_dead

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.slots import above
from spgrad.core.tensor import SparseTensor, of_parts, requires_grad
from spgrad.errors import ArgumentKindError, ArgumentValueError, StateError, UnsupportedError
from spgrad.public import public_op
from spgrad.torch_protocol.func_transforms import (
    Recorded,
    has_tangent,
    in_torch_func,
    transforming,
)


@public_op
def values(A: torch.Tensor) -> torch.Tensor:
    """Values of the specified elements of `A`, differentiable; the inverse of `from_values`.

    Args:
        A: SparseTensor of any layout; COO must be coalesced.

    Returns:
        Dense tensor (nse, *dense_shape); for BSR and BSC (nse, *blocksize, *dense_shape); for a
        batch of compressed matrices with equal nse in all items (*b, nse, ...), flat if the batch
        is ragged. It is a view: changing it in place changes `A`. Where `A` requires a gradient,
        such a change needs torch.no_grad(), as for a dense leaf.

    Gradient:
        A SparseTensor on the pattern of `A`, whose values are the cotangent.

    Cost:
        O(1).

    Raises:
        TypeError: `A` is not a SparseTensor.
        RuntimeError: `A` is an uncoalesced COO tensor.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
        >>> spgrad.values(A)
        tensor([2., 3.])
    """
    if not isinstance(A, SparseTensor):
        raise ArgumentKindError(
            f"`A` is {checks.describe_kind(A)}; a SparseTensor is accepted. "
            f"{checks.sparse_hint('A', A)}"
        )
    if not A._pattern.coalesced:
        raise StateError(
            "`A` is not coalesced; values are given for a coalesced tensor. Call A.coalesce() "
            "first, or take A._values()."
        )
    return A._pattern.by_item(stored_values(A, given_out=True))


@public_op
def from_values(values: torch.Tensor, pattern: Pattern | SparseTensor) -> SparseTensor:
    """SparseTensor with the specified elements of `pattern` and these values; differentiable.

    Args:
        values: Dense tensor of the shape that `A.values()` has for a tensor A of this pattern.
        pattern: A Pattern, or a SparseTensor whose pattern is taken.

    Returns:
        SparseTensor that shares `values` and the pattern, without a copy.

    Gradient:
        The values of the cotangent: dense, of the shape of `values`.

    Cost:
        O(1).

    Raises:
        TypeError: `values` is no dense tensor, or `pattern` has no pattern.
        ValueError: `values` has another shape or device than the pattern asks for.

    Example:
        >>> A = spgrad.from_dense(torch.eye(2))
        >>> w = torch.tensor([5.0, 6.0], requires_grad=True)
        >>> spgrad.from_values(w, A).to_dense().sum().backward()
        >>> w.grad
        tensor([1., 1.])
    """
    if isinstance(pattern, SparseTensor):
        pattern = pattern._pattern
    _require_values_and_pattern(values, pattern)
    flat = values
    if values.shape != pattern.values_shape:
        if values.shape != pattern.values_shape_by_item:
            raise ArgumentValueError(
                f"`values` has shape {tuple(values.shape)}; {pattern.values_shape} is accepted for "
                f"this pattern. {_hint_for_shape(values.shape, pattern)}"
            )
        flat = values.reshape(pattern.values_shape)
    if flat.device != pattern.device:
        checks.require_same_device(pattern=pattern.indices[0], values=flat)
    return on_pattern(flat, pattern)


def _hint_for_shape(shape: torch.Size, pattern: Pattern) -> str:
    """Says how to join values of this shape, or which values the pattern takes."""
    own = len(pattern.values_shape)
    if len(shape) > own and shape[:own] == pattern.values_shape and not pattern.blocksize:
        size = (*pattern.shape, *shape[own:])
        return (
            "For several values at each element, make a tensor with dense dimensions: "
            f"spgrad.sparse_coo_tensor(A.coo_indices(), values, {size}), A with this pattern."
        )
    return "Give one value for each specified element."


def _require_values_and_pattern(values: Any, pattern: Any) -> None:
    """Refuses arguments that from_values can't join."""
    if not isinstance(pattern, Pattern):
        raise ArgumentKindError(
            f"`pattern` is {checks.describe_kind(pattern)}; a Pattern or a SparseTensor is "
            f"accepted. {checks.sparse_hint('pattern', pattern)}"
        )
    dense = isinstance(values, torch.Tensor) and not isinstance(values, SparseTensor)
    if not dense or values.layout != torch.strided:
        raise ArgumentKindError(
            f"`values` is {checks.describe_kind(values)}; a dense tensor is accepted. "
            f"{checks.dense_hint('values', values)}"
        )


def stored_values(A: SparseTensor, given_out: bool = False) -> torch.Tensor:
    """Values as stored, (nse, *blocksize, *dense_shape), with the gradient attached.

    With `given_out`, for a caller who may change the values in place, the result is a view. A
    change of its shape does not affect A, and autograd refuses changes of its numbers that the
    graph would not notice.
    """
    if torch.is_grad_enabled() and requires_grad(A):
        if in_torch_func():
            raise UnsupportedError(
                "a SparseTensor that requires a gradient is used in a transform of torch.func "
                "(grad, jvp, jacrev, vmap ...); one that does not is accepted. Transform a "
                "function of its values, spgrad.from_values(values, A.pattern), or use A.detach()."
            )
        return _Values.apply(A, A._vals, given_out)  # type: ignore[return-value]
    return A._vals.view_as(A._vals) if given_out else A._vals


def clone(input: SparseTensor, *, memory_format: Any = None) -> SparseTensor:
    """`torch.clone`: a copy of the values, on the same pattern.

    torch's own function calls `__torch_dispatch__`. For the first such call of a process, torch
    imports `torch.distributed.tensor` and with it sympy, which takes most of a second. Where a
    gradient is recorded, torch does that in any case, and its own function makes one node alone.
    """
    recorded = torch.is_grad_enabled() and requires_grad(input)
    if recorded and type(input._vals) is torch.Tensor and not transforming():
        with torch._C.DisableTorchFunctionSubclass():
            return torch.clone(input)  # type: ignore[return-value]
    return on_pattern(stored_values(input).clone(), input._pattern)


def saved_values(A: SparseTensor, stored: torch.Tensor) -> torch.Tensor:
    """Values that A had when a node saved them, with the gradient of A attached.

    A may have other ones now, as after `A.data = other`.
    """
    if torch.is_grad_enabled() and requires_grad(A):
        return _Values.apply(A, stored, False)  # type: ignore[return-value]
    return stored


def on_pattern(stored: torch.Tensor, pattern: Pattern) -> SparseTensor:
    """The inverse of `stored_values`."""
    if stored.requires_grad and not in_torch_func():
        if has_tangent(stored):  # as in torch.func, the values themselves carry both derivatives
            return of_parts(stored, pattern)
        if torch.is_grad_enabled():
            return _FromValues.apply(unwrap_if_dead(stored), pattern)  # type: ignore[return-value]
        if not transforming():
            stored = stored.detach()
    return of_parts(stored, pattern)


def record_operand(ctx: Any, A: SparseTensor) -> None:
    """Notes in a node of the graph on which elements the gradient of its operand A will lie."""
    ctx.pattern = A._pattern
    if A._outdated is None:
        A._outdated = []
    ctx.outdated = A._outdated


def operand_gradient(ctx: Any, g: torch.Tensor) -> SparseTensor:
    """The gradient of the operand that `record_operand` noted; g are its stored values."""
    if ctx.outdated:
        raise StateError(
            "the elements of a leaf were exchanged between forward and backward, and its gradient "
            "would lie on the former ones; a backward before the exchange is accepted. Run forward "
            "again."
        )
    # lazy conjugation does not survive the sum with another gradient of A
    return on_pattern(plain(g), ctx.pattern)


class _Values(Recorded):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, A: SparseTensor, stored: torch.Tensor, given_out: bool
    ) -> torch.Tensor:
        record_operand(ctx, A)
        return stored.view_as(stored) if given_out else stored.detach()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[SparseTensor, None, None]:  # type: ignore[override]
        if g._is_zerotensor():  # immutable, but the next backward adds to it
            g = g.clone()
        return operand_gradient(ctx, g), None, None


class _FromValues(Recorded):
    @staticmethod
    def forward(ctx: Any, stored: torch.Tensor, pattern: Pattern) -> SparseTensor:  # type: ignore[override]
        ctx.pattern = pattern
        return of_parts(stored.detach(), pattern)

    @staticmethod
    def backward(ctx: Any, G: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return at_elements(ctx.pattern, G), None


def plain(t: torch.Tensor) -> torch.Tensor:
    """`t` as kernels read it: contiguous, without a pending conjugation or negation."""
    if t.is_conj() or t.is_neg():
        t = t.resolve_conj().resolve_neg()
    return t.contiguous()


def as_dtype(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`t` in `dtype`; a call of `Tensor.to` that has nothing to do takes a microsecond."""
    return t if t.dtype == dtype else t.to(dtype)


def as_result(y: torch.Tensor, shape: Sequence[int] | None = None) -> torch.Tensor:
    """`y`, a new tensor or a view of one, in another shape, as a caller gets it.

    Autograd refuses changes in place of a view that was made while it recorded nothing, as in the
    `forward` of a caller's own `torch.autograd.Function`. So it is not told of the view there.
    Elsewhere the result is a view, and the backward notices changes of what it has saved.
    """
    if torch.is_grad_enabled():
        return y if shape is None else y.reshape(shape)
    made = y if shape is None else y.contiguous()
    return torch.ops.aten._unsafe_view.default(made, y.shape if shape is None else shape)


def at_elements(pattern: Pattern, G: torch.Tensor) -> torch.Tensor:
    """Stored values of a cotangent at the elements of `pattern`; other values have no effect."""
    if isinstance(G, SparseTensor):
        traced = type(G._vals) is not torch.Tensor  # a trace replaces patterns by other objects
        if traced or G._pattern.same_as(pattern):
            return stored_values(G)
    if not pattern.coalesced:
        raise ArgumentValueError(
            "a gradient of an uncoalesced SparseTensor has other elements than the tensor; one on "
            "its own pattern is accepted. Call coalesce() before, or build the gradient with "
            "spgrad.from_values."
        )
    mask = SparseTensor(torch.zeros(pattern.values_shape, device=pattern.device), pattern)
    return stored_values(above.sparse_mask(G, mask))


_PER_ELEMENT = ("torch::autograd::AccumulateGrad", "_ToNativeBackward")


def in_shares(G: SparseTensor, node: str) -> SparseTensor:
    """The gradient of a native tensor for the node of autograd that made the tensor.

    Where elements repeat, each has the gradient of their sum. A leaf and `to_torch` take this.
    Other nodes are torch's, and for torch a tensor is the sum of its repeated elements, a gradient
    too: the derivative of torch.sparse_coo_tensor coalesces it. So each element has its share.
    """
    pattern = G._pattern
    if node in _PER_ELEMENT or pattern.coalesced:
        return G
    return on_pattern(stored_values(G) / pattern.derive(kept.REPEATS, _repeats), pattern)


def _repeats(pattern: Pattern) -> torch.Tensor:
    """How often each index of a COO pattern is there (nse, 1 for each dense dimension)."""
    _, same, times = pattern.indices[0].unique(dim=1, return_inverse=True, return_counts=True)
    return times[same].view(-1, *[1] * pattern.dense_dim)
