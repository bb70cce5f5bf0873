"""What a `torch.utils.data.DataLoader` asks of SparseTensors: batches and page-locked memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from spgrad.core.pattern import Pattern
from spgrad.core.slots import ATEN_FUNCTIONS
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError
from spgrad.public import public_as

_aten = torch.ops.aten


@public_as("default_collate")
def _collate(batch: Sequence[SparseTensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """One tensor of a batch of tensors of one shape, which need not have equal nse."""
    for i, A in enumerate(batch):
        if A.shape != batch[0].shape:
            raise ArgumentValueError(
                f"`batch[{i}]` has shape {tuple(A.shape)} and the first {tuple(batch[0].shape)}; "
                "equal shapes are accepted. Give the DataLoader collate_fn=spgrad.data.collate, "
                "which makes matrices of any shapes the blocks of one."
            )
    return torch.stack(tuple(batch))


def _is_pinned(A: SparseTensor, device: Any = None) -> bool:
    """True where values and indices are in page-locked memory."""
    parts = (A._vals, *A._pattern.indices)
    return all(_aten.is_pinned.default(t, device) for t in parts)


def _pin_memory(A: SparseTensor, device: Any = None) -> SparseTensor:
    """A copy with values and indices in page-locked memory."""
    pattern = A._pattern
    vals, *indices = (_aten._pin_memory.default(t, device) for t in (A._vals, *pattern.indices))
    return SparseTensor(vals, Pattern.from_spec(pattern.spec, pattern.shape, tuple(indices)))


default_collate_fn_map[SparseTensor] = _collate
ATEN_FUNCTIONS[_aten.is_pinned.default] = _is_pinned
ATEN_FUNCTIONS[_aten._pin_memory.default] = _pin_memory
