"""Fused updates of one tensor by others, as optimizers use them."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError
from spgrad.lowering.align import align, known_as_same
from spgrad.lowering.coalesce import as_summands
from spgrad.lowering.dense_at import dense_at_elements
from spgrad.lowering.operands import call, is_sparse, require_factors, sparse_operand
from spgrad.lowering.products.spmm import wants_grad
from spgrad.ops.elementwise.binary import Number, add, div, mul, sub
from spgrad.ops.elementwise.rules import number_for_each, require_kinds, require_one_device
from spgrad.public import public_op


@public_op
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> torch.Tensor:
    """input + value tensor1 tensor2, element by element.

    Args:
        input: Sparse or dense tensor.
        tensor1: Sparse or dense tensor.
        tensor2: Sparse or dense tensor.
        value: Factor of the product.

    Returns:
        What `spgrad.add` and `spgrad.mul` give for these operands. If all three have the same
        pattern, it is computed in one pass.

    Gradient:
        Of a sparse operand on its own pattern.

    Cost:
        O(nse).

    Raises:
        TypeError: An operand is not a tensor, none is sparse, or `value` is not a number.
        ValueError: Shapes or devices don't fit.

    Example:
        >>> A = spgrad.from_dense(torch.eye(2))
        >>> spgrad.addcmul(A, A, A, value=0.5).values()
        tensor([1.5000, 1.5000])
    """
    return _updated(torch.addcmul, mul, value, input=input, tensor1=tensor1, tensor2=tensor2)


@public_op
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> torch.Tensor:
    """input + value tensor1 / tensor2: `spgrad.addcmul` with `spgrad.div` in place of *."""
    return _updated(torch.addcdiv, div, value, input=input, tensor1=tensor1, tensor2=tensor2)


def _updated(fused: Any, pairwise: Any, value: Number, **operands: Any) -> torch.Tensor:
    """input + value pairwise(tensor1, tensor2), by torch's fused function on a common pattern."""
    for name, x in operands.items():
        if name != "input" and isinstance(x, checks.NUMBER):
            raise ArgumentKindError(
                f"`{name}` is {x!r}; a tensor is accepted. Give numbers as the factor `value`."
            )
    input, tensor1, tensor2 = found = _in_one_dtype(fused, **operands)
    any_complex = any(x.is_complex() for x in found)
    require_factors(torch.complex64 if any_complex else torch.float32, value=value)
    pattern = _shared_pattern(*found)
    if pattern is not None:
        vals = (stored_values(t) for t in found)
        return on_pattern(call(fused, *vals, value=value), pattern)
    if not is_sparse(tensor1) and not is_sparse(tensor2):
        _require_one_shape(input, tensor1=tensor1, tensor2=tensor2)
        pairwise = getattr(torch, pairwise.__name__)
    return add(input, pairwise(tensor1, tensor2), alpha=value)


def _require_one_shape(input: torch.Tensor, **operands: torch.Tensor) -> None:
    whole, name = tuple(input.shape), ""
    try:
        for name, x in operands.items():  # noqa: B007  # the error names the last
            whole = tuple(checks.broadcast_shapes(whole, x.shape))
    except RuntimeError:
        hint = "Sizes are equal, or one of them is 1 or missing."
        accepted = f"what broadcasts with {whole}"
        raise checks.bad_shape(name, tuple(operands[name].shape), accepted, hint) from None


@public_op
def lerp(input: Any, end: Any, weight: Any) -> torch.Tensor:
    """input + weight (end - input): `spgrad.addcmul` with these operands.

    `weight` is a number or a tensor.
    """
    if isinstance(end, checks.NUMBER):
        raise ArgumentKindError(
            f"`end` is {end!r}; a tensor is accepted. Use spgrad.mul(input, 1 - weight) for 0."
        )
    input, end, weight = _in_one_dtype(torch.lerp, input=input, end=end, weight=weight)
    sparse = isinstance(input, SparseTensor) and isinstance(end, SparseTensor)
    if sparse and not isinstance(weight, SparseTensor):
        start, stop, pattern = align(input, end, "either", name="end")
        if not (isinstance(weight, torch.Tensor) and weight.dim()):
            if isinstance(weight, torch.Tensor) and wants_grad(weight):
                weight = number_for_each(weight, start, pattern)
            return on_pattern(call(torch.lerp, start, stop, weight), pattern)
        sizes = (1,) * (len(pattern.shape) - weight.dim()) + tuple(weight.shape)
        if len(sizes) == len(pattern.shape) and all(
            own in (1, full) for own, full in zip(sizes, pattern.shape, strict=True)
        ):
            weight = dense_at_elements(weight, pattern)
            return on_pattern(call(torch.lerp, start, stop, weight), pattern)
    return add(input, mul(sub(end, input), weight))


def _in_one_dtype(rule: Any, **operands: Any) -> list[Any]:
    """The operands in one dtype, native sparse ones wrapped once, if torch takes their dtypes."""
    require_kinds(**operands)
    found = [
        as_summands(sparse_operand(name, x)) if is_sparse(x) else x for name, x in operands.items()
    ]
    require_one_device(**dict(zip(operands, found, strict=True)))
    parts = (x._vals if isinstance(x, SparseTensor) else x for x in found)
    empty = [x.new_empty(0 if x.dim() else ()) if isinstance(x, torch.Tensor) else x for x in parts]
    if not isinstance(found[0], torch.Tensor):
        raise ArgumentKindError(
            f"`input` is {checks.describe_kind(found[0])}; a sparse or dense tensor is accepted. "
            f"{checks.tensor_hint(found[0])}"
        )
    dtype = call(rule, *empty).dtype
    return [x.to(dtype) if isinstance(x, torch.Tensor) else x for x in found]


def _shared_pattern(*operands: Any) -> Pattern | None:
    """The pattern of sparse operands that all have the same, without repeats."""
    if not all(isinstance(x, SparseTensor) for x in operands):
        return None
    first = operands[0]._pattern
    patterns = [other._pattern for other in operands[1:]]
    same = first.coalesced and all(known_as_same(first, other) for other in patterns)
    return first if same else None
