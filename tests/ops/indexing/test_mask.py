"""sparse_mask: repeats, other patterns, refusals."""

import pytest
import torch
from samples import made_by_torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS


def test_repeats_in_the_mask_count_once():
    mask = spgrad.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], torch.ones(3), (2, 2))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x.sparse_mask(mask)
    testing.assert_close(y, torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    assert y.is_coalesced()
    y.values().sum().backward()
    testing.assert_close(x.grad, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


@pytest.mark.parametrize("name", support.ALL)
def test_elements_that_the_input_lacks_are_explicit_zeros(name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    mask = spgrad.from_dense(torch.ones(4, 6))
    y = A.sparse_mask(mask)
    assert y.pattern is mask.pattern
    testing.assert_close(y, A.to_dense())
    none = A.sparse_mask(spgrad.from_dense(torch.zeros(4, 6)))
    assert none.nse == 0


def test_refusals():
    mask = spgrad.from_dense(torch.eye(3))
    with pytest.raises(TypeError, match=r"spgrad\.sparse_mask: `mask` is a dense tensor"):
        spgrad.sparse_mask(torch.eye(3), torch.eye(3))
    with pytest.raises(ValueError, match=r"spgrad\.sparse_mask: `input` has shape \(3,\)"):
        torch.ones(3).sparse_mask(mask)
    with pytest.raises(ValueError, match=r"spgrad\.sparse_mask: `input` has shape \(4, 4\)"):
        spgrad.from_dense(torch.eye(4)).sparse_mask(mask)


def bool_masks():
    """A dense bool matrix, and the sparse tensors that specify some of its False elements too."""
    D = torch.tensor(
        [[1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 1, 0]]
    )
    D = D.bool()
    indices = torch.ones(4, 6).nonzero().t()
    vals = D[indices[0], indices[1]]
    full = spgrad.sparse_coo_tensor(indices, vals, (4, 6))
    twice = torch.cat([indices, indices.flip(1)], 1)
    repeated = spgrad.sparse_coo_tensor(twice, torch.cat([vals, vals.flip(0)]), (4, 6))
    blocks = full.to_sparse_bsr((2, 3)), full.to_sparse_bsc((2, 3)), full.to_sparse_bsr((1, 2))
    some = spgrad.from_dense(D).to_sparse_bsr((2, 2)), spgrad.from_dense(D).to_sparse_bsc((1, 3))
    return D, [full, repeated, full.to_sparse_csr(), full.to_sparse_csc(), *blocks, *some]


def test_a_false_element_of_a_mask_takes_no_part_in_attention():
    D, masks = bool_masks()
    q, k, v = (torch.randn(n, 3, dtype=torch.float64) for n in (4, 6, 6))
    scores = (q @ k.t()).masked_fill(~D, -torch.inf).softmax(1).nan_to_num(0)
    for M in masks:
        given = [t.clone().requires_grad_() for t in (q, k, v)]
        y = spgrad.scaled_dot_product_attention(*given, M, scale=1.0)
        testing.assert_close(y, scores @ v)
        y.sum().backward()
        testing.assert_close(given[2].grad, scores.sum(0)[:, None].expand(6, 3))


READERS = {
    "any": lambda M: torch.any(M, 1),
    "all": lambda M: torch.all(M, 0),
    "count_nonzero": lambda M: torch.count_nonzero(M, 1),
    "nonzero": torch.nonzero,
    "sum": lambda M: torch.sum(M, 1),
    "amax": lambda M: torch.amax(M, 1),
    "amin": lambda M: torch.amin(M, 0),
    "to float": lambda M: M.to(torch.float64),
    "to int": lambda M: M.to(torch.int64) * 3,
}


@pytest.mark.parametrize("name", READERS)
def test_false_and_repeated_elements_count_as_in_a_dense_mask(name):
    D, masks = bool_masks()
    for M in masks:
        testing.assert_close(READERS[name](M), READERS[name](D))


def test_false_and_repeated_elements_take_nothing_from_a_tensor():
    D, masks = bool_masks()
    x = torch.arange(1.0, 25).view(4, 6)
    for M in masks:
        for layout in (torch.sparse_csr, torch.sparse_coo):
            A = spgrad.from_dense(x, layout)
            assert A[M].tolist() == A.masked_select(M).tolist() == x[D].tolist()
            A[M] = 0.0
            testing.assert_close(A, x.masked_fill(D, 0))


def test_repeated_elements_are_added_before_they_are_rounded():
    A = spgrad.sparse_coo_tensor([[0, 0, 1, 1]], torch.tensor([0.6, 0.6, 1.0, -1.0]), (2,))
    assert A.to(torch.int64).to_dense().tolist() == [1, 0]
    assert A.bool().to_dense().tolist() == [True, False]
    assert A.to(torch.float64)._nnz() == A._nnz() == 4


def test_a_mask_with_repeats_masks_once(sparse):
    make = torch if sparse is made_by_torch else spgrad
    mask = make.sparse_coo_tensor([[0, 0, 1], [1, 1, 2]], [1.0, 1.0, 1.0], (2, 3))
    x = torch.arange(6.0).view(2, 3)
    wanted = torch.tensor([[0.0, 1, 0], [0, 0, 5]])
    testing.assert_close(x.sparse_mask(mask), wanted)
    testing.assert_close(sparse(x, "coo").sparse_mask(mask), wanted)
