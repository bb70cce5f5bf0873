"""torch_sparse, the tensors of PyTorch Geometric."""

from __future__ import annotations

import operator
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import torch

from benchmarks.contender import DTYPES, Contender, as_torch, in_numpy
from benchmarks.problems import Problem


def _torch_sparse_matrix(S: Any, p: Problem) -> Any:
    from torch_sparse import SparseTensor  # pyright: ignore[reportMissingImports]

    ptr, idx = (torch.tensor(i, dtype=torch.int64) for i in (S.indptr, S.indices))
    return SparseTensor(
        rowptr=ptr,
        col=idx,
        value=as_torch(S.data, p),
        sparse_sizes=tuple(S.shape),
        is_sorted=True,
        trust_data=True,
    )


def _torch_sparse_renewed(A: Any) -> Any:
    from torch_sparse import SparseTensor  # pyright: ignore[reportMissingImports]

    ptr, idx, val = A.csr()
    return SparseTensor(
        rowptr=ptr,
        col=idx,
        value=val.detach(),
        sparse_sizes=tuple(A.sparse_sizes()),
        is_sorted=True,
        trust_data=True,
    )


def _torch_sparse_read(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return in_numpy(a.detach())
    return a.set_value(a.storage.value().detach(), layout="csr").to_scipy(layout="csr")


def _torch_sparse_mm(reduce: str) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    return lambda A, x: A.matmul(x, reduce=reduce)


TORCH_SPARSE = Contender(
    "torch_sparse",
    "torch_sparse",
    build=_torch_sparse_matrix,
    dense=as_torch,
    functions={
        "spmm": operator.matmul,
        "spgemm": operator.matmul,
        "add": operator.add,
        "times": operator.mul,
        "scale": operator.mul,
        "sum_rows": methodcaller("sum", 1),
        "sum_columns": methodcaller("sum", 0),
        "amax_specified": methodcaller("max", 1),
        "mm_mean": _torch_sparse_mm("mean"),
        "mm_amax": _torch_sparse_mm("max"),
    },
    grad=lambda A: A.set_value(A.storage.value().grad, layout="csr"),
    leaf=lambda A: A.storage.value(),
    renew=_torch_sparse_renewed,
    read=_torch_sparse_read,
    dtypes=DTYPES,
)
