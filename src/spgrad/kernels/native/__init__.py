"""Kernels made of torch's own sparse kernels, for where the compiled library does not answer.

A kernel has the file name of its reference. Where torch's kernel refuses the operands, or would be
wrong, the native one calls the reference; `common/torch_csr.py` states these cases. What has no
native kernel runs on its reference, and often on native kernels through it: the reference of
attention calls spmm and sddmm, and that of softmax calls segment_reduce.
"""

from spgrad.kernels.declare import register_native as register
from spgrad.kernels.native.layouts import coalesce, transpose
from spgrad.kernels.native.products import matmul, spgemm, spgemm_values
from spgrad.kernels.native.reductions import segment
from spgrad.kernels.native.solves import triangular

__all__ = [
    "coalesce",
    "matmul",
    "register",
    "segment",
    "spgemm",
    "spgemm_values",
    "transpose",
    "triangular",
]
