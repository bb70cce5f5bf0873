"""Operands of kernels, and the comparison with their references, for the tests of several."""

import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
WIDTHS = [0, 1, 2, 3, 7, 8, 16, 17, 33, 64, 130, 257]
# None is a vector of values.
SEGMENT_WIDTHS = [None, 0, 1, 2, 3, 7, 16, 33]
# All sides calculate in float32 or wider, and round once: 16-bit results may be neighbours.
ROUNDING = {
    torch.float32: 2e-6,
    torch.float64: 1e-14,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
    torch.complex64: 2e-6,
    torch.complex128: 1e-14,
}
# Entries in each line.
LINES = {
    "short": [3, 1, 0, 2, 7, 0, 0, 4, 15, 16, 17, 5, 31, 32, 33, 6],
    "no lines": [],
    "no entries": [0, 0, 0],
    "one by one": [1],
    "one line": [70],
    "empty at both ends": [0, 5, 0],
    "long": [1000, 3, 2047, 0, 4097],
}


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
    """The op's results, equal to its reference's, on one thread and on several."""
    torch.set_num_threads(1)
    expected = REFERENCES[name](*args)
    for threads in (4, 2, 1) if kernels.compiled() else (1,):
        torch.set_num_threads(threads)
        actual = getattr(kernels, name)(*args)
        assert_close(actual, expected, rtol=0, atol=0)
    return actual


def view(counts, dtype, *, permuted):
    """Line pointers and positions of the values."""
    ptr = torch.tensor([0, *counts]).cumsum(0)
    perm = torch.randperm(int(ptr[-1])).to(dtype) if permuted else None
    return ptr.to(dtype), perm


def values(nse, width, dtype):
    """Random elements, with width columns unless that is None."""
    return dense(*((nse,) if width is None else (nse, width)), dtype=dtype)


def wide(x):
    """In the dtype of the expected results."""
    if x.is_floating_point():
        return x.double()
    return x.to(torch.complex128) if x.is_complex() else x


def by_line(ptr, perm, val):
    """The values of every line."""
    val = val if perm is None else val[perm.long()]
    return val.split(ptr.diff().tolist())


def both_threads(name, *args):
    """The op's result, the same to the bit on one thread and on two."""
    results = []
    for threads in (2, 1) if kernels.compiled() else (1,):
        torch.set_num_threads(threads)
        results.append(getattr(kernels, name)(*args))
    assert torch.equal(results[0].view(torch.uint8), results[-1].view(torch.uint8))
    return results[-1]


def assert_near(actual, expected, scale=1.0):
    """Equal to rounding, relative to `scale`, the size of what was added up, if that is more."""
    assert actual.shape == expected.shape
    if actual.dtype not in ROUNDING:
        assert_close(actual, expected.to(actual.dtype), rtol=0, atol=0)
        return
    actual, unit = wide(actual), ROUNDING[actual.dtype]
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    assert bool((same | ((actual - expected).abs() <= unit * (expected.abs() + scale))).all())
