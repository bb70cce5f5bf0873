"""The operations; each function answers for its row of the support table."""

from __future__ import annotations

import operator

import torch

from spgrad.core.interop import from_torch, to_torch
from spgrad.core.slots import TORCH_FUNCTIONS, Reductions, above
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, values
from spgrad.lowering.operands import refusal
from spgrad.lowering.views import find_views
from spgrad.ops.creation.graph import from_edges
from spgrad.ops.creation.like import full_like, ones_like, zeros_like
from spgrad.ops.elementwise.binary import (
    add,
    div,
    floor_divide,
    maximum,
    minimum,
    mul,
    pow,
    remainder,
    rsub,
    sub,
)
from spgrad.ops.elementwise.compare import eq, ge, gt, le, lt, ne
from spgrad.ops.elementwise.fused import addcdiv, addcmul, lerp
from spgrad.ops.elementwise.logic import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    logical_and,
    logical_or,
    logical_xor,
)
from spgrad.ops.elementwise.queries import isclose
from spgrad.ops.elementwise.unary import (
    abs,
    angle,
    asin,
    asinh,
    atan,
    atanh,
    ceil,
    clamp,
    conj,
    converting,
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
from spgrad.ops.indexing.getitem import (
    chunk,
    getitem,
    index_select,
    narrow,
    narrow_copy,
    select,
    split,
    unbind,
)
from spgrad.ops.indexing.mask import sparse_mask
from spgrad.ops.indexing.nonzero import coo_indices, find, nonzero, prune
from spgrad.ops.indexing.setitem import assign, setitem
from spgrad.ops.layouts.convert import (
    to_sparse,
    to_sparse_bsc,
    to_sparse_bsr,
    to_sparse_coo,
    to_sparse_csc,
    to_sparse_csr,
)
from spgrad.ops.layouts.dense import from_dense, to_dense
from spgrad.ops.layouts.structure import coalesce, t
from spgrad.ops.products.addmm import addmm, addmv, baddbmm
from spgrad.ops.products.attention import scaled_dot_product_attention
from spgrad.ops.products.chain import chain_matmul, matrix_power, multi_dot
from spgrad.ops.products.contract import dot, inner, outer, tensordot, vdot
from spgrad.ops.products.matmul import bmm, linear, matmul, mm, mv, sparse_mm, spmm
from spgrad.ops.products.sampled import hspmm, sampled_addmm, smm, sspaddmm
from spgrad.ops.reductions.extrema import argmax, argmin, max, min
from spgrad.ops.reductions.linalg_norms import linalg_norm, matrix_norm, normalize
from spgrad.ops.reductions.norms import (
    logsumexp,
    native_norm,
    norm,
    std,
    var,
    vector_norm,
)
from spgrad.ops.reductions.reduce import (
    all,
    amax,
    amin,
    any,
    count_nonzero,
    mean,
    prod,
    sparse_sum,
    sum,
    trace,
)
from spgrad.ops.reductions.softmax import log_softmax, softmax
from spgrad.ops.shapes.diagonal import diag, diag_embed, diagonal, tril, triu
from spgrad.ops.shapes.join import block_diag, cat, dstack, hstack, stack, vstack
from spgrad.ops.shapes.kron import kron
from spgrad.ops.shapes.rearrange import adjoint, flip, fliplr, flipud, roll
from spgrad.ops.shapes.repeat import (
    broadcast_to,
    expand,
    expand_as,
    repeat,
    repeat_interleave,
    tile,
)
from spgrad.ops.shapes.shape import (
    flatten,
    movedim,
    permute,
    reshape,
    reshape_as,
    squeeze,
    swapaxes,
    transpose,
    unflatten,
    unsqueeze,
    view,
    view_as,
)
from spgrad.support import OPS
from spgrad.torch_protocol.compile import when_called, when_tracing
from spgrad.torch_protocol.inplace import in_place, is_in_place
from spgrad.torch_protocol.optimizers import on_values
from spgrad.torch_protocol.pickling import load
from spgrad.torch_protocol.repr import describe

__all__ = [
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "adjoint",
    "all",
    "amax",
    "amin",
    "angle",
    "any",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "baddbmm",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "block_diag",
    "bmm",
    "broadcast_to",
    "cat",
    "ceil",
    "chain_matmul",
    "chunk",
    "clamp",
    "coalesce",
    "conj",
    "count_nonzero",
    "deg2rad",
    "diag",
    "diag_embed",
    "diagonal",
    "div",
    "dot",
    "dropout",
    "dstack",
    "eq",
    "erf",
    "erfinv",
    "expand",
    "expand_as",
    "expm1",
    "find",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "floor",
    "floor_divide",
    "frac",
    "from_dense",
    "from_edges",
    "full_like",
    "ge",
    "getitem",
    "gt",
    "hspmm",
    "hstack",
    "imag",
    "index_select",
    "inner",
    "isclose",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "kron",
    "le",
    "leaky_relu",
    "lerp",
    "linalg_norm",
    "linear",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "lt",
    "map",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "movedim",
    "mul",
    "multi_dot",
    "mv",
    "nan_to_num",
    "narrow",
    "narrow_copy",
    "native_norm",
    "ne",
    "neg",
    "nonzero",
    "norm",
    "normalize",
    "ones_like",
    "outer",
    "permute",
    "pow",
    "prod",
    "prune",
    "rad2deg",
    "real",
    "relu",
    "remainder",
    "repeat",
    "repeat_interleave",
    "reshape",
    "reshape_as",
    "roll",
    "round",
    "rsub",
    "sampled_addmm",
    "scaled_dot_product_attention",
    "select",
    "setitem",
    "sgn",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "smm",
    "softmax",
    "sparse_mask",
    "sparse_mm",
    "sparse_sum",
    "split",
    "spmm",
    "sqrt",
    "square",
    "squeeze",
    "sspaddmm",
    "stack",
    "std",
    "sub",
    "sum",
    "swapaxes",
    "t",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "to_dense",
    "to_sparse",
    "to_sparse_bsc",
    "to_sparse_bsr",
    "to_sparse_coo",
    "to_sparse_csc",
    "to_sparse_csr",
    "trace",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "unbind",
    "unflatten",
    "unsqueeze",
    "var",
    "vdot",
    "vector_norm",
    "view",
    "view_as",
    "vstack",
    "zeros_like",
]


def _register() -> None:
    """Lets torch's names find the operations that the support table gives them."""
    for row in OPS.values():
        op = globals()[row.name] if row.layouts else refusal(row)
        if row.layouts and op is not map:  # which passes a function on, and is traced through
            when_tracing(op)
        for name in row.torch:
            func = operator.attrgetter(name.removeprefix("torch."))(torch)
            TORCH_FUNCTIONS[func] = in_place(row.name, op) if is_in_place(name) else op
    for name in ("to", "type", "cfloat", "cdouble"):
        function = getattr(torch.Tensor, name)
        TORCH_FUNCTIONS[function] = converting(function)
    TORCH_FUNCTIONS[torch.Tensor.__setitem__] = assign  # which need not copy the values
    for function in (from_dense, from_torch, from_values, to_torch, values):
        when_tracing(function)
    members = (*vars(SparseTensor).values(), *vars(Reductions).values())
    for member in (map, *members):
        when_called(getattr(member, "fget", None) or getattr(member, "__func__", member))


_register()
above.fill(
    coalesce=coalesce,
    coo_indices=coo_indices,
    describe=describe,
    find_views=find_views,
    getitem=getitem,
    load=load,
    matmul=matmul,
    on_values=on_values,
    sparse_mask=sparse_mask,
    transpose=transpose,
    values=values,
)
