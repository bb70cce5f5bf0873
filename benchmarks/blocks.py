"""Products with matrices of dense blocks: torch's BSR, whose gradients are composed."""

from __future__ import annotations

from typing import Any, NamedTuple

import scipy.sparse as sp
import torch

from benchmarks.contender import Contender, as_torch, in_numpy
from benchmarks.problems import Problem


class _Blocks(NamedTuple):
    """A in BSR, and what a step needs of its pattern; made before the clock starts."""

    A: torch.Tensor
    row: torch.Tensor  # of each block
    order: torch.Tensor  # of the blocks in the transpose
    ptr: torch.Tensor  # of the transpose
    idx: torch.Tensor


def _bsr(ptr: torch.Tensor, idx: torch.Tensor, val: torch.Tensor, size: Any) -> torch.Tensor:
    return torch.sparse_bsr_tensor(ptr, idx, val, size, check_invariants=False)


def _build(S: Any, p: Problem) -> _Blocks:
    ptr, idx = (torch.tensor(i, dtype=getattr(torch, p.index)) for i in (S.indptr, S.indices))
    rows = len(ptr) - 1
    row = torch.repeat_interleave(torch.arange(rows), ptr.diff().long())
    order = idx.argsort(stable=True)
    counts = torch.bincount(idx.long(), minlength=S.shape[1] // S.blocksize[1])
    transposed = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(ptr.dtype)
    A = _bsr(ptr, idx, as_torch(S.data, p), S.shape)
    return _Blocks(A, row, order, transposed, row[order].to(idx.dtype))


def _mm(B: _Blocks, x: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(B.A, x)


def _step(B: _Blocks, x: torch.Tensor, g: torch.Tensor) -> tuple[Any, ...]:
    """torch has no gradient here: A's is a batch of products, x's is a product with A^T."""
    A = B.A
    m, n = A.shape
    col, val = A.col_indices(), A.values()
    p, q = val.shape[1:]
    turned = val.index_select(0, B.order).mT.contiguous()
    above = g.view(m // p, p, -1).index_select(0, B.row)
    beside = x.view(n // q, q, -1).index_select(0, col)
    dA = _bsr(A.crow_indices(), col, torch.bmm(above, beside.mT), A.shape)
    return _mm(B, x), dA, torch.sparse.mm(_bsr(B.ptr, B.idx, turned, (n, m)), g)


def _read(a: torch.Tensor) -> Any:
    if a.layout == torch.strided:
        return in_numpy(a)
    parts = in_numpy(a.values()), a.col_indices().numpy(), a.crow_indices().numpy()
    return sp.bsr_array(parts, shape=tuple(a.shape)).tocsr()


TORCH_BSR = Contender(
    "torch BSR",
    "torch",
    build=_build,
    dense=as_torch,
    functions={"spmm_bsr": _mm},
    read=_read,
    vjp=lambda function: _step,
)
