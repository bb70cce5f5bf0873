"""New values for elements that are specified, and rows added to rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError, StateError
from spgrad.lowering.align import align
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.dense_at import dense_at_elements
from spgrad.lowering.gather import Move
from spgrad.lowering.operands import is_sparse, require_dim, require_factors, sparse_operand
from spgrad.lowering.rebuild import positions, sparse_dims
from spgrad.ops.elementwise.binary import add
from spgrad.ops.indexing.compressed import located
from spgrad.ops.indexing.parse import read, vector
from spgrad.ops.indexing.plan import Plan, dense_part, part_move, planned, points_of
from spgrad.ops.layouts.dense import to_dense
from spgrad.public import public_as, public_op
from spgrad.torch_protocol.inplace import in_place


@public_op
def setitem(input: torch.Tensor, index: Any, value: Any) -> SparseTensor:
    """`input` with `value` in place of `input[index]`; what `input[index] = value` stores.

    Args:
        input: Sparse tensor of any layout.
        index: As for `spgrad.getitem`.
        value: A number, or a sparse or dense tensor that broadcasts to `input[index]`; a sparse one
            has that shape. It is 0 wherever `input` has no element.

    Returns:
        SparseTensor on the pattern of `input`. If the index names an element twice, one of its two
        new values stays.

    Gradient:
        Of `input`, on its pattern: 0 at the elements that were replaced, the cotangent at the
        others. Of `value`: the cotangent at the elements that its numbers went to.

    Cost:
        That of `input[index]`, and a copy of the values; `input[index] = value` makes no copy if
        no gradient is recorded.

    Raises:
        TypeError: `input` is not sparse, or `index` or `value` of another kind.
        IndexError: An index is out of range; it is a ValueError too.
        ValueError: Shapes do not fit.
        RuntimeError: `value` is not 0 where `input` has no element.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        >>> spgrad.setitem(A, 0, torch.tensor([5.0, 6.0])).to_dense()
        tensor([[5., 6.],
                [0., 3.]])
        >>> A[A > 2] = 0.0
        >>> A.values()
        tensor([1., 2., 0.])
    """
    A = without_repeats(sparse_operand("input", input))
    places, new = _written(A, index, value)
    vals = stored_values(A)
    out = vals.reshape(-1).index_put((places,), new.to(vals.dtype))
    return on_pattern(out.view(vals.shape), A._pattern)


_set_in_place = in_place("setitem", setitem)


@public_as("setitem")
def setitem_(input: Any, index: Any, value: Any) -> None:
    """`input[index] = value`, without a copy of the values where none is needed."""
    recorded = torch.is_grad_enabled() and (
        getattr(input, "requires_grad", False) or getattr(value, "requires_grad", False)
    )
    direct = isinstance(input, SparseTensor) and input._pattern.coalesced and not recorded
    if not direct or not input._vals.is_contiguous() or torch.compiler.is_compiling():
        _set_in_place(input, index, value)
        return
    places, new = _written(input, index, value)
    input._vals.view(-1)[places] = new.detach().to(input._vals.dtype)


class _PartPositions(NamedTuple):
    """Where the numbers of a part are stored; the way to its pattern, if sparse; its shape."""

    number: torch.Tensor  # in the shape of the result's values; below 0 for none
    move: Move | None
    shape: tuple[int, ...]


def _written(A: SparseTensor, index: Any, value: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions in the flat values of A, and what to write there; differentiable in `value`."""
    subscript = read(index, A._pattern.shape, A._vals.device)
    plan = planned(A._pattern, subscript)
    places = _part_positions(A._pattern, plan)
    new, nonzero = _value_for_each(A, value, places)
    number, new = places.number.reshape(-1), new.reshape(-1)
    there = (number >= 0).nonzero().squeeze(1)
    found, new = number[there], new[there]
    if nonzero is not None:
        lost = nonzero - _nonzeros(new)
        if lost > 0:
            raise StateError(
                f"`value` is not 0 at {lost} place(s) where `input` has no element; specified "
                "elements, and 0 elsewhere, are accepted. Add elements first: A + "
                "spgrad.sparse_coo_tensor(indices, values, A.shape)."
            )
    return found, new


def _part_positions(pattern: Pattern, plan: Plan) -> _PartPositions:
    """Where the numbers of A[index] are stored."""
    like = pattern.indices[0]
    if plan.stays_sparse:
        made = part_move(pattern, plan)
        entry = made.gather.index(like)
        if entry is None:
            entry = positions(like, pattern.nse if made.blocks else pattern.elements)
        if made.blocks and pattern.blocksize is not None:
            size = math.prod(pattern.blocksize)
            entry = (entry.to(torch.int64)[:, None] * size + positions(like, size)).view(-1)
        point = points_of(made.pattern, plan)
    else:
        made = None
        entry = located(pattern, plan.subscript, plan.target)
        point = positions(entry, entry.shape[0])
    width = math.prod(pattern.dense_shape)
    own = positions(like, width).view(1, *pattern.dense_shape)
    start = entry.to(torch.int64).view(-1, *[1] * pattern.dense_dim)
    number = torch.where(start < 0, -1, start * width + own)
    number = dense_part(number, plan, point)
    if made is None:
        return _PartPositions(number.reshape(plan.target.shape), None, plan.target.shape)
    return _PartPositions(number.reshape(made.pattern.values_shape), made, plan.target.shape)


