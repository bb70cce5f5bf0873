"""The part of a sparse tensor that a subscript takes, with its values; differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from spgrad.core import kept
from spgrad.core.checks import INT
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern, stored_values
from spgrad.errors import UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.gather import Gather, Move
from spgrad.lowering.rebuild import flat_values, positions, remembered, sparse_dims
from spgrad.lowering.views import linear_index
from spgrad.ops.indexing.compressed import located, part_of_pattern, sizes_of
from spgrad.ops.indexing.coo import Target, is_whole
from spgrad.ops.indexing.parse import GROUP, Slice, Subscript
from spgrad.torch_protocol.compile import lasting


class Plan(NamedTuple):
    """Where the parts of a result come from.

    Attributes:
        subscript: What is taken.
        split: Number of sparse dimensions of the operand.
        target: The sparse dimensions of the result, and its shape.
        dense: Its dense dimensions, as `Subscript.out` has them.
        stays_sparse: False where points take the place of all sparse dimensions.
    """

    subscript: Subscript
    split: int
    target: Target
    dense: tuple[int, ...]
    stays_sparse: bool

    @property
    def mixed(self) -> bool:
        """True where index tensors of sparse and of dense dimensions go together."""
        group = self.subscript.group
        dims = () if group is None else group.dims
        return any(d < self.split for d in dims) and any(d >= self.split for d in dims)


def planned(pattern: Pattern, subscript: Subscript, *, sparse: bool = False) -> Plan:
    """The plan of a subscript, or the refusal; `sparse` keeps points sparse too."""
    split = sparse_dims(pattern)
    group, out = subscript.group, subscript.out
    of_dense = group is not None and len(group.dims) > 0 and min(group.dims) >= split

    def is_dense(item: int) -> bool:
        return item >= split or (item == GROUP and of_dense)

    border = next((i for i, item in enumerate(out) if is_dense(item)), len(out))
    first, behind = out[:border], out[border:]
    if any(0 <= item < split for item in behind):
        raise UnsupportedError(
            f"`index` puts index tensors of dense dimensions, those from {split} on, in front of "
            "sparse ones; dense dimensions behind the sparse ones are accepted. Index the dense "
            "dimensions in a step of their own, or make the tensor dense."
        )
    shape = tuple(size for item in out for size in sizes_of(subscript, item))
    dense = sum(len(sizes_of(subscript, item)) for item in behind)
    stays_sparse = sparse or any(item >= 0 for item in first)
    return Plan(subscript, split, Target(first, shape, dense), behind, stays_sparse)


def part(input: SparseTensor, subscript: Subscript, *, sparse: bool = False) -> Any:
    """What a subscript takes of a tensor: sparse, or dense where no sparse dimension is left."""
    A = without_repeats(input)
    pattern = A._pattern
    plan = planned(pattern, subscript, sparse=sparse)
    if _is_everything(pattern, plan):
        return A
    if plan.stays_sparse:
        made = part_move(pattern, plan)
        vals = dense_part(_picked(A, made), plan, points_of(made.pattern, plan))
        return on_pattern(vals.reshape(made.pattern.values_shape).contiguous(), made.pattern)
    entry = located(pattern, subscript, plan.target)
    found = Gather(entry, pattern.elements, repeats=True)(flat_values(A))
    vals = dense_part(found, plan, positions(entry, entry.shape[0]))
    return as_result(vals, plan.target.shape)


def _is_everything(pattern: Pattern, plan: Plan) -> bool:
    taken_all = all(map(is_whole, plan.subscript.taken, pattern.shape))
    return taken_all and plan.subscript.out == tuple(range(len(pattern.shape)))


def part_move(pattern: Pattern, plan: Plan) -> Move:
    """The pattern of a sparse result; of ints and slices, the last ones are kept."""
    subscript, target = plan.subscript, plan.target
    points = GROUP in target.out  # a point may be given more than once

    def make() -> Move:
        made = part_of_pattern(pattern, subscript, target)
        nse = pattern.nse if made.blocks else pattern.elements
        return Move(made.pattern, Gather(made.entry, nse, repeats=points), made.blocks)

    if not points:
        key = subscript.taken[: plan.split], target
        return remembered(pattern, kept.PART, key, make)
    group = subscript.group.index if subscript.group is not None else ()
    with lasting(*pattern.indices, *group):
        return make()


def points_of(pattern: Pattern, plan: Plan) -> torch.Tensor | None:
    """For index tensors of sparse and dense dimensions: the point of each element; else None."""
    if not plan.mixed:
        return None
    group = plan.subscript.group
    assert group is not None
    at = sum(
        len(sizes_of(plan.subscript, item))
        for item in plan.target.out[: plan.target.out.index(GROUP)]
    )
    indices = pattern.indices[0][at : at + len(group.shape)].to(torch.int64)
    return linear_index(indices, group.shape)


def _picked(A: SparseTensor, made: Move) -> torch.Tensor:
    """Values of the result's elements, with the dense dimensions of A."""
    vals = made.gather(stored_values(A) if made.blocks else flat_values(A))
    return vals.reshape(made.pattern.elements, *A._pattern.dense_shape)


def dense_part(vals: torch.Tensor, plan: Plan, point: torch.Tensor | None) -> torch.Tensor:
    """What the dense dimensions of values (n, *dense) become; `point` is that of each of the n."""
    subscript, split = plan.subscript, plan.split
    taken_whole = all(map(is_whole, subscript.taken[split:], vals.shape[1:]))
    if taken_whole and all(item >= split for item in plan.dense):
        return vals
    backwards = [
        i + 1 for i, t in enumerate(subscript.taken[split:]) if isinstance(t, Slice) and t.step < 0
    ]
    vals = vals.flip(backwards) if backwards else vals
    count = vals.shape[0]
    vals = vals[(_all_rows(vals, plan), *_dense_index(vals, plan, point))]
    shape: list[int] = []
    nothing = None
    for item in plan.dense:
        own = sizes_of(subscript, item)
        if item == GROUP and subscript.group is not None and not subscript.group.dims:
            nothing = len(shape) + 1 if own == (0,) else None
            own = (1,)
        shape += own
    vals = vals.reshape(count, *shape)
    return vals if nothing is None else vals.narrow(nothing, 0, 0)


def _all_rows(vals: torch.Tensor, plan: Plan) -> torch.Tensor | slice:
    return positions(vals, vals.shape[0]) if plan.mixed else slice(None)


def _dense_index(
    vals: torch.Tensor, plan: Plan, point: torch.Tensor | None
) -> Sequence[int | slice | torch.Tensor]:
    """The index of the dense dimensions; those with negative steps have been reversed before."""
    found: list[int | slice | torch.Tensor] = []
    group = plan.subscript.group
    for i, take in enumerate(plan.subscript.taken[plan.split :]):
        if isinstance(take, INT):
            found.append(take)
        elif isinstance(take, Slice):
            start = take.start if take.step > 0 else vals.shape[i + 1] - 1 - take.start
            step = abs(take.step)
            found.append(slice(start, start + step * take.count, step))
        else:
            assert group is not None
            index = group.index[group.dims.index(plan.split + i)]
            if plan.mixed:
                assert point is not None
                found.append(index.index_select(0, point))
            else:
                found.append(index.view(group.shape))
    return found
