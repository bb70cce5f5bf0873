"""The functions of the package torchsparsegradutils, under its names, on spgrad's kernels.

A program changes only its import:
``import spgrad.dropin.torchsparsegradutils as torchsparsegradutils``.
The functions take native sparse tensors, and give native gradients.
"""

import sys as _sys

from spgrad.dropin.switch import dropin as _dropin
from spgrad.dropin.torchsparsegradutils.indexed_matmul import gather_mm, segment_mm
from spgrad.dropin.torchsparsegradutils.sparse_logsumexp import (
    sparse_bidir_logsumexp,
    sparse_logsumexp,
)
from spgrad.dropin.torchsparsegradutils.sparse_lstsq import sparse_generic_lstsq
from spgrad.dropin.torchsparsegradutils.sparse_matmul import sparse_mm
from spgrad.dropin.torchsparsegradutils.sparse_solve import (
    sparse_generic_solve,
    sparse_triangular_solve,
)

__all__ = [
    "gather_mm",
    "segment_mm",
    "sparse_bidir_logsumexp",
    "sparse_generic_lstsq",
    "sparse_generic_solve",
    "sparse_logsumexp",
    "sparse_mm",
    "sparse_triangular_solve",
]

# `import spgrad.dropin.torchsparsegradutils as x` asks `spgrad.dropin`, which is the class, for it.
_dropin.torchsparsegradutils = _sys.modules[__name__]  # type: ignore[attr-defined]
