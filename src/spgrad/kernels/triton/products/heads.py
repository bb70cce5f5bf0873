"""Triton products of several heads: the kernels of `products.matmul`, which serve any number."""

from __future__ import annotations

from torch import Tensor

from spgrad.kernels.declare import launched
from spgrad.kernels.triton.common.launch import elsewhere, served
from spgrad.kernels.triton.products.matmul import sddmm_of_heads, spmm_of_heads


@launched
def heads_spmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    """`reference.products.heads.heads_spmm`."""
    if not served(x, val):
        return elsewhere("heads_spmm", ptr, idx, perm, val, x)
    return spmm_of_heads(ptr, idx, perm, val, x, val.shape[1])


@launched
def heads_sddmm(
    ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor, heads: int
) -> Tensor:
    """`reference.products.heads.heads_sddmm`."""
    if heads == 0 or not served(x, idx, g):
        return elsewhere("heads_sddmm", ptr, idx, perm, g, x, heads)
    return sddmm_of_heads(ptr, idx, perm, g, x, heads)
