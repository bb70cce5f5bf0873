"""SparseTensors in `torch.distributed.checkpoint`.

A checkpoint cuts dense tensors into ranges of one block of memory, which a SparseTensor is not. A
SparseTensor is written and read whole, with its indices, as `torch.save` writes it.
"""

from __future__ import annotations

from typing import Any

from spgrad.core.tensor import SparseTensor


def _write_items(A: SparseTensor, fqn: str, value: Any) -> list[Any]:
    """The items that a checkpoint stores for `A`; torch calls this method of tensor subclasses."""
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

    return [WriteItem(index=MetadataIndex(fqn), type=WriteItemType.BYTE_IO)]


SparseTensor.__create_write_items__ = _write_items  # type: ignore[attr-defined]
