"""The views by rows of coordinates: sizes past int32, coordinates in disorder."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS, Pattern
from spgrad.lowering.views import cols, row_pointers, rows


def test_a_batch_whose_columns_pass_int32_in_all():
    """Batches are one block-diagonal matrix: the third item's columns start at 2^31."""
    k = 2**30
    indices = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1], [5, k - 1, 7, k - 1]], dtype=torch.int32)
    A = spgrad.sparse_coo_tensor(indices, torch.arange(1.0, 5.0), (3, 2, k), is_coalesced=True)
    view = rows(A.pattern)
    assert view.idx.tolist() == [5, 2 * k - 1, 2 * k + 7, 3 * k - 1]
    assert view.ptr.tolist() == [0, 0, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("shape", [(4, 6), (1, 4, 6)])
@pytest.mark.parametrize("name", ["csr", "csc"])
def test_the_stored_lines_of_one_matrix_are_the_memory_of_its_indices(name, shape):
    """Only the columns of a second item are moved behind those of the first."""
    A = testing.random_sparse(shape, LAYOUTS[name], index_dtype=torch.int32)
    view = (rows if name == "csr" else cols)(A.pattern)
    assert [view.ptr.data_ptr(), view.idx.data_ptr()] == [i.data_ptr() for i in A.pattern.indices]


def test_coordinates_in_disorder_have_ordered_rows():
    A = testing.random_sparse((6, 5), torch.sparse_coo, coalesced=False)
    view = rows(A.pattern)
    assert view.perm is not None
    row, col = A._indices()
    assert torch.equal(row[view.perm.long()], row.sort().values)
    assert torch.equal(col[view.perm.long()], view.idx.long())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_sum_of_two_patterns_knows_its_row_pointers(dtype):
    """The merge finds them, so the next operation does not compute them again."""
    A, B = (
        testing.random_sparse((6, 5), torch.sparse_coo, seed=seed, index_dtype=dtype)
        for seed in (0, 1)
    )
    found = (A + B).pattern
    kept_ones = found.derived(kept.ROWS if dtype == torch.int32 else kept.POINTERS)
    ptr = kept_ones.ptr if dtype == torch.int32 else kept_ones
    assert torch.equal(ptr, row_pointers(Pattern.from_spec(found.spec, (6, 5), found.indices)))
    assert found.derived(kept.LINEAR) is None


def test_a_sum_of_two_vectors_knows_the_positions_of_its_elements():
    """A vector has no rows, so the merge joins positions."""
    A, B = (testing.random_sparse((30,), torch.sparse_coo, seed=seed) for seed in (0, 1))
    found = (A + B).pattern
    assert torch.equal(found.derived(kept.LINEAR), found.indices[0][0])


def test_few_elements_in_many_rows_are_merged_without_row_pointers():
    indices = torch.tensor([[3, 2**40], [1, 2]])
    A = spgrad.sparse_coo_tensor(indices, torch.ones(2), (2**40 + 1, 5), is_coalesced=True)
    B = spgrad.sparse_coo_tensor(indices[:, 1:], torch.ones(1), (2**40 + 1, 5), is_coalesced=True)
    C = A + B
    assert torch.equal(C.indices(), indices)
    assert C.values().tolist() == [1, 2]


def test_row_pointers_are_those_of_the_view():
    A = testing.random_sparse((6, 5), torch.sparse_coo, coalesced=True)
    ptr = row_pointers(A.pattern)
    assert row_pointers(A.pattern) is ptr
    assert rows(A.pattern).ptr.tolist() == ptr.tolist()
    assert row_pointers(A.pattern) is rows(A.pattern).ptr
