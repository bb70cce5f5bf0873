"""The views by rows of coordinates: sizes past int32, coordinates in disorder."""

import torch

import spgrad
from spgrad import testing
from spgrad.core import kept
from spgrad.lowering.views import rows


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


def test_a_sum_of_two_patterns_knows_the_positions_of_its_elements():
    """The merge finds them, so the next operation does not compute them again."""
    A, B = (testing.random_sparse((6, 5), torch.sparse_coo, seed=seed) for seed in (0, 1))
    found = (A + B).pattern
    row, col = found.indices[0]
    assert torch.equal(found.derived(kept.LINEAR), row * 5 + col)
