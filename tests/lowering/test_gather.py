"""Values that move to another pattern, when the tensor they come from is gone."""

import gc

import pytest
import torch

import spgrad

MOVES = {
    "csc": lambda A: A.to_sparse_csc(),
    "blocks": lambda A: A.to_sparse_bsr((2, 2)),
    "columns": lambda A: A[:, 2:5],
    "rows": lambda A: A[torch.tensor([1, 1, 3])],
    "chain": lambda A: A.to_sparse_csc()[1:4].to_sparse_csr()[:, 1:3],
}


@pytest.mark.parametrize("move", MOVES.values(), ids=list(MOVES))
def test_derivatives_after_the_operand_is_deleted(move):
    """What only a derivative needs is found in backward, from a pattern that the graph holds."""
    dense = torch.randn(6, 8, dtype=torch.float64).relu()
    B = spgrad.from_dense(dense).to_sparse_csr()
    v = B.values().detach().requires_grad_()
    parts = B.crow_indices().clone(), B.col_indices().clone(), v
    A = spgrad.sparse_csr_tensor(*parts, (6, 8))
    y = move(A)
    del A, B, parts
    gc.collect()
    (g,) = torch.autograd.grad(y.values().square().sum(), v, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), v)
    twin = dense.clone().requires_grad_()
    if move is MOVES["columns"]:
        part = twin[:, 2:5]
    elif move is MOVES["rows"]:
        part = twin[[1, 1, 3]]
    elif move is MOVES["chain"]:
        part = twin[1:4, 1:3]
    else:
        part = twin
    (wanted,) = torch.autograd.grad(part.square().sum(), twin, create_graph=True)
    (second,) = torch.autograd.grad(wanted.sum(), twin)
    there = dense != 0
    assert torch.equal(g, wanted[there])
    assert torch.equal(h, second[there])
