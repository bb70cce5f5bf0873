"""Sparse matrices whose rows are distributed over processes, on `torch.distributed`."""

from spgrad.distributed.create import distribute, from_local
from spgrad.distributed.files import load, save
from spgrad.distributed.matrix import ShardedMatrix
from spgrad.distributed.solve import solve

__all__ = [
    "ShardedMatrix",
    "distribute",
    "from_local",
    "load",
    "save",
    "solve",
]
