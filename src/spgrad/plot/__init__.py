"""Pictures of sparse tensors, with matplotlib."""

from spgrad.plot.elements import spy
from spgrad.plot.structure import blocks, degrees, reordered

__all__ = ["blocks", "degrees", "reordered", "spy"]
