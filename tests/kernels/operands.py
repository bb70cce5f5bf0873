"""Operands of kernels, for the tests of several of them."""

import torch

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
WIDTHS = [0, 1, 2, 3, 7, 8, 16, 17, 33, 64, 130, 257]


def row_view(m, k, nse, dtype, *, permuted=False, dense_row=None):
    """A row view (ptr, idx, perm) with unsorted and repeated columns."""
    row = torch.randint(m, (nse,)) if m else torch.empty(0, dtype=torch.int64)
    if dense_row is not None:
        row[: nse // 2] = dense_row
    ptr = torch.searchsorted(row.sort().values, torch.arange(m + 1))
    idx = torch.randint(max(k, 1), (nse,))
    perm = torch.randperm(nse).to(dtype) if permuted else None
    return ptr.to(dtype), idx.to(dtype), perm


def dense(*shape, dtype):
    """Random elements: normal, or integers of any size, whose products wrap."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype)
