"""Views as torch's CSR tensors, and the operands that torch's kernels serve.

What torch refuses or gets wrong, found by trying every dtype and the zoo on torch 2.13:

* Only float32, float64, complex64 and complex128 are multiplied. 16-bit floats are widened to
  float32 before, as the references do; integers and bool are left to the reference.
* On the CPU, MKL multiplies on Linux for x86. Elsewhere torch has loops of its own for SpMM and
  SDDMM of real numbers; SpMV, SpGEMM and complex numbers are refused there.
* MKL counts in int32: torch converts int64 indices without a check. A view that int32 cannot
  number is left to the reference.
* SpMM, SpMV and SDDMM take rows whose entries stand in any order and repeat. SpGEMM ends the
  process where entries repeat, and gives its rows unsorted.
* `segment_reduce` adds one element after the other in the dtype of the values, refuses complex
  numbers and integers, and gives an infinity as the extremum of no elements.
* `sampled_addmm` multiplies the values that it finds by beta = 0: they have to be finite.
  Of more entries than the matrix has elements, it drops the rest.
"""

from __future__ import annotations

import functools
import sys
import warnings

import torch
from torch import Tensor

_MKL = sys.platform == "linux" and torch.backends.mkl.is_available()
_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_INT32 = torch.iinfo(torch.int32).max


def by_library(device: torch.device) -> bool:
    """Whether MKL or cuSPARSE multiplies on this device, not only torch's own loops."""
    return _MKL or device.type != "cpu"


def served(wide: torch.dtype, device: torch.device, *sizes: int) -> bool:
    """Whether torch multiplies CSR and dense matrices of this dtype and of these sizes.

    Args:
        wide: The dtype that the product is calculated in.
        device: The device of the operands.
        *sizes: Every number that an index or a pointer may have to hold.
    """
    return wide in _DTYPES and max(sizes) <= _INT32 and (by_library(device) or not wide.is_complex)


def rows_ascend(ptr: Tensor, idx: Tensor) -> Tensor:
    """Whether the indices of each line ascend, so no index repeats: a bool on the device."""
    nse = idx.shape[0]
    ascends = torch.ones(nse + 1, dtype=torch.bool, device=idx.device)
    torch.gt(idx[1:], idx[:-1], out=ascends[1:nse])
    ascends.index_fill_(0, ptr.long(), True)  # the first entry of a line
    return ascends.all()


def csr(ptr: Tensor, idx: Tensor, val: Tensor, num_cols: int) -> Tensor:
    """A torch CSR tensor that shares the memory; nothing is checked."""
    _warn_of_beta()
    shape = ptr.shape[0] - 1, num_cols
    return torch.sparse_csr_tensor(ptr, idx, val, shape, check_invariants=False)


@functools.cache
def _warn_of_beta() -> None:
    """Catches torch's warning that CSR tensors are in beta; torch gives it once a process.

    A user who multiplies a SparseTensor has not asked for a torch CSR tensor.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor([0], [], [], (0, 0), check_invariants=False)
