"""Reductions to sums, means, products, extrema and truth values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.values import as_result, stored_values
from spgrad.errors import ArgumentValueError
from spgrad.lowering.coalesce import adds_up_in
from spgrad.lowering.operands import matrix_operand, require_rank
from spgrad.lowering.segments import one_segment, segment_extremum, segment_product, segment_sum
from spgrad.lowering.views import kept_linear_positions
from spgrad.ops.reductions.axes import (
    Dims,
    Reduction,
    converted,
    reduction,
    require_dtype,
    require_elements,
    require_zero_of_nothing,
    wide,
)
from spgrad.public import public_op


@public_op
def sum(
    input: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    specified: bool = False,
) -> torch.Tensor:
    """Sum over dimensions, as `torch.sum` of the dense tensor.

    Args:
        input: Sparse tensor of any layout, with batch and dense dimensions or without.
        dim: The dimensions that are reduced; all of them for None and ().
        keepdim: Whether reduced dimensions stay, with size 1.
        dtype: The dtype to convert to first; by default that of `input`, int64 for integers.
        specified: Whether to reduce the specified elements alone, instead of counting unspecified
            ones as zeros; for a sum both are the same. Where there are no specified elements to
            reduce, a dense result is then 0 (1 for a product, True for `all`), and a sparse result
            has no element.

    Returns:
        Dense tensor if one of the two matrix dimensions is reduced. If only batch or dense
        dimensions are reduced: a SparseTensor in the layout of `input`, with an element wherever
        one of the reduced elements is specified.

    Gradient:
        That of the dense function, at the elements of `input`.

    Cost:
        O(nse + size of the result); for the first reduction of columns or batches also a sort of
        the pattern, which is kept.

    Raises:
        TypeError: `input` is not sparse, or `dim` or `keepdim` is of another kind.
        ValueError: `dim` is outside the tensor, or the dtype has no such reduction.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
        >>> spgrad.sum(A, 1), A.mean(1), A.mean(1, specified=True)
        (tensor([3., 3.]), tensor([1., 1.]), tensor([1.5000, 3.0000]))
    """
    call = reduction(input, dim, keepdim, linear=_adds_up(input, dtype))
    return call.result(_sums_in(call, _accumulated, dtype))


@public_op
def mean(
    input: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    specified: bool = False,
) -> torch.Tensor:
    """Mean over dimensions: `spgrad.sum` with division by the number of elements.

    With `specified`, the sum is divided by the number of specified elements: the mean over the
    neighbours in a graph.
    """
    linear = not specified and _adds_up(input, dtype)
    call = reduction(input, dim, keepdim, linear=linear)
    require_zero_of_nothing(call)
    vals = converted(call.vals, dtype)
    arg = "input" if dtype is None else "dtype"
    require_dtype(vals.dtype, arg=arg, accepted="real complex")
    number = call.numbers(specified)
    if isinstance(number, torch.Tensor):
        number = number.clamp(min=1)
    y = call.sums(wide(vals)) / number  # a sum of float16 may be out of range where the mean is not
    return call.result(y.to(vals.dtype))


@public_op
def prod(
    input: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    specified: bool = False,
) -> torch.Tensor:
    """Product over dimensions: `spgrad.sum` with factors in place of summands.

    It is 0 (or NaN, beside infinity) where an element is unspecified. With `specified`, the
    product of the specified elements, 1 if there are none and the result is dense.
    """
    call = reduction(input, dim, keepdim)
    require_zero_of_nothing(call)
    truth = dtype == torch.bool
    vals = (call.vals != 0).to(torch.int64) if truth else _accumulated(call.vals, dtype)
    y = segment_product(vals.squeeze(1) if vals.shape[1] == 1 else vals.prod(1), call.segments)
    missing = call.missing(specified)
    if missing is not None:
        y = torch.where(missing > 0, call.sums(0 * vals.detach()), y)
    return call.result(y != 0 if truth else y)


@public_op
def amax(
    input: torch.Tensor, dim: Dims = (), keepdim: bool = False, *, specified: bool = False
) -> torch.Tensor:
    """Largest element over dimensions: `spgrad.sum` with the maximum in place of the sum.

    The gradient is shared evenly by the elements that attain it, unspecified zeros included. With
    `specified`, the largest specified element, 0 if there are none.
    """
    return _amax_or_amin(input, dim, keepdim, specified, largest=True)


@public_op
def amin(
    input: torch.Tensor, dim: Dims = (), keepdim: bool = False, *, specified: bool = False
) -> torch.Tensor:
    """Smallest element over dimensions: `spgrad.sum` with the minimum in place of the sum.

    The gradient is shared evenly by the elements that attain it, unspecified zeros included. With
    `specified`, the smallest specified element, 0 if there are none.
    """
    return _amax_or_amin(input, dim, keepdim, specified, largest=False)


def _amax_or_amin(
    input: torch.Tensor, dim: Dims, keepdim: bool, specified: bool, *, largest: bool
) -> torch.Tensor:
    call = reduction(input, dim, keepdim)
    require_elements(call)
    vals = call.vals
    require_dtype(vals.dtype, accepted="real integer bool")
    if vals.dtype == torch.bool:
        vals = vals.to(torch.uint8)
    y = segment_extremum(vals, call.segments, call.missing(specified), largest)
    return call.result(y.to(call.stored.dtype))


@public_op
def any(
    input: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, specified: bool = False
) -> torch.Tensor:
    """Whether an element is not zero: `spgrad.sum` with the logical or in place of the sum.

    The result is bool, uint8 for uint8.
    """
    _require_given(dim)
    call = reduction(input, dim, keepdim)
    return call.result(_some(call, call.summands != 0).to(_truth(call)))


@public_op
def all(
    input: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, specified: bool = False
) -> torch.Tensor:
    """Whether no element is zero: `spgrad.sum` with the logical and in place of the sum.

    The result is bool, uint8 for uint8. With `specified`, whether no specified element is zero,
    True if there are none and the result is dense.
    """
    _require_given(dim)
    call = reduction(input, dim, keepdim)
    require_zero_of_nothing(call)
    y = ~_some(call, call.vals == 0)
    missing = call.missing(specified)
    if missing is not None:
        y = y & (missing == 0)
    return call.result(y.to(_truth(call)))


def _require_given(dim: Dims) -> None:
    """Refuses (), which torch takes for all dimensions elsewhere, and for none of them here."""
    if isinstance(dim, (tuple, list)) and not dim:
        raise ArgumentValueError(
            f"`dim` is {dim}; an int, a tuple of ints or None is accepted. Use None for all "
            "dimensions, or A != 0 for each element."
        )


def _some(call: Reduction, holds: torch.Tensor) -> torch.Tensor:
    """Whether something holds for an element of each segment, as `Reduction.sums` gives it."""
    return call.sums(holds.to(torch.int64)) > 0


def _adds_up(input: Any, dtype: Any) -> bool:
    """As `adds_up_in`; True for arguments of other kinds, which are refused later."""
    known = isinstance(input, torch.Tensor) and isinstance(dtype, torch.dtype)
    return adds_up_in(checks.values_of(input).dtype, dtype) if known else True


def _sums_in(
    call: Reduction, cast: Callable[[torch.Tensor, Any], torch.Tensor], dtype: Any
) -> torch.Tensor:
    """Sums in a dtype, to which `cast` converts; that of bools is whether one of them is True."""
    if dtype == torch.bool:
        return _some(call, call.summands != 0)
    return call.sums(cast(call.summands, dtype))


def _truth(call: Reduction) -> torch.dtype:
    return torch.uint8 if call.stored.dtype == torch.uint8 else torch.bool


@public_op
def count_nonzero(
    input: torch.Tensor, dim: Dims = None, *, specified: bool = False
) -> torch.Tensor:
    """Number of elements that are not zero: `spgrad.sum` with 1 for each of them, in int64.

    Specified elements may be zero; for their number, see `SparseTensor.nse`.
    """
    call = reduction(input, dim)
    return call.result(call.sums((call.summands != 0).to(torch.int64)))


@public_op
def sparse_sum(
    input: torch.Tensor, dim: Dims = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Sum over dimensions that stays sparse, as `torch.sparse.sum`: `spgrad.sum` with that result.

    Only elements that have a specified summand are specified. The result is in the layout of
    `input` if both matrix dimensions stay, dense if no sparse dimension stays, and in COO
    otherwise. Reduced dimensions are left out. The dtype is that of `input`, also for integers;
    without `dim`, it is that of `spgrad.sum`.
    """
    call = reduction(input, dim, linear=_adds_up(input, dtype), compact=True)
    return call.result(_sums_in(call, _accumulated if dim is None else converted, dtype))


