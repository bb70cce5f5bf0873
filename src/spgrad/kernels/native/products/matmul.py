"""Native spmm and sddmm: torch's CSR products.

`spmm_sddmm` has no function here: its reference calls these two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import REFERENCES, native
from spgrad.kernels.native.common.torch_csr import by_library, csr, served
from spgrad.kernels.reference.common.dtypes import accumulate_dtype, widened
from spgrad.kernels.reference.common.views import in_value_order, in_view_order


@native
def spmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, val: Tensor, x: Tensor) -> Tensor:
    """`reference.products.matmul.spmm`; memory for the values in the view's order."""
    if not served(accumulate_dtype(x.dtype), x.device, idx.shape[0], *x.shape, ptr.shape[0]):
        return REFERENCES["spmm"](ptr, idx, perm, val, x)
    A = csr(ptr, idx, widened(in_view_order(val, perm)), x.shape[0])
    if x.shape[1:].numel() == 1 and by_library(x.device):  # mv takes half of the time of mm
        return torch.mv(A, widened(x.view(-1))).view(-1, *x.shape[1:]).to(x.dtype)
    if x.dim() == 1:
        return torch.mm(A, widened(x[:, None])).view(-1).to(x.dtype)
    return torch.mm(A, widened(x)).to(x.dtype)


@native
def sddmm(ptr: Tensor, idx: Tensor, perm: Tensor | None, g: Tensor, x: Tensor) -> Tensor:
    """`reference.products.matmul.sddmm`; memory for the result, and for a copy of x."""
    wide = accumulate_dtype(x.dtype)
    nse, m = idx.shape[0], ptr.shape[0] - 1
    if not served(wide, x.device, nse, *x.shape, m) or nse > m * x.shape[0]:
        return REFERENCES["sddmm"](ptr, idx, perm, g, x)
    # zeros, because the kernel reads `out` even though it multiplies by beta = 0
    out = csr(ptr, idx, x.new_zeros(nse, dtype=wide), x.shape[0])
    torch.sparse.sampled_addmm(out, widened(g), widened(x).T, beta=0, out=out)
    val = out.values().data  # not a view: autograd cannot conjugate a view of a sparse tensor
    return in_value_order(val.to(x.dtype), perm)
