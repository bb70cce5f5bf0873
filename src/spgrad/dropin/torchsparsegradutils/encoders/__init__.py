"""Sparse matrices with an element for each pair of neighbouring points of a grid."""

import warnings as _warnings
from typing import Any

from spgrad.dropin.torchsparsegradutils.encoders.pairwise_encoder import (
    PairwiseEncoder,
    calc_pairwise_coo_indices_nd,
)

__all__ = ["PairwiseEncoder", "calc_pairwise_coo_indices_nd"]

_OLD = ("calc_pairwise_coo_indices", "calc_pariwise_coo_indices")


def __getattr__(name: str) -> Any:
    from spgrad.dropin.torchsparsegradutils.encoders import pairwise_encoder

    if name in _OLD:
        text = f"{name} is deprecated; calc_pairwise_coo_indices_nd has its place"
        _warnings.warn(text, DeprecationWarning, stacklevel=2)
    elif name != "PairwiseVoxelEncoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(pairwise_encoder, name)
