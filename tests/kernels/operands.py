"""Operands of kernels, and the comparison with their references, for the tests of several."""

import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

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


def check(name, *args):
    """The op's results, equal to its reference's, on one thread and on two."""
    torch.set_num_threads(1)
    expected = REFERENCES[name](*args)
    for threads in (2, 1) if kernels.compiled() else (1,):
        torch.set_num_threads(threads)
        actual = getattr(kernels, name)(*args)
        assert_close(actual, expected, rtol=0, atol=0)
    return actual
