"""A matrix as its values and their indices, for torch's functions of dense tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import scipy.sparse as sp
import torch

from benchmarks.contender import DTYPES, Contender, as_torch, in_numpy
from benchmarks.problems import Problem


class _Entries(NamedTuple):
    val: torch.Tensor
    ptr: torch.Tensor
    row: torch.Tensor
    col: torch.Tensor
    shape: tuple[int, int]


def _build(S: Any, p: Problem) -> _Entries:
    row, col = (torch.tensor(i, dtype=torch.int64) for i in S.tocoo().coords)
    ptr = torch.tensor(S.indptr, dtype=getattr(torch, p.index))
    return _Entries(as_torch(S.data, p), ptr, row, col, tuple(S.shape))


def _scale(A: _Entries, v: torch.Tensor) -> _Entries:
    return A._replace(val=A.val * v.view(-1).index_select(0, A.row))


def _sum_columns(A: _Entries) -> torch.Tensor:
    return A.val.new_zeros(A.shape[1]).scatter_reduce_(0, A.col, A.val, "sum")


def _segments(A: _Entries, val: torch.Tensor, reduce: str) -> torch.Tensor:
    return torch.segment_reduce(val, reduce, offsets=A.ptr, axis=0)


def _softmax(A: _Entries) -> _Entries:
    top = _segments(A, A.val.detach(), "max")
    grown = (A.val - top.index_select(0, A.row)).exp()
    return A._replace(val=grown / _segments(A, grown, "sum").index_select(0, A.row))


def _read(a: Any) -> Any:
    """The maximum of a row without elements is -inf here, and 0 for the other contenders."""
    if isinstance(a, torch.Tensor):
        a = a.detach()
        return in_numpy(a.masked_fill(a.isneginf(), 0))
    parts = in_numpy(a.val.detach()), a.col.numpy(), a.ptr.numpy()
    return sp.csr_array(parts, a.shape)


TORCH_VALUES = Contender(
    "torch values",
    "torch",
    build=_build,
    dense=as_torch,
    functions={
        "sin": lambda A: A._replace(val=A.val.sin()),
        "scale": _scale,
        "sum_rows": lambda A: _segments(A, A.val, "sum"),
        "sum_columns": _sum_columns,
        "amax_specified": lambda A: _segments(A, A.val, "max"),
        "softmax": _softmax,
    },
    grad=lambda A: A._replace(val=A.val.grad),
    leaf=lambda A: A.val,
    read=_read,
    dtypes=DTYPES,
)
