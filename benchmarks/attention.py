"""Attention over the elements of a mask: spgrad's function, and what torch composes or masks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.contender import DTYPES, Contender, as_torch, in_numpy
from benchmarks.problems import Problem

_MOST = 50_000_000  # elements of a dense mask


def spgrad(mask: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    from spgrad import scaled_dot_product_attention

    return scaled_dot_product_attention(query, key, value, mask)


def torch_csr(mask: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    """Scores at the elements, their softmax, which is of COO only, and a product."""
    empty = torch.sparse_compressed_tensor(
        mask.crow_indices(),
        mask.col_indices(),
        torch.zeros_like(mask.values(), dtype=query.dtype),
        mask.shape,
        layout=torch.sparse_csr,
        check_invariants=False,
    )
    scores = torch.sparse.sampled_addmm(empty, query, key.mT, beta=0, alpha=query.shape[1] ** -0.5)
    return torch.sparse.mm(torch.sparse.softmax(scores.to_sparse_coo(), 1), value)


def torch_coo(mask: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    """The same; the scores are dot products of gathered rows of Q and K."""
    row, col = mask._indices()
    found = (query.index_select(0, row) * key.index_select(0, col)).sum(1)
    scores = torch.sparse_coo_tensor(
        mask._indices(),
        found * query.shape[1] ** -0.5,
        mask.shape,
        is_coalesced=True,
        check_invariants=False,
    )
    return torch.sparse.mm(torch.sparse.softmax(scores, 1), value)


def _dense_mask(S: Any, p: Problem) -> torch.Tensor:
    if S.shape[0] * S.shape[1] > _MOST:
        raise MemoryError
    return torch.tensor(S.toarray())


def _masked(mask: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


TORCH_DENSE = Contender(
    "torch dense",
    "torch",
    build=_dense_mask,
    dense=as_torch,
    functions={"attention": _masked},
    grad=lambda A: A.grad,
    read=lambda a: in_numpy(a.detach()),
    dtypes=DTYPES,
)
