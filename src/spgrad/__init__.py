"""Sparse tensors for PyTorch whose gradients stay sparse."""

from spgrad.torch_protocol import requirement as _requirement  # noqa: F401, I001  # comes first
import importlib
import sys
import types

from spgrad import ops
from spgrad.core.compressed import (
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
)
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.interop import from_scipy, from_torch, to_scipy, to_torch
from spgrad.core.memory import empty_cache
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, values
from spgrad.dropin import dropin
from spgrad.errors import (
    ArgumentIndexError,
    ArgumentKindError,
    ArgumentValueError,
    ConvergenceError,
    MissingFileError,
    MissingPackageError,
    SpgradError,
    PivotError,
    StateError,
    UnsupportedError,
)
from spgrad.interop import (
    from_cupy,
    from_dgl,
    from_jax,
    from_networkx,
    from_pandas,
    from_pyg,
    to_cupy,
    to_jax,
    to_networkx,
    to_pandas,
    to_pyg,
)
from spgrad.kernels import compiled
from spgrad.kernels import warn_if_missing as _warn_if_missing
from spgrad.linalg import (
    connected_components,
    expm_multiply,
    is_hermitian,
    is_symmetric,
    lobpcg,
    locality_order,
    pca_lowrank,
    reorder,
    reverse_cuthill_mckee,
    svd_lowrank,
)
from spgrad.ops import *  # noqa: F403
from spgrad.torch_protocol import aten as _protocol  # noqa: F401
from spgrad.torch_protocol import gradients as _gradients  # noqa: F401
from spgrad.torch_protocol import optimizers as _optimizers  # noqa: F401
from spgrad.torch_protocol import pickling as _serialize  # noqa: F401
from spgrad.torch_protocol import repr as _describe  # noqa: F401
from spgrad.torch_protocol.processes import checkpoint as _checkpoint  # noqa: F401
from spgrad.torch_protocol.processes import flattened as _flattened  # noqa: F401
from spgrad.torch_protocol.processes import loading as _loading  # noqa: F401
from spgrad.versions import show_versions

__version__ = "0.1.0"

__all__ = [
    "ArgumentIndexError",
    "ArgumentKindError",
    "ArgumentValueError",
    "ConvergenceError",
    "MissingFileError",
    "MissingPackageError",
    "Pattern",
    "PivotError",
    "SparseTensor",
    "SpgradError",
    "StateError",
    "UnsupportedError",
    "compiled",
    "connected_components",
    "dropin",
    "empty_cache",
    "expm_multiply",
    "from_cupy",
    "from_dgl",
    "from_jax",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "from_scipy",
    "from_torch",
    "from_values",
    "is_hermitian",
    "is_symmetric",
    "lobpcg",
    "locality_order",
    "pca_lowrank",
    "reorder",
    "reverse_cuthill_mckee",
    "show_versions",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "svd_lowrank",
    "to_cupy",
    "to_jax",
    "to_networkx",
    "to_pandas",
    "to_pyg",
    "to_scipy",
    "to_torch",
    "values",
]
__all__ += ops.__all__  # each with its row in the support table

# Modules that are imported when they are first asked for.
_ON_DEMAND = ("data", "distributed", "distributions", "graph", "io", "nn", "plot", "testing")


_warn_if_missing()


def __getattr__(name: str) -> types.ModuleType:
    if name in _ON_DEMAND:
        return importlib.import_module(f"spgrad.{name}")
    says, here = f"module 'spgrad' has no attribute {name!r}", sys.modules[__name__]
    for part in () if name.startswith("_") else ("linalg", *reversed(_ON_DEMAND)):
        if name in importlib.import_module(f"spgrad.{part}").__all__:
            says = f"{says}. Use spgrad.{part}.{name}."
            break
    raise AttributeError(says, name=name, obj=here)  # Python adds the name that is most like it


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_DEMAND, "linalg", "__all__", "__doc__", "__version__"])