def _value_for_each(
    A: SparseTensor, value: Any, places: _PartPositions
) -> tuple[torch.Tensor, int | None]:
    """`value` for each number of the result, and how many of all its numbers are not 0."""
    shape, vals = places.shape, A._vals
    _require_real(value, vals.dtype)
    if isinstance(value, checks.NUMBER):
        new = torch.full(places.number.shape, value, dtype=vals.dtype, device=vals.device)
        return new, math.prod(shape) if value != 0 else None
    if not isinstance(value, torch.Tensor):
        raise ArgumentKindError(
            f"`value` is {checks.describe_kind(value)}; a number or a tensor is accepted. Convert "
            "it with torch.as_tensor."
        )
    if is_sparse(value):
        V = without_repeats(sparse_operand("value", value))
        checks.require_same_device(input=vals, value=V._vals)
        _require_fits(tuple(V._pattern.shape), shape, exactly=True)
        total = _nonzeros(V._vals)
        if places.move is None:
            return to_dense(V), total
        zeros = vals.new_zeros(places.move.pattern.values_shape)
        return align(on_pattern(zeros, places.move.pattern), V, "first").b, total
    if value.dim():
        checks.require_same_device(input=vals, value=value)
    value = value.to(vals.device, vals.dtype)  # torch gathers numbers of few dtypes
    _require_fits(tuple(value.shape), shape, exactly=False)
    times = math.prod(shape) // value.numel() if value.numel() else 0
    total = _nonzeros(value) * times
    value = value.reshape(tuple(value.shape)[max(value.dim() - len(shape), 0) :])
    if places.move is None:
        return value.expand(shape), total
    new = dense_at_elements(value, places.move.pattern, "value")
    return new.expand(places.number.shape), total


def _nonzeros(x: torch.Tensor) -> int:
    """Number of elements that are not 0; torch's function does not take all dtypes."""
    return int(torch.count_nonzero(x.detach() != 0))


def _require_real(value: Any, dtype: torch.dtype) -> None:
    """Refuses complex values for what can't hold them."""
    tensor = isinstance(value, torch.Tensor)
    is_complex = value.is_complex() if tensor else isinstance(value, complex)
    if is_complex and not dtype.is_complex:
        raise ArgumentValueError(
            f"`value` is complex for `input` of dtype {checks.short(dtype)}; real numbers are "
            "accepted. Take value.real, or convert `input` first."
        )


def _require_fits(own: tuple[int, ...], shape: tuple[int, ...], *, exactly: bool) -> None:
    behind = own[max(len(own) - len(shape), 0) :]
    ahead = own[: len(own) - len(behind)]
    pairs = zip(reversed(behind), reversed(shape), strict=False)
    fits = all(size == 1 for size in ahead) and all(a in (1, b) for a, b in pairs)
    if not fits or (exactly and own != shape):
        what = (
            f"{shape}, the shape of `input[index]`," if exactly else f"what broadcasts to {shape}"
        )
        raise checks.bad_shape("value", own, what, "Reshape it, or change the index.")


@public_op
def index_add(
    input: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> torch.Tensor:
    """`input` with slice j of `source` added to slice index[j], for every j.

    Args:
        input: Sparse tensor of any layout.
        dim: The dimension of the slices, a sparse one.
        index: Dense vector of ints, which may repeat.
        source: Sparse tensor of the shape of `input`, except that it has as many slices as `index`
            has numbers.
        alpha: What `source` is multiplied by.

    Returns:
        SparseTensor in the layout of `input`, with the elements of both.

    Gradient:
        Of `input`, the cotangent; of `source`, alpha times the cotangent at the elements that its
        own were added to; each on its own pattern.

    Cost:
        O(nse of both), and the sort of the elements of `source`.

    Raises:
        TypeError: An operand is of another kind.
        IndexError: An index is out of range; it is a ValueError too.
        ValueError: Shapes do not fit.

    Example:
        >>> A, B = spgrad.eye(2), spgrad.from_dense(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> spgrad.index_add(A, 0, torch.tensor([1, 1]), B).to_dense()
        tensor([[1., 0.],
                [4., 3.]])
    """
    A = sparse_operand("input", input)
    B = without_repeats(sparse_operand("source", source))
    old, shape = B._pattern, tuple(A._pattern.shape)
    at = require_dim("dim", dim, len(shape))
    require_factors(A._vals.dtype, alpha=alpha)
    if at >= sparse_dims(A._pattern):
        raise checks.bad_shape(
            "input", shape, "a tensor with a sparse dimension `dim`", "Work on A.values()."
        )
    places = vector(index, A, at)
    wanted = (*shape[:at], places.shape[0], *shape[at + 1 :])
    if tuple(old.shape) != wanted or old.dense_dim != A._pattern.dense_dim:
        accepted = f"{wanted} with {A._pattern.dense_dim} dense dimension(s)"
        raise checks.bad_shape("source", tuple(old.shape), accepted, "Check `index`.")
    B = convert(B, torch.sparse_coo)
    indices = B._pattern.indices[0].to(torch.int64, copy=True)
    indices[at] = places.index_select(0, indices[at])
    moved = Pattern(
        torch.sparse_coo,
        shape,
        (indices.to(A._pattern.indices[0].dtype),),
        dense_dim=old.dense_dim,
        coalesced=False,
        ordered=False,
    )
    vals = stored_values(B)  # of bool, True + True would be True, where A has numbers
    vals = vals.to(torch.promote_types(A._vals.dtype, vals.dtype))
    return add(A, on_pattern(vals, moved), alpha=alpha)
