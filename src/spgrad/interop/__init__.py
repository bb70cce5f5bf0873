"""Converts graphs, tables and arrays of other libraries to sparse tensors, and back."""

from spgrad.interop.arrays import from_cupy, from_jax, to_cupy, to_jax
from spgrad.interop.frames import Labelled, from_pandas, to_pandas
from spgrad.interop.graphs import from_dgl, from_pyg, to_pyg
from spgrad.interop.networks import Network, from_networkx, to_networkx

__all__ = [
    "Labelled",
    "Network",
    "from_cupy",
    "from_dgl",
    "from_jax",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "to_cupy",
    "to_jax",
    "to_networkx",
    "to_pandas",
    "to_pyg",
]
