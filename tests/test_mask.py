"""sparse_mask: repeats, other patterns, refusals."""

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.pattern import LAYOUTS


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
    with pytest.raises(TypeError, match=r"spgrad\.sparse_mask: `mask` is a strided tensor"):
        spgrad.sparse_mask(torch.eye(3), torch.eye(3))
    with pytest.raises(ValueError, match=r"spgrad\.sparse_mask: `input` has shape \(3,\)"):
        torch.ones(3).sparse_mask(mask)
    with pytest.raises(ValueError, match=r"spgrad\.sparse_mask: `input` has shape \(4, 4\)"):
        spgrad.from_dense(torch.eye(4)).sparse_mask(mask)
