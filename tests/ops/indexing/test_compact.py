"""compact and prune(keep=): rows and columns of their own, refusals."""

import math

import pytest
import torch

import spgrad


def test_rows_and_columns_that_stay():
    x = torch.zeros(5, 7, dtype=torch.float64)
    x[1, 2], x[3, 2], x[3, 6] = 1, 2, 3
    A = spgrad.from_dense(x).requires_grad_()
    small, rows, cols = spgrad.compact(A)
    assert rows.tolist() == [1, 3]
    assert cols.tolist() == [2, 6]
    assert torch.equal(small.to_dense(), x[rows][:, cols])
    (small * 2).sum().backward()
    assert A.grad.values().tolist() == [2, 2, 2]


def test_elements_with_dense_dimensions_stay_whole():
    A = spgrad.sparse_csr_tensor([0, 0, 1, 1], [2], torch.tensor([[0.0, 5.0]]), (3, 4, 2))
    small, rows, cols = spgrad.compact(A)
    assert (rows.tolist(), cols.tolist()) == ([1], [2])
    assert small.to_dense().tolist() == [[[0, 5]]]


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc])
def test_blocks_stay_whole(layout):
    x = torch.zeros(6, 12)
    x[1, 5] = x[1, 7] = x[4, 5] = 1
    A = spgrad.from_dense(x).to_sparse(layout=layout, blocksize=(2, 3))
    small, rows, cols = spgrad.compact(A)
    assert (small.layout, small.pattern.blocksize) == (layout, (2, 3))
    assert (rows.tolist(), cols.tolist()) == ([0, 1, 4, 5], [3, 4, 5, 6, 7, 8])
    assert torch.equal(small.to_dense(), x[rows][:, cols])


def test_rows_and_columns_are_the_caller_s_own():
    A = spgrad.eye(3)
    for lines in spgrad.compact(A)[1:]:
        lines.zero_()
    assert [lines.tolist() for lines in spgrad.compact(A)[1:]] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_far_more_columns_than_elements(layout, index_dtype):
    """Takes memory for the elements, and for the pointers of the layout, not for all columns."""
    large = 2**31 - 1 if index_dtype == torch.int32 else 10**12
    indices = torch.tensor([[2, 0, 2], [7, large - 1, 5]], dtype=index_dtype)
    A = spgrad.sparse_coo_tensor(indices, torch.tensor([1.0, 2, 3]), (4, large)).coalesce()
    if layout == torch.sparse_csc:
        A = A.to_sparse_csr().t()
    elif layout == torch.sparse_csr:
        A = A.to_sparse_csr()
    small, rows, cols = spgrad.compact(A.requires_grad_())
    wanted = torch.tensor([[0.0, 0, 2], [3, 1, 0]])
    lines = [[0, 2], [5, 7, large - 1]]
    if layout == torch.sparse_csc:
        wanted, lines = wanted.t(), lines[::-1]
    assert [rows.tolist(), cols.tolist()] == lines
    assert (rows.dtype, cols.dtype) == (torch.int64, torch.int64)
    assert small.pattern.indices[0].dtype == index_dtype
    assert torch.equal(small.to_dense(), wanted)
    (small * 2).to_dense().sum().backward()
    assert A.grad._values().tolist() == [2, 2, 2]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 2)])
def test_nothing_stays_of_nothing(shape):
    assert spgrad.compact(spgrad.zeros(*shape)).A.shape == (0, 0)


def test_a_batch_is_refused():
    with pytest.raises(spgrad.SpgradError, match="one matrix of a batch"):
        spgrad.compact(spgrad.zeros(2, 3, 3))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_prune_sees_the_magnitude_of_the_least_int(dtype):
    ends = torch.iinfo(dtype)
    values = [ends.max, ends.min, 1, 0, -5]
    A = spgrad.sparse_csr_tensor([0, 5], [0, 1, 2, 3, 4], torch.tensor(values, dtype=dtype), (1, 5))
    thresholds = (0, 4.5, 5, ends.max, 128, 200, 2**40, 2**63 - 1, 2**63, math.inf)
    for threshold in thresholds:
        wanted = [0 if abs(v) <= threshold else v for v in values]
        assert spgrad.prune(A, threshold).to_dense().tolist() == [wanted]
    assert spgrad.prune(A).nse == 4
    assert spgrad.prune(A, math.nan).nse == spgrad.prune(A, -300).nse == 5
    assert spgrad.prune(A, keep=1).to_dense().tolist() == [[0, ends.min, 0, 0, 0]]


def test_prune_of_bools_keeps_the_first_of_each_row():
    A = spgrad.sparse_csr_tensor([0, 3, 3], [0, 1, 3], torch.tensor([False, True, True]), (2, 4))
    assert spgrad.prune(A, keep=1).to_dense().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


def test_prune_keeps_the_largest_of_each_row():
    A = spgrad.from_dense(torch.tensor([[1.0, -3.0, 2.0], [0.0, 1.0, -1.0], [0.0, 0.0, 5.0]]))
    kept = spgrad.prune(A, keep=1)
    assert kept.to_dense().tolist() == [[0, -3, 0], [0, 1, 0], [0, 0, 5]]
    assert spgrad.prune(A, 1.5, keep=2).nse == 3
    assert spgrad.prune(A, keep=0).nse == 0


@pytest.mark.parametrize(
    ("keep", "text"), [(-1, "`keep` is -1; a number from 0"), (1.5, "`keep` is 1.5; an int")]
)
def test_prune_refuses(keep, text):
    with pytest.raises(spgrad.SpgradError, match=text):
        spgrad.prune(spgrad.eye(2), keep=keep)


def test_prune_refuses_to_rank_vectors():
    A = spgrad.sparse_csr_tensor([0, 1], [0], torch.ones(1, 2), (1, 1, 2))
    with pytest.raises(spgrad.UnsupportedError, match="dense dimension"):
        spgrad.prune(A, keep=1)
