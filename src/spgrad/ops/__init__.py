"""The operations; each function answers for its row of the support table."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from spgrad.interop import from_torch, to_torch
from spgrad.ops.addmm import addmm, addmv, baddbmm
from spgrad.ops.convert import (
    from_dense,
    to_dense,
    to_sparse,
    to_sparse_bsc,
    to_sparse_bsr,
    to_sparse_coo,
    to_sparse_csc,
    to_sparse_csr,
)
from spgrad.ops.edges import from_edges
from spgrad.ops.matmul import bmm, linear, matmul, mm, mv, sparse_mm
from spgrad.ops.sampled import hspmm, sampled_addmm, smm, sspaddmm
from spgrad.ops.structure import coalesce, t, transpose
from spgrad.support import OPS
from spgrad.tensor import METHODS, TORCH_FUNCTIONS
from spgrad.tracing import when_tracing
from spgrad.values import from_values, values

__all__ = [
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "coalesce",
    "from_dense",
    "from_edges",
    "hspmm",
    "linear",
    "matmul",
    "mm",
    "mv",
    "sampled_addmm",
    "smm",
    "sparse_mm",
    "sspaddmm",
    "t",
    "to_dense",
    "to_sparse",
    "to_sparse_bsc",
    "to_sparse_bsr",
    "to_sparse_coo",
    "to_sparse_csc",
    "to_sparse_csr",
    "transpose",
]


def _in_place(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(op)
    def run(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return input.copy_(op(input, *args, **kwargs))

    return run


def _register() -> None:
    """Lets torch's names find the operations that the support table gives them."""
    for row in OPS.values():
        op = globals()[row.name]
        METHODS[row.name] = op
        when_tracing(op)
        for name in row.torch:
            in_place = name.endswith("_") and not name.endswith("__")
            func = operator.attrgetter(name.removeprefix("torch."))(torch)
            TORCH_FUNCTIONS[func] = _in_place(op) if in_place else op
    for function in (from_dense, from_torch, from_values, to_torch, values):
        when_tracing(function)


_register()
