"""nonzero and find: the same as of dense tensors, with results in memory of their own."""

import pytest
import torch

import spgrad

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


def matrix(layout, zeros):
    x = torch.rand(4, 6) * (torch.rand(4, 6) < 0.5)
    blocksize = (2, 3) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    A = spgrad.from_dense(x, layout=layout, blocksize=blocksize)
    if zeros:
        return A * (torch.rand(4, 1) < 0.5)
    return spgrad.from_values(torch.rand_like(A.values()) + 1, A)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_like_dense_tensors(layout, zeros):
    for _ in range(5):
        A = matrix(layout, zeros)
        dense = A.to_dense()
        at = dense.nonzero()
        assert torch.equal(A.nonzero(), at)
        assert A.nonzero().is_contiguous()
        rows, cols, vals = spgrad.find(A)
        assert torch.equal(torch.stack([rows, cols], 1), at)
        assert torch.equal(vals, dense[rows, cols])
        places = A.nonzero(as_tuple=True)
        assert torch.equal(dense[places], vals)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_have_memory_of_their_own(layout):
    A = matrix(layout, zeros=False)
    before = A.to_dense()
    for result in (*spgrad.find(A), *A.nonzero(as_tuple=True), A.nonzero()):
        result.zero_()
    assert torch.equal(A.to_dense(), before)
    assert torch.equal(A.to_sparse_coo().to_dense(), before)


@pytest.mark.parametrize("zeros", [False, True])
def test_the_gradient_of_find(zeros):
    A = matrix(torch.sparse_csr, zeros).requires_grad_()
    spgrad.find(A)[2].pow(2).sum().backward()
    assert torch.equal(A.grad.to_dense(), 2 * A.detach().to_dense())
    assert A.grad.pattern is A.pattern
