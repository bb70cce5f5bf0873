"""Views as torch's CSR tensors, and the operands that torch's kernels serve.

torch's kernels are MKL's (or loops of torch's own where torch is built without MKL) on the CPU and
cuSPARSE's on CUDA. What they refuse or get wrong, found by trying every dtype and the zoo on
torch 2.13:

* Only float32, float64, complex64 and complex128 are served. 16-bit floats are widened to float32
  before, as the references do; integers and bool are left to the reference.
* MKL counts in int32: torch converts int64 indices without a check. A view that int32 cannot
  number is left to the reference.
* SpMM, SpMV and SDDMM take rows whose entries stand in any order and repeat. SpGEMM crashes on
  entries that repeat, needs MKL on the CPU, and gives its rows unsorted.
* `segment_reduce` adds one element after the other in the dtype of the values, and refuses
  complex numbers and integers.
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_INT32 = torch.iinfo(torch.int32).max


def served(wide: torch.dtype, *sizes: int) -> bool:
    """Whether torch multiplies CSR matrices of this dtype, with these numbers of entries, rows, ...

    Args:
        wide: The dtype that the product is calculated in.
        *sizes: Every number that an index may have to hold.
    """
    return wide in _DTYPES and all(size <= _INT32 for size in sizes)


def spgemm_served(device: torch.device) -> bool:
    """Whether torch multiplies two CSR matrices on a device."""
    return device.type != "cpu" or torch.backends.mkl.is_available()


def rows_ascend(ptr: Tensor, idx: Tensor) -> bool:
    """Whether the indices of each line ascend, so that none repeats."""
    nse = idx.shape[0]
    ascends = torch.ones(nse + 1, dtype=torch.bool, device=idx.device)
    torch.gt(idx[1:], idx[:-1], out=ascends[1:nse])
    ascends.index_fill_(0, ptr.long(), True)  # the first of a line
    return bool(ascends.all())


def csr(ptr: Tensor, idx: Tensor, val: Tensor, num_cols: int) -> Tensor:
    """A torch CSR tensor of the same memory; nothing is checked."""
    _warn_of_beta()
    shape = ptr.shape[0] - 1, num_cols
    return torch.sparse_csr_tensor(ptr, idx, val, shape, check_invariants=False)


@functools.cache
def _warn_of_beta() -> None:
    """Takes up torch's warning, given once a process, that CSR tensors are in beta.

    Nobody who multiplies a SparseTensor has asked for a torch CSR tensor.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor([0], [], [], (0, 0), check_invariants=False)
