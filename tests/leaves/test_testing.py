"""The samples of `spgrad.testing` are what their documentation says."""

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("name", support.ALL)


@layouts
def test_random_values_stay_in_their_range(name):
    low, high = -4, 4
    A = testing.random_sparse((40, 40), LAYOUTS[name], dtype=torch.int64, density=1.1)
    assert A.nse * (4 if name[0] == "b" else 1) == 1600
    assert (A._vals.min(), A._vals.max()) == (low, high)
    B = testing.random_sparse((40, 40), LAYOUTS[name], density=1.1)
    assert 0.1 <= B._vals.abs().min() < 0.12
    assert 0.88 < B._vals.abs().max() <= 0.9
    assert 0.4 < (B._vals < 0).double().mean() < 0.6
    C = testing.random_sparse((40, 40), LAYOUTS[name], density=1.1, positive=True)
    assert (C._vals > 0).all()
    D = testing.random_sparse((40, 40), LAYOUTS[name], dtype=torch.uint8, density=1.1)
    assert (D._vals.min(), D._vals.max()) == (0, 4)
    E = testing.random_sparse((40, 40), LAYOUTS[name], dtype=torch.int64, positive=True)
    assert (E._vals.min(), E._vals.max()) == (1, 4)
    F = testing.random_sparse((40, 40), LAYOUTS[name], dtype=torch.complex128, positive=True)
    assert F._vals.imag.abs().max() == 0
    assert F._vals.real.min() > 0
    G = testing.random_sparse((40, 40), LAYOUTS[name], dtype=torch.complex128, density=1.1)
    assert 0.1 <= G._vals.abs().min() < 0.12
    assert 0.88 < G._vals.abs().max() <= 0.9
    assert torch.histc(G._vals.angle(), 8, -torch.pi, torch.pi).min() > 150  # in all directions


def test_uncoalesced_samples_repeat_shuffle_and_keep_sums_small():
    A = testing.random_sparse((20, 20), torch.sparse_coo, coalesced=False)
    once = testing.random_sparse((20, 20), torch.sparse_coo)
    assert A._nnz() == 2 * once.nse
    assert not A.is_coalesced()
    assert torch.equal(A.coalesce().indices(), once.indices())
    assert A.coalesce()._vals.abs().max() <= 0.9
    assert not torch.equal(A._indices(), A._indices().unique(dim=1))
    empty = testing.random_sparse((3, 3), torch.sparse_coo, coalesced=False, density=0.0)
    assert empty.nse == 0


@layouts
def test_samples_depend_on_the_seed_alone(name):
    first, again, other = (
        testing.random_sparse((9, 8, 6), LAYOUTS[name], seed=s) for s in (1, 1, 2)
    )
    assert torch.equal(first._vals, again._vals)
    assert first.pattern.same_as(again.pattern)
    assert not other.pattern.same_as(first.pattern)


def test_samples_take_the_shape_of_a_matrix_and_pad_it_where_they_are_square():
    wide = torch.ones(2, 3)
    cells = {(c.op.name, c.signature): c for c in testing.cells() if c.layout == "csr"}
    assert testing.sample(cells["sin", "A[m,k] -> C[m,k]"], matrix=wide)[0].shape == (2, 3)
    square = cells["matrix_power", "A[m,m] -> C[m,m]"]
    assert testing.sample(square, matrix=wide)[0].shape == (3, 3)


def test_comparison_tells_values_shapes_and_nan_apart():
    A = testing.random_sparse((4, 6))
    dense = A.to_dense()
    testing.assert_close(A, dense)
    for wrong in (dense + 1e-6, dense[:3], torch.where(dense == 0, torch.nan, dense)):
        with pytest.raises(AssertionError):
            testing.assert_close(A, wrong)
    testing.assert_close(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    testing.assert_close(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64))


def test_masks_and_leaves():
    A = testing.random_sparse((4, 6), torch.sparse_coo).requires_grad_()
    assert torch.equal(testing.mask_of(A.pattern), A.detach().to_dense() != 0)
    (twin,) = testing.dense_leaves([A])
    assert twin.is_leaf
    assert twin.requires_grad
    assert not spgrad.equal(A.detach(), twin * 0)
    (vals,) = testing.parameters([A])
    assert vals.data_ptr() != A._vals.data_ptr()
    (B,) = testing.with_parameters([A], (vals,))
    assert B.pattern is A.pattern
    B.sum().backward()
    assert (vals.grad == 1).all()


def test_a_random_tensor_that_no_layout_has_is_refused():
    with pytest.raises(ValueError, match="`blocksize`"):
        testing.random_sparse((12, 9), torch.sparse_bsr)
    with pytest.raises(NotImplementedError, match="two or more sparse dimensions"):
        testing.random_sparse((6,))


def test_the_first_item_of_a_batch_has_the_pattern_of_the_matrix():
    """The others have about half of it."""
    matrix = torch.tensor([[1.0, 0, 2], [0, 3, 0]])
    chance = testing._density_like(matrix, (2, 2, 2, 3))
    assert torch.equal(chance[0, 0], (matrix != 0).float())
    for item in (chance[0, 1], *chance[1]):
        assert torch.equal(item, (matrix != 0) / 2)
