"""Sparse tensors for PyTorch whose gradients stay sparse."""

from spgrad import describe as _describe  # noqa: F401
from spgrad import protocol as _protocol  # noqa: F401
from spgrad import serialize as _serialize  # noqa: F401
from spgrad.compressed import (
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
)
from spgrad.construct import sparse_coo_tensor
from spgrad.errors import (
    ArgumentKindError,
    ArgumentValueError,
    SpgradError,
    StateError,
    UnsupportedError,
)
from spgrad.interop import from_scipy, from_torch, to_scipy, to_torch
from spgrad.kernels import compiled
from spgrad.ops import (
    addmm,
    addmv,
    baddbmm,
    bmm,
    coalesce,
    from_dense,
    from_edges,
    hspmm,
    linear,
    matmul,
    mm,
    mv,
    sampled_addmm,
    smm,
    sparse_mm,
    sspaddmm,
    t,
    to_dense,
    to_sparse,
    to_sparse_bsc,
    to_sparse_bsr,
    to_sparse_coo,
    to_sparse_csc,
    to_sparse_csr,
    transpose,
)
from spgrad.pattern import Pattern
from spgrad.tensor import SparseTensor
from spgrad.values import from_values, values

__version__ = "0.1.0"

__all__ = [
    "ArgumentKindError",
    "ArgumentValueError",
    "Pattern",
    "SparseTensor",
    "SpgradError",
    "StateError",
    "UnsupportedError",
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "coalesce",
    "compiled",
    "from_dense",
    "from_edges",
    "from_scipy",
    "from_torch",
    "from_values",
    "hspmm",
    "linear",
    "matmul",
    "mm",
    "mv",
    "sampled_addmm",
    "smm",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "sparse_mm",
    "sspaddmm",
    "t",
    "to_dense",
    "to_scipy",
    "to_sparse",
    "to_sparse_bsc",
    "to_sparse_bsr",
    "to_sparse_coo",
    "to_sparse_csc",
    "to_sparse_csr",
    "to_torch",
    "transpose",
    "values",
]
