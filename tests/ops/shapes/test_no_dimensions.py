"""Tensors without dimensions: torch lets them be squeezed, exchanged and flattened."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.lowering.views import rows

POINT = spgrad.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64), torch.tensor([3.0]), ())


@pytest.mark.parametrize("dim", [0, -1])
def test_dimensions_that_a_point_may_be_asked_for(dim):
    assert POINT.squeeze(dim) is POINT
    assert POINT.squeeze() is POINT
    assert POINT.transpose(dim, dim) is POINT
    assert torch.swapaxes(POINT, 0, -1) is POINT


@pytest.mark.parametrize("dim", [1, -2])
def test_others_are_refused(dim):
    for call in (
        lambda: POINT.squeeze(dim),
        lambda: POINT.transpose(dim, 0),
        lambda: POINT.transpose(0, dim),
        lambda: POINT.flatten(dim),
    ):
        with pytest.raises(spgrad.ArgumentValueError, match=r"`\w+` is -?\d for [01] dimension"):
            call()


def test_a_flat_point_is_a_vector():
    assert POINT.flatten().shape == (1,)
    assert POINT.flatten().to_dense().tolist() == [3.0]
    assert POINT.reshape(1, 1).shape == (1, 1)
    assert POINT.unsqueeze(0).shape == POINT.unsqueeze(-1).shape == (1,)


def test_a_batch_whose_columns_pass_int32_in_all():
    """Batches are one block-diagonal matrix: the third item's columns start at 2^31."""
    k = 2**30
    indices = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1], [5, k - 1, 7, k - 1]], dtype=torch.int32)
    A = spgrad.sparse_coo_tensor(indices, torch.arange(1.0, 5.0), (3, 2, k), is_coalesced=True)
    view = rows(A.pattern)
    assert view.idx.tolist() == [5, 2 * k - 1, 2 * k + 7, 3 * k - 1]
    assert view.ptr.tolist() == [0, 0, 1, 2, 2, 3, 4]


def test_coordinates_in_disorder_have_ordered_rows():
    A = testing.random_sparse((6, 5), torch.sparse_coo, coalesced=False)
    view = rows(A.pattern)
    assert view.perm is not None
    row, col = A._indices()
    assert torch.equal(row[view.perm.long()], row.sort().values)
    assert torch.equal(col[view.perm.long()], view.idx.long())
