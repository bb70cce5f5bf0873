"""The dtypes that references calculate in."""

from __future__ import annotations

import torch
from torch import Tensor

_ACCUMULATE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums of `dtype` are formed in."""
    return _ACCUMULATE.get(dtype, dtype)


def widened(val: Tensor) -> Tensor:
    """`val` in the dtype that sums of its elements are formed in."""
    return val.to(accumulate_dtype(val.dtype))
