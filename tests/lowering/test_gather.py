"""Values that move to another pattern, when the tensor they come from is gone."""

import gc

import pytest
import torch

import spgrad
from spgrad.lowering.gather import Gather

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


MANY = 3000
REPEATS = {
    "rows": lambda A: A[torch.zeros(MANY, dtype=torch.int64)],
    "columns": lambda A: A.index_select(1, torch.zeros(MANY, dtype=torch.int64)),
    "expand": lambda A: A[None].expand(MANY, 2, 2),
    "repeat": lambda A: A.repeat(MANY, 1),
    "draws": lambda A: spgrad.data.sample_neighbors(A, [0, 1], MANY, replace=True).blocks[0],
    "amax": lambda A: spgrad.spmm(A, torch.ones(2, MANY, dtype=A.dtype), "amax"),
    "max_plus": lambda A: spgrad.spmm(A, torch.ones(2, MANY, dtype=A.dtype), "max_plus"),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("repeat", REPEATS.values(), ids=list(REPEATS))
def test_gradients_of_many_copies_are_added_in_float32(repeat, dtype, create_graph):
    """bfloat16 cannot count beyond 256, nor can float16 beyond 2048."""
    grads = []
    for dtype_of_sums in (torch.float64, dtype):
        A = spgrad.from_dense(torch.tensor([[2.0, 0], [0, 2]], dtype=dtype_of_sums)).to_sparse_csr()
        A.requires_grad_()
        y = repeat(A)
        total = (y.to_dense() if y.is_sparse else y).double().sum()
        (g,) = torch.autograd.grad(total, A, create_graph=create_graph)
        grads.append(g.detach().to_dense().double())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-2, atol=0)


def test_places_that_a_function_finds_are_found_once():
    found = []

    def find():
        found.append(torch.tensor([1, -1, 0]))
        return found[-1]

    gather = Gather(torch.tensor([2, 0]), 3, place=find)
    vals = torch.tensor([1.0, 2.0, 3.0])
    assert gather(vals).tolist() == [3, 1]
    assert not found
    assert gather.place is found[0]
    assert gather.place is found[0]
    assert Gather(None, 3, place=find).place is None
    assert len(found) == 1
