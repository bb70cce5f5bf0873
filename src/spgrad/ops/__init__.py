"""The operations; each function answers for its row of the support table."""

from __future__ import annotations

import operator

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
from spgrad.ops.elementwise import (
    abs,
    angle,
    asin,
    asinh,
    atan,
    atanh,
    ceil,
    clamp,
    conj,
    deg2rad,
    dropout,
    erf,
    erfinv,
    expm1,
    floor,
    frac,
    imag,
    isinf,
    isnan,
    isneginf,
    isposinf,
    leaky_relu,
    log1p,
    map,
    nan_to_num,
    neg,
    rad2deg,
    real,
    relu,
    round,
    sgn,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)
from spgrad.ops.inplace import in_place, is_in_place
from spgrad.ops.matmul import bmm, linear, matmul, mm, mv, sparse_mm
from spgrad.ops.operands import refusal
from spgrad.ops.sampled import hspmm, sampled_addmm, smm, sspaddmm
from spgrad.ops.structure import coalesce, t, transpose
from spgrad.support import OPS
from spgrad.tensor import METHODS, TORCH_FUNCTIONS
from spgrad.tracing import when_tracing
from spgrad.values import from_values, values

__all__ = [
    "abs",
    "addmm",
    "addmv",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "baddbmm",
    "bmm",
    "ceil",
    "clamp",
    "coalesce",
    "conj",
    "deg2rad",
    "dropout",
    "erf",
    "erfinv",
    "expm1",
    "floor",
    "frac",
    "from_dense",
    "from_edges",
    "hspmm",
    "imag",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "leaky_relu",
    "linear",
    "log1p",
    "map",
    "matmul",
    "mm",
    "mv",
    "nan_to_num",
    "neg",
    "rad2deg",
    "real",
    "relu",
    "round",
    "sampled_addmm",
    "sgn",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "smm",
    "sparse_mm",
    "sqrt",
    "square",
    "sspaddmm",
    "t",
    "tan",
    "tanh",
    "to_dense",
    "to_sparse",
    "to_sparse_bsc",
    "to_sparse_bsr",
    "to_sparse_coo",
    "to_sparse_csc",
    "to_sparse_csr",
    "transpose",
    "trunc",
]


def _register() -> None:
    """Lets torch's names find the operations that the support table gives them."""
    for row in OPS.values():
        op = globals()[row.name] if row.layouts else refusal(row)
        if row.layouts:
            METHODS[row.name] = op
            when_tracing(op)
        for name in row.torch:
            func = operator.attrgetter(name.removeprefix("torch."))(torch)
            TORCH_FUNCTIONS[func] = in_place(row.name, op) if is_in_place(name) else op
    for function in (from_dense, from_torch, from_values, to_torch, values):
        when_tracing(function)


_register()
