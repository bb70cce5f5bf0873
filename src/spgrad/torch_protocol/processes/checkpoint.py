"""SparseTensors in `torch.distributed.checkpoint`.

A checkpoint cuts dense tensors into ranges of one block of memory, which a SparseTensor is not. It
is written and read whole, as `torch.save` writes it, with its elements.
"""

from __future__ import annotations

from typing import Any

from spgrad.core.tensor import SparseTensor


def _write_items(A: SparseTensor, fqn: str, value: Any) -> list[Any]:
    """What a checkpoint stores for `A`; it asks tensors of a class of their own."""
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

    return [WriteItem(index=MetadataIndex(fqn), type=WriteItemType.BYTE_IO)]


SparseTensor.__create_write_items__ = _write_items  # type: ignore[attr-defined]
