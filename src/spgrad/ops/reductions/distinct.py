"""The distinct elements of a tensor, and how often each occurs."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import kernels
from spgrad.core.values import plain
from spgrad.errors import UnsupportedError
from spgrad.lowering.align import readable
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import flat_values
from spgrad.lowering.operands import sparse_operand
from spgrad.lowering.views import one_line
from spgrad.ops.reductions.axes import require_dtype
from spgrad.public import public_op


@public_op
def unique(
    input: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
    *,
    specified: bool = False,
) -> Any:
    """The distinct elements, in ascending order.

    Unspecified elements are zeros, as in every operation of torch: 0 is among the distinct elements
    if `input` has an unspecified one.

    Args:
        input: Sparse tensor of any layout and a real, integer or bool dtype; repeated COO indices
            are added first.
        sorted: Ignored: the result is always in order.
        return_inverse: Only False: the inverse would have a number for each element, also for the
            unspecified ones.
        return_counts: Whether to count how often each occurs.
        dim: Only None.
        specified: Whether to look at the specified elements alone.

    Returns:
        Dense (distinct,). With `return_counts`, a pair of this tensor and the counts, int64 of the
        same shape. NaN is last, once for each element that is NaN.

    Gradient:
        None: the backward raises an error, as that of `torch.unique` does.

    Cost:
        O(nse log nse).

    Raises:
        TypeError: `input` is not sparse.
        ValueError: The dtype is complex.
        NotImplementedError: `return_inverse` is True, or `dim` is given.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0, 2.0], [-1.0, 0.0, 0.0]]))
        >>> torch.unique(A, return_counts=True)
        (tensor([-1.,  0.,  2.]), tensor([1, 3, 2]))
        >>> spgrad.unique(A, specified=True)
        tensor([-1.,  2.])
    """
    A = without_repeats(sparse_operand("input", input))
    require_dtype(A._vals.dtype, accepted="real integer bool")
    if return_inverse:
        raise UnsupportedError(
            "`return_inverse` is True, and the inverse would be as large as the dense tensor; "
            "False is accepted. Call torch.unique(A.values(), return_inverse=True) for the "
            "specified elements."
        )
    if dim is not None:
        raise UnsupportedError(
            f"`dim` is {dim}; None is accepted. For distinct rows, call torch.unique(dim=...) with "
            "A.to_dense() if the dense tensor fits in memory."
        )
    vals = flat_values(A).reshape(-1)
    missing = 0 if specified else A.numel() - vals.numel()
    if missing:
        vals = torch.cat([vals, vals.new_zeros(1)])
    found, counts = _distinct_with_counts(vals)
    if missing:
        counts = counts + (found.detach() == 0) * (missing - 1)
    return (found, counts) if return_counts else found


_MANY = 1024
"""From this many numbers on, the sort by digits takes less time than torch.unique."""


def _distinct_with_counts(vals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch.unique gives of a vector, with counts."""
    if not (readable(vals) and vals.is_floating_point() and vals.shape[0] >= _MANY):
        return torch.unique(vals, return_counts=True)
    order = kernels.segment_order(one_line(vals), plain(vals.detach()), False)
    return torch.unique_consecutive(vals.index_select(0, order), return_counts=True)
