"""Bags whose inputs copy a row each: in compiled graphs, and where torch.func.vmap maps over them.

Their numbers are not known where the pattern of a product would be made.
"""

from __future__ import annotations

from typing import Any

import torch

from spgrad.errors import UnsupportedError
from spgrad.torch_protocol.func_transforms import Derived


class CopiedRows(Derived):
    """Rows of a table. A trace need not know how many; the backward of `F.embedding` has to."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, table: torch.Tensor, index: torch.Tensor, sparse: bool, by_frequency: bool
    ) -> torch.Tensor:
        """The rows (inputs, k)."""
        ctx.save_for_backward(index)
        ctx.size, ctx.sparse, ctx.by_frequency = table.shape, sparse, by_frequency
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """The gradient of the table, which may list a row once for each input."""
        (index,) = ctx.saved_tensors
        if ctx.by_frequency:
            ordered = index.sort().values
            ends = [torch.searchsorted(ordered, index, right=right) for right in (False, True)]
            g = g / (ends[1] - ends[0])[:, None]
        if ctx.sparse:
            found = torch.sparse_coo_tensor(index[None], g, ctx.size, check_invariants=False)
        else:
            found = g.new_zeros(ctx.size).index_add(0, index, g)
        return found, None, None, None


def refuse_counts(by_frequency: bool) -> None:
    """Refuses to count how often a batch takes a row where each item is computed for itself."""
    if by_frequency:
        raise UnsupportedError(
            "`scale_grad_by_freq` is True, and torch.func.vmap maps over the inputs, so that no "
            "call sees all uses of a row; False is accepted. Call the layer with the whole batch."
        )


def reduced_items(
    table: torch.Tensor,
    ptr: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor | None,
    mode: str,
    padding_idx: int | None,
) -> torch.Tensor:
    """Sum, mean or maximum (bags, k) of the rows of a table (rows, k) that are in each bag.

    Bag i has the inputs from `ptr[i]` to `ptr[i + 1]`, and input j takes the row `index[j]`. Copies
    a row for each input. Only functions that torch maps over items are called.
    """
    count, bags = index.shape[0], ptr.shape[0] - 1
    begun = index.new_zeros(count + 1).scatter_add(0, ptr[:-1], torch.ones_like(ptr[:-1]))
    bag = begun.cumsum(0)[:count] - 1
    found = table.index_select(0, index).to(torch.promote_types(table.dtype, torch.float32))
    if weights is not None:
        found = found * weights[:, None]
    there = index != (-1 if padding_idx is None else padding_idx)
    if mode == "max":
        return _greatest(found, bag, bags, there[:, None]).to(table.dtype)
    found = found.where(there[:, None], 0)
    total = found.new_zeros(bags, found.shape[1]).index_add(0, bag, found)
    if mode == "mean":
        length = found.new_zeros(bags).index_add(0, bag, there.to(found.dtype))
        total = total / length.clamp(min=1)[:, None]
    return total.to(table.dtype)


def _greatest(
    found: torch.Tensor, bag: torch.Tensor, bags: int, there: torch.Tensor
) -> torch.Tensor:
    """The greatest number of each column in each bag, of the first row that has it; 0 of none."""
    count, shape = found.shape[0], (bags, found.shape[1])
    rows = bag[:, None].expand_as(found)
    known = found.detach().where(there, -torch.inf)
    best = known.new_full(shape, -torch.inf).scatter_reduce(0, rows, known, "amax")
    attains = there & ((known == best.gather(0, rows)) | known.isnan())
    place = torch.arange(count, device=bag.device)[:, None].where(attains, count)
    first = bag.new_full(shape, count).scatter_reduce(0, rows, place, "amin")
    return torch.cat([found, found.new_zeros(1, shape[1])]).gather(0, first)
