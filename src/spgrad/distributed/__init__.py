"""Sparse matrices whose rows are shared out over processes, on `torch.distributed`."""

from spgrad.distributed.create import distribute, from_local
from spgrad.distributed.matrix import ShardedMatrix

__all__ = [
    "ShardedMatrix",
    "distribute",
    "from_local",
]
