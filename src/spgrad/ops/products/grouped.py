"""Products of groups of rows, each with a matrix of its own; all operands are dense."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.errors import ArgumentIndexError, ArgumentKindError, ArgumentValueError
from spgrad.lowering.operands import dense_operand
from spgrad.public import public_op

_INDICES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


@public_op
def segment_mm(a: torch.Tensor, b: torch.Tensor, seglen_a: torch.Tensor) -> torch.Tensor:
    """Consecutive rows of a times one matrix of b each: the first `seglen_a[0]` with b[0], ...

    All segments of one length are multiplied by one batched product of torch. So there are as many
    products as different lengths, at most sqrt(2 m).

    Args:
        a: Dense (m, k).
        b: Dense (r, k, n), a matrix for each segment.
        seglen_a: Integers (r,), the numbers of rows of the segments, which add up to m.

    Returns:
        Dense (m, n).

    Gradient:
        Of `a` and `b`, of every order.

    Cost:
        O(m k n), and a copy of a and b if lengths differ.

    Raises:
        TypeError: An operand is not dense.
        ValueError: Shapes, dtypes or devices don't fit, or the lengths do not add up to m.

    Example:
        >>> a, b = torch.ones(3, 2), torch.stack([torch.eye(2), 2 * torch.eye(2)])
        >>> spgrad.segment_mm(a, b, torch.tensor([1, 2]))
        tensor([[1., 1.],
                [2., 2.],
                [2., 2.]])
    """
    _require_rows_and_matrices(a, b)
    lengths = _integers("seglen_a", seglen_a)
    if lengths.shape[0] != b.shape[0]:
        accepted = f"({b.shape[0]},), as `b` has shape {tuple(b.shape)},"
        raise checks.bad_shape("seglen_a", tuple(lengths.shape), accepted, "One for each matrix.")
    if bool((lengths < 0).any()) or int(lengths.sum()) != a.shape[0]:
        raise ArgumentValueError(
            f"`seglen_a` has lengths that add up to {int(lengths.sum())}, the least is "
            f"{int(lengths.min()) if lengths.numel() else 0}; lengths from 0 that add up to "
            f"{a.shape[0]}, the rows of `a`, are accepted. Every row belongs to a segment."
        )
    return _by_length(a, b, lengths)


@public_op
def gather_mm(a: torch.Tensor, b: torch.Tensor, idx_b: torch.Tensor) -> torch.Tensor:
    """Each row of a times the matrix of b that `idx_b` names: a[i] @ b[idx_b[i]].

    Args:
        a: Dense (m, k).
        b: Dense (r, k, n).
        idx_b: Integers (m,), from 0 to r - 1.

    Returns:
        Dense (m, n).

    Gradient:
        Of `a` and `b`, of every order.

    Cost:
        That of `segment_mm`, and a sort of `idx_b`.

    Raises:
        TypeError: An operand is not dense.
        ValueError: Shapes, dtypes or devices don't fit.
        IndexError: An index is out of range.

    Example:
        >>> a, b = torch.ones(3, 2), torch.stack([torch.eye(2), 2 * torch.eye(2)])
        >>> spgrad.gather_mm(a, b, torch.tensor([1, 0, 1]))
        tensor([[2., 2.],
                [1., 1.],
                [2., 2.]])
    """
    _require_rows_and_matrices(a, b)
    index = _integers("idx_b", idx_b)
    if index.shape[0] != a.shape[0]:
        accepted = f"({a.shape[0]},), as `a` has shape {tuple(a.shape)},"
        raise checks.bad_shape("idx_b", tuple(index.shape), accepted, "One index for each row.")
    wrong = torch.nonzero((index < 0) | (index >= b.shape[0]))
    if wrong.numel():
        at = int(wrong[0])
        raise ArgumentIndexError(
            f"`idx_b` has {int(index[at])} at position {at}; indices from 0 to {b.shape[0] - 1} "
            "are accepted. They count the matrices of `b`."
        )
    order = torch.argsort(index, stable=True)
    lengths = torch.bincount(index, minlength=b.shape[0])
    found = _by_length(a.index_select(0, order), b, lengths)
    return found.index_select(0, torch.argsort(order))


def _by_length(a: torch.Tensor, b: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The products of segments, those of one length at once."""
    starts = lengths.cumsum(0) - lengths
    parts, places = [], []
    for length in torch.unique(lengths[lengths > 0]).tolist():
        which = torch.nonzero(lengths == length).squeeze(-1)
        row = starts[which].unsqueeze(-1) + torch.arange(length, device=a.device)
        one = which.shape[0] == 1
        start, at = int(starts[which[0]]), int(which[0])
        left = a[start : start + length].unsqueeze(0) if one else a[row]
        right = b[at : at + 1] if one else b.index_select(0, which)
        parts.append(torch.bmm(left, right).flatten(0, 1))
        places.append(row.flatten())
    if not parts:
        return a @ b.sum(0)  # of no rows, for the graph
    found = torch.cat(parts)
    return found.index_select(0, torch.argsort(torch.cat(places)))


def _require_rows_and_matrices(a: Any, b: Any) -> None:
    for arg, x, ndim in (("a", a, 2), ("b", b, 3)):
        if dense_operand(arg, x).dim() != ndim:
            hint = "A matrix of rows, and a matrix for each group of them."
            raise checks.bad_shape(arg, tuple(x.shape), f"a {ndim}-d tensor", hint)
    if a.shape[1] != b.shape[1]:
        accepted = f"{a.shape[1]} rows (from `a` of shape {tuple(a.shape)})"
        raise checks.bad_shape("b", tuple(b.shape), accepted, "The sizes of the operands agree.")
    checks.require_same_dtype(a=a, b=b)
    checks.require_same_device(a=a, b=b)


def _integers(arg: str, x: Any) -> torch.Tensor:
    if dense_operand(arg, x).dtype not in _INDICES:
        raise ArgumentKindError(
            f"`{arg}` has dtype {checks.short(x.dtype)}; integers are accepted. Convert it with "
            f"{arg}.long()."
        )
    if x.dim() != 1:
        raise checks.bad_shape(arg, tuple(x.shape), "a vector", "One number each.")
    return x.to(torch.int64)