@public_op
def trace(input: torch.Tensor) -> torch.Tensor:
    """Sum of the diagonal of a matrix.

    Args:
        input: Sparse (m, n) without dense dimensions.

    Returns:
        Dense 0-d tensor; int64 for integers.

    Gradient:
        g at the diagonal elements of `input`, 0 at its other elements.

    Cost:
        O(nse).

    Raises:
        TypeError: `input` is not sparse.
        ValueError: `input` is not a matrix, or bool.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> spgrad.trace(spgrad.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]])))
        tensor(4.)
    """
    A = matrix_operand("input", input)
    require_rank("input", A, 2, "Take one matrix at a time.")
    on_diagonal = A._pattern.derive(kept.DIAGONAL, _is_on_diagonal)
    vals = _accumulated(stored_values(A).reshape(-1), None)
    total = segment_sum(torch.where(on_diagonal, vals, 0)[:, None], one_segment(A._pattern))
    return as_result(total, ())


def _is_on_diagonal(pattern: Pattern) -> torch.Tensor:
    """Whether each element (elements,) is on the diagonal."""
    linear = kept_linear_positions(pattern)
    columns = pattern.matrix[1] or 1  # without columns there are no elements
    return linear // columns == linear % columns


def _accumulated(vals: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Values in the dtype that torch's sums and products have."""
    if dtype is None and not (vals.is_floating_point() or vals.is_complex()):
        dtype = torch.int64
    return converted(vals, dtype)
