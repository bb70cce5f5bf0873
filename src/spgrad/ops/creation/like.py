"""Sparse tensors with the pattern of another one, and values of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.construct import leaf
from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import call_with, sparse_operand
from spgrad.ops.layouts.convert import require_blocksize
from spgrad.public import public_op


@public_op
def zeros_like(input: torch.Tensor, **options: Any) -> SparseTensor:
    """The elements of `input`, all 0: `spgrad.full_like` with fill_value=0."""
    return _filled_like(input, torch.zeros_like, options, add=False)


@public_op
def empty_like(input: torch.Tensor, **options: Any) -> SparseTensor:
    """The elements of `input` without values: `spgrad.full_like` with whatever the memory holds."""
    return _filled_like(input, torch.empty_like, options, add=False)


@public_op
def ones_like(input: torch.Tensor, **options: Any) -> SparseTensor:
    """The elements of `input`, all 1: `spgrad.full_like` with fill_value=1."""
    return _filled_like(input, torch.ones_like, options)


@public_op
def full_like(input: torch.Tensor, fill_value: Any, **options: Any) -> SparseTensor:
    """`input` with one value in place of all of its specified elements.

    Args:
        input: Sparse tensor of any layout. Repeated elements become one element.
        fill_value: A number.
        **options: dtype, device, layout (a sparse one without blocks, or that of `input`),
            requires_grad, pin_memory; memory_format is ignored.

    Returns:
        SparseTensor on the pattern of `input`.

    Gradient:
        None.

    Cost:
        O(nse).

    Raises:
        TypeError: `input` is not sparse, or an option is unknown.
        NotImplementedError: `layout` is strided: the result would be dense.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> spgrad.full_like(A, 5).to_dense()
        tensor([[0., 5.],
                [5., 0.]])
    """
    single = isinstance(fill_value, torch.Tensor) and not fill_value.dim()
    if not single and not isinstance(fill_value, checks.NUMBER):
        raise ArgumentKindError(
            f"`fill_value` is {checks.describe_kind(fill_value)}; a number is accepted. Use "
            "spgrad.from_values(values, A) for other values at each element."
        )
    return _filled_like(input, torch.full_like, options, fill_value)


@public_op
def rand_like(input: torch.Tensor, **options: Any) -> SparseTensor:
    """`spgrad.full_like` with random values between 0 and 1; takes a `generator` as well."""
    return _filled_like(input, torch.rand_like, options)


@public_op
def randn_like(input: torch.Tensor, **options: Any) -> SparseTensor:
    """`spgrad.full_like` with normal random values; takes a `generator` as well."""
    return _filled_like(input, torch.randn_like, options)


_OPTIONS = (
    "dtype",
    "device",
    "layout",
    "requires_grad",
    "pin_memory",
    "memory_format",
    "generator",
)


def _filled_like(
    input: Any,
    make: Callable[..., torch.Tensor],
    options: dict[str, Any],
    *args: Any,
    add: bool = True,
) -> SparseTensor:
    """make(values, *args) on the pattern; with `add`, repeated elements are first made one."""
    A = sparse_operand("input", input)
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise ArgumentKindError(
            f"`{unknown[0]}` is no option; {', '.join(_OPTIONS)} are accepted. Leave it out."
        )
    checks.require_bool("requires_grad", options.get("requires_grad", False))
    layout = options.get("layout")
    if layout is not None and (not isinstance(layout, torch.layout) or layout not in LAYOUT_NAMES):
        raise UnsupportedError(
            f"`layout` is {layout}; a sparse layout is accepted. Use "
            f"torch.{make.__name__} of A.to_dense() for a dense result."
        )
    if add:
        A = without_repeats(A)
    if layout is not None and layout != A._pattern.layout:
        blocks = require_blocksize(A._pattern, layout, None)
        A = convert(A, layout, blocks)
    names = ("dtype", "device", "pin_memory", "generator")
    passed = {k: v for k, v in options.items() if k in names and v is not None}
    try:
        vals = call_with("fill_value", make, A._vals.detach(), *args, **passed)
    except ArgumentValueError as error:
        if args or "dtype" not in passed:
            raise
        raise ArgumentValueError(
            f"`dtype` is {passed['dtype']}, in which torch.{make.__name__} gives no values; a "
            "floating-point dtype is accepted. Convert the result with .to(dtype)."
        ) from error
    requires_grad = bool(options.get("requires_grad"))
    return leaf(vals, A._pattern.moved(vals.device), requires_grad)
