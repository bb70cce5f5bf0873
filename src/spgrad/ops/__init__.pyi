from spgrad.ops.creation.create import empty as empty
from spgrad.ops.creation.create import eye as eye
from spgrad.ops.creation.create import spdiags as spdiags
from spgrad.ops.creation.create import zeros as zeros
from spgrad.ops.creation.graph import from_edges as from_edges
from spgrad.ops.creation.grid import neighbourhood_pattern as neighbourhood_pattern
from spgrad.ops.creation.like import empty_like as empty_like
from spgrad.ops.creation.like import full_like as full_like
from spgrad.ops.creation.like import ones_like as ones_like
from spgrad.ops.creation.like import rand_like as rand_like
from spgrad.ops.creation.like import randn_like as randn_like
from spgrad.ops.creation.like import zeros_like as zeros_like
from spgrad.ops.creation.random import banded as banded
from spgrad.ops.creation.random import rand as rand
from spgrad.ops.creation.random import randn as randn
from spgrad.ops.creation.random import random_spd as random_spd
from spgrad.ops.creation.random import random_triangular as random_triangular
from spgrad.ops.elementwise.binary import add as add
from spgrad.ops.elementwise.binary import div as div
from spgrad.ops.elementwise.binary import floor_divide as floor_divide
from spgrad.ops.elementwise.binary import maximum as maximum
from spgrad.ops.elementwise.binary import minimum as minimum
from spgrad.ops.elementwise.binary import mul as mul
from spgrad.ops.elementwise.binary import pow as pow
from spgrad.ops.elementwise.binary import remainder as remainder
from spgrad.ops.elementwise.binary import rsub as rsub
from spgrad.ops.elementwise.binary import sub as sub
from spgrad.ops.elementwise.compare import eq as eq
from spgrad.ops.elementwise.compare import ge as ge
from spgrad.ops.elementwise.compare import gt as gt
from spgrad.ops.elementwise.compare import le as le
from spgrad.ops.elementwise.compare import lt as lt
from spgrad.ops.elementwise.compare import ne as ne
from spgrad.ops.elementwise.fused import addcdiv as addcdiv
from spgrad.ops.elementwise.fused import addcmul as addcmul
from spgrad.ops.elementwise.fused import lerp as lerp
from spgrad.ops.elementwise.logic import bitwise_and as bitwise_and
from spgrad.ops.elementwise.logic import bitwise_or as bitwise_or
from spgrad.ops.elementwise.logic import bitwise_xor as bitwise_xor
from spgrad.ops.elementwise.logic import logical_and as logical_and
from spgrad.ops.elementwise.logic import logical_or as logical_or
from spgrad.ops.elementwise.logic import logical_xor as logical_xor
from spgrad.ops.elementwise.queries import allclose as allclose
from spgrad.ops.elementwise.queries import equal as equal
from spgrad.ops.elementwise.queries import is_nonzero as is_nonzero
from spgrad.ops.elementwise.queries import is_same_size as is_same_size
from spgrad.ops.elementwise.queries import isclose as isclose
from spgrad.ops.elementwise.queries import item as item
from spgrad.ops.elementwise.unary import abs as abs
from spgrad.ops.elementwise.unary import angle as angle
from spgrad.ops.elementwise.unary import asin as asin
from spgrad.ops.elementwise.unary import asinh as asinh
from spgrad.ops.elementwise.unary import atan as atan
from spgrad.ops.elementwise.unary import atanh as atanh
from spgrad.ops.elementwise.unary import ceil as ceil
from spgrad.ops.elementwise.unary import clamp as clamp
from spgrad.ops.elementwise.unary import conj as conj
from spgrad.ops.elementwise.unary import deg2rad as deg2rad
from spgrad.ops.elementwise.unary import dropout as dropout
from spgrad.ops.elementwise.unary import erf as erf
from spgrad.ops.elementwise.unary import erfinv as erfinv
from spgrad.ops.elementwise.unary import expm1 as expm1
from spgrad.ops.elementwise.unary import floor as floor
from spgrad.ops.elementwise.unary import frac as frac
from spgrad.ops.elementwise.unary import imag as imag
from spgrad.ops.elementwise.unary import isinf as isinf
from spgrad.ops.elementwise.unary import isnan as isnan
from spgrad.ops.elementwise.unary import isneginf as isneginf
from spgrad.ops.elementwise.unary import isposinf as isposinf
from spgrad.ops.elementwise.unary import leaky_relu as leaky_relu
from spgrad.ops.elementwise.unary import log1p as log1p
from spgrad.ops.elementwise.unary import map as map
from spgrad.ops.elementwise.unary import nan_to_num as nan_to_num
from spgrad.ops.elementwise.unary import neg as neg
from spgrad.ops.elementwise.unary import rad2deg as rad2deg
from spgrad.ops.elementwise.unary import real as real
from spgrad.ops.elementwise.unary import relu as relu
from spgrad.ops.elementwise.unary import round as round
from spgrad.ops.elementwise.unary import sgn as sgn
from spgrad.ops.elementwise.unary import sign as sign
from spgrad.ops.elementwise.unary import signbit as signbit
from spgrad.ops.elementwise.unary import sin as sin
from spgrad.ops.elementwise.unary import sinh as sinh
from spgrad.ops.elementwise.unary import sqrt as sqrt
from spgrad.ops.elementwise.unary import square as square
from spgrad.ops.elementwise.unary import tan as tan
from spgrad.ops.elementwise.unary import tanh as tanh
from spgrad.ops.elementwise.unary import trunc as trunc
from spgrad.ops.indexing.compact import compact as compact
from spgrad.ops.indexing.getitem import chunk as chunk
from spgrad.ops.indexing.getitem import getitem as getitem
from spgrad.ops.indexing.getitem import index_select as index_select
from spgrad.ops.indexing.getitem import masked_select as masked_select
from spgrad.ops.indexing.getitem import narrow as narrow
from spgrad.ops.indexing.getitem import narrow_copy as narrow_copy
from spgrad.ops.indexing.getitem import select as select
from spgrad.ops.indexing.getitem import split as split
from spgrad.ops.indexing.getitem import unbind as unbind
from spgrad.ops.indexing.mask import sparse_mask as sparse_mask
from spgrad.ops.indexing.nonzero import coo_indices as coo_indices
from spgrad.ops.indexing.nonzero import find as find
from spgrad.ops.indexing.nonzero import nonzero as nonzero
from spgrad.ops.indexing.nonzero import prune as prune
from spgrad.ops.indexing.setitem import index_add as index_add
from spgrad.ops.indexing.setitem import setitem as setitem
from spgrad.ops.indexing.where import where as where
from spgrad.ops.layouts.convert import to_sparse as to_sparse
from spgrad.ops.layouts.convert import to_sparse_bsc as to_sparse_bsc
from spgrad.ops.layouts.convert import to_sparse_bsr as to_sparse_bsr
from spgrad.ops.layouts.convert import to_sparse_coo as to_sparse_coo
from spgrad.ops.layouts.convert import to_sparse_csc as to_sparse_csc
from spgrad.ops.layouts.convert import to_sparse_csr as to_sparse_csr
from spgrad.ops.layouts.dense import from_dense as from_dense
from spgrad.ops.layouts.dense import to_dense as to_dense
from spgrad.ops.layouts.structure import coalesce as coalesce
from spgrad.ops.layouts.structure import t as t
from spgrad.ops.products.addmm import addmm as addmm
from spgrad.ops.products.addmm import addmv as addmv
from spgrad.ops.products.addmm import baddbmm as baddbmm
from spgrad.ops.products.attention import (
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from spgrad.ops.products.chain import chain_matmul as chain_matmul
from spgrad.ops.products.chain import matrix_power as matrix_power
from spgrad.ops.products.chain import multi_dot as multi_dot
from spgrad.ops.products.embedding import embedding as embedding
from spgrad.ops.products.embedding import embedding_bag as embedding_bag
from spgrad.ops.products.graphs.additive_attention import additive_attention as additive_attention
from spgrad.ops.products.grouped import gather_mm as gather_mm
from spgrad.ops.products.grouped import segment_mm as segment_mm
from spgrad.ops.products.heads import sddmm as sddmm
from spgrad.ops.products.heads import spmm as spmm
from spgrad.ops.products.matmul import bmm as bmm
from spgrad.ops.products.matmul import linear as linear
from spgrad.ops.products.matmul import matmul as matmul
from spgrad.ops.products.matmul import mm as mm
from spgrad.ops.products.matmul import mv as mv
from spgrad.ops.products.matmul import sparse_mm as sparse_mm
from spgrad.ops.products.named.contract import dot as dot
from spgrad.ops.products.named.contract import inner as inner
from spgrad.ops.products.named.contract import outer as outer
from spgrad.ops.products.named.contract import tensordot as tensordot
from spgrad.ops.products.named.contract import vdot as vdot
from spgrad.ops.products.named.einsum import einsum as einsum
from spgrad.ops.products.sampled import hspmm as hspmm
from spgrad.ops.products.sampled import sampled_addmm as sampled_addmm
from spgrad.ops.products.sampled import smm as smm
from spgrad.ops.products.sampled import sspaddmm as sspaddmm
from spgrad.ops.reductions.distinct import unique as unique
from spgrad.ops.reductions.extrema import argmax as argmax
from spgrad.ops.reductions.extrema import argmin as argmin
from spgrad.ops.reductions.extrema import max as max
from spgrad.ops.reductions.extrema import min as min
from spgrad.ops.reductions.linalg_norms import linalg_norm as linalg_norm
from spgrad.ops.reductions.linalg_norms import matrix_norm as matrix_norm
from spgrad.ops.reductions.linalg_norms import normalize as normalize
from spgrad.ops.reductions.norms import logsumexp as logsumexp
from spgrad.ops.reductions.norms import native_norm as native_norm
from spgrad.ops.reductions.norms import norm as norm
from spgrad.ops.reductions.norms import std as std
from spgrad.ops.reductions.norms import var as var
from spgrad.ops.reductions.norms import vector_norm as vector_norm
from spgrad.ops.reductions.order import argsort as argsort
from spgrad.ops.reductions.order import cumsum as cumsum
from spgrad.ops.reductions.order import sort as sort
from spgrad.ops.reductions.order import topk as topk
from spgrad.ops.reductions.reduce import all as all
from spgrad.ops.reductions.reduce import amax as amax
from spgrad.ops.reductions.reduce import amin as amin
from spgrad.ops.reductions.reduce import any as any
from spgrad.ops.reductions.reduce import count_nonzero as count_nonzero
from spgrad.ops.reductions.reduce import mean as mean
from spgrad.ops.reductions.reduce import prod as prod
from spgrad.ops.reductions.reduce import sparse_sum as sparse_sum
from spgrad.ops.reductions.reduce import sum as sum
from spgrad.ops.reductions.reduce import trace as trace
from spgrad.ops.reductions.softmax import log_softmax as log_softmax
from spgrad.ops.reductions.softmax import softmax as softmax
from spgrad.ops.shapes.block_array import block_array as block_array
from spgrad.ops.shapes.diagonal import diag as diag
from spgrad.ops.shapes.diagonal import diag_embed as diag_embed
from spgrad.ops.shapes.diagonal import diagonal as diagonal
from spgrad.ops.shapes.diagonal import tril as tril
from spgrad.ops.shapes.diagonal import triu as triu
from spgrad.ops.shapes.join import block_diag as block_diag
from spgrad.ops.shapes.join import cat as cat
from spgrad.ops.shapes.join import dstack as dstack
from spgrad.ops.shapes.join import hstack as hstack
from spgrad.ops.shapes.join import stack as stack
from spgrad.ops.shapes.join import vstack as vstack
from spgrad.ops.shapes.kron import kron as kron
from spgrad.ops.shapes.rearrange import adjoint as adjoint
from spgrad.ops.shapes.rearrange import flip as flip
from spgrad.ops.shapes.rearrange import fliplr as fliplr
from spgrad.ops.shapes.rearrange import flipud as flipud
from spgrad.ops.shapes.rearrange import matrix_H as matrix_H
from spgrad.ops.shapes.rearrange import roll as roll
from spgrad.ops.shapes.repeat import broadcast_to as broadcast_to
from spgrad.ops.shapes.repeat import expand as expand
from spgrad.ops.shapes.repeat import expand_as as expand_as
from spgrad.ops.shapes.repeat import repeat as repeat
from spgrad.ops.shapes.repeat import repeat_interleave as repeat_interleave
from spgrad.ops.shapes.repeat import tile as tile
from spgrad.ops.shapes.resize import resize_as_ as resize_as_
from spgrad.ops.shapes.resize import sparse_resize_ as sparse_resize_
from spgrad.ops.shapes.resize import sparse_resize_and_clear_ as sparse_resize_and_clear_
from spgrad.ops.shapes.resize import squeeze_ as squeeze_
from spgrad.ops.shapes.resize import swapaxes_ as swapaxes_
from spgrad.ops.shapes.resize import t_ as t_
from spgrad.ops.shapes.resize import transpose_ as transpose_
from spgrad.ops.shapes.resize import unsqueeze_ as unsqueeze_
from spgrad.ops.shapes.set_diagonal import remove_diag as remove_diag
from spgrad.ops.shapes.set_diagonal import set_diag as set_diag
from spgrad.ops.shapes.shape import flatten as flatten
from spgrad.ops.shapes.shape import movedim as movedim
from spgrad.ops.shapes.shape import permute as permute
from spgrad.ops.shapes.shape import reshape as reshape
from spgrad.ops.shapes.shape import reshape_as as reshape_as
from spgrad.ops.shapes.shape import squeeze as squeeze
from spgrad.ops.shapes.shape import swapaxes as swapaxes
from spgrad.ops.shapes.shape import transpose as transpose
from spgrad.ops.shapes.shape import unflatten as unflatten
from spgrad.ops.shapes.shape import unsqueeze as unsqueeze
from spgrad.ops.shapes.shape import view as view
from spgrad.ops.shapes.shape import view_as as view_as
from spgrad.ops.solves.incomplete import incomplete_cholesky as incomplete_cholesky
from spgrad.ops.solves.incomplete import incomplete_lu as incomplete_lu
from spgrad.ops.solves.triangular import solve_triangular as solve_triangular

def register_family(family: str) -> None: ...

__all__ = [
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "additive_attention",
    "addmm",
    "addmv",
    "adjoint",
    "all",
    "allclose",
    "amax",
    "amin",
    "angle",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "baddbmm",
    "banded",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "block_array",
    "block_diag",
    "bmm",
    "broadcast_to",
    "cat",
    "ceil",
    "chain_matmul",
    "chunk",
    "clamp",
    "coalesce",
    "compact",
    "conj",
    "coo_indices",
    "count_nonzero",
    "cumsum",
    "deg2rad",
    "diag",
    "diag_embed",
    "diagonal",
    "div",
    "dot",
    "dropout",
    "dstack",
    "einsum",
    "embedding",
    "embedding_bag",
    "empty",
    "empty_like",
    "eq",
    "equal",
    "erf",
    "erfinv",
    "expand",
    "expand_as",
    "expm1",
    "eye",
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
    "gather_mm",
    "ge",
    "getitem",
    "gt",
    "hspmm",
    "hstack",
    "imag",
    "incomplete_cholesky",
    "incomplete_lu",
    "index_add",
    "index_select",
    "inner",
    "is_nonzero",
    "is_same_size",
    "isclose",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "item",
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
    "masked_select",
    "matmul",
    "matrix_H",
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
    "neighbourhood_pattern",
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
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "random_spd",
    "random_triangular",
    "real",
    "relu",
    "remainder",
    "remove_diag",
    "repeat",
    "repeat_interleave",
    "reshape",
    "reshape_as",
    "resize_as_",
    "roll",
    "round",
    "rsub",
    "sampled_addmm",
    "scaled_dot_product_attention",
    "sddmm",
    "segment_mm",
    "select",
    "set_diag",
    "setitem",
    "sgn",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "smm",
    "softmax",
    "solve_triangular",
    "sort",
    "sparse_mask",
    "sparse_mm",
    "sparse_resize_",
    "sparse_resize_and_clear_",
    "sparse_sum",
    "spdiags",
    "split",
    "spmm",
    "sqrt",
    "square",
    "squeeze",
    "squeeze_",
    "sspaddmm",
    "stack",
    "std",
    "sub",
    "sum",
    "swapaxes",
    "swapaxes_",
    "t",
    "t_",
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
    "topk",
    "trace",
    "transpose",
    "transpose_",
    "tril",
    "triu",
    "trunc",
    "unbind",
    "unflatten",
    "unique",
    "unsqueeze",
    "unsqueeze_",
    "var",
    "vdot",
    "vector_norm",
    "view",
    "view_as",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]
