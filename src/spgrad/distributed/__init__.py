"""Sparse matrices whose rows are distributed over processes, on `torch.distributed`."""

import torch.distributed as dist

from spgrad.errors import MissingPackageError

if not dist.is_available():  # the modules below import parts that such a build lacks
    raise MissingPackageError(
        "this torch was built without torch.distributed; a build with it is accepted. Install one "
        "from pytorch.org."
    )

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
