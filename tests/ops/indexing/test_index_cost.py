"""What an index expression looks at, keeps and copies."""

import pytest
import torch
from samples import leaf

import spgrad
from spgrad import testing
from spgrad.core import kept
from spgrad.ops.indexing import compressed, fast


def test_rows_of_csr_and_coo_look_at_nothing_else():
    """No conversion, transpose or list of all positions is made for rows, ranges and points."""
    for name in ("csr", "csc", "coo"):
        A = leaf(name, (40, 60)).detach()
        before = set(A.pattern._derived)
        part = A[:, 3] if name == "csc" else A[3]
        assert part.nse < A.nse
        _ = (A[:, 3:9], A[:, 5:6]) if name == "csc" else (A[3:9], A[5:6])
        _ = A[2, 3]
        assert set(A.pattern._derived) - before == {kept.PART}
        _ = A[:, [4, 2]] if name == "csc" else A[[4, 2]]
        pointers = {kept.POINTERS} if name == "coo" else set()
        assert set(A.pattern._derived) - before == {kept.PART} | pointers


@pytest.mark.parametrize("index", [torch.tensor([4, 2]), slice(3, 9), (slice(None), slice(1, 4))])
def test_parts_of_inference_mode_have_patterns_for_training(index):
    A = leaf("csr", (40, 60)).detach()
    with torch.inference_mode():
        pattern = A[index].pattern
    assert not any(t.is_inference() for t in pattern.indices)


def test_index_work_is_kept_for_slices_and_limited():
    A = leaf()
    assert A[1:3].pattern is A[1:3].pattern
    for i in range(4):
        for j in range(4):
            A[i:, j:]
    assert len(A.pattern.derived(kept.PART)) <= 8
    with torch.inference_mode():
        part = A.detach()[0:2]
    assert not part.pattern.indices[0].is_inference()


def test_parts_are_copies():
    A = leaf().detach()
    before = A.to_dense()
    for y in (A[1:3], A[0], A[[0]], A.unbind()[0], A.narrow(1, 0, 3)):
        y.mul_(2)
        assert y._vals.untyped_storage().data_ptr() != A._vals.untyped_storage().data_ptr()
        idx = y.pattern.indices[-1]
        assert idx.untyped_storage().nbytes() <= idx.numel() * 16
    testing.assert_close(A, before)


@pytest.mark.parametrize("name", ["csr", "csc", "bsr", "bsc"])
def test_parts_of_a_batch_keep_no_indices_of_the_whole(name):
    A = leaf(name, (16, 8, 12)).detach()
    for y in (A[3], A[2:4], A[5, :, 4:8], A[5, 4:8], A[[1, 2]]):
        for index in y.pattern.indices:
            assert index.untyped_storage().nbytes() <= (index.numel() + 1) * index.itemsize


@pytest.mark.parametrize("name", ["csr", "csc"])
def test_a_part_of_all_elements_shares_their_indices(name):
    A = leaf(name, (1, 8, 12)).detach()
    assert A[0].pattern.indices[1].data_ptr() == A.pattern.indices[1].data_ptr()


def test_pointers_are_int64_where_rows_have_more_entries_than_int32_counts(monkeypatch):
    monkeypatch.setattr(compressed, "_INT32", 3)  # in place of 2^31 - 1
    ptr, idx = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 1, 0]).int()
    A = spgrad.sparse_csr_tensor(ptr, idx, torch.ones(3), (2, 2))
    for rows, dtype in ([1, 1, 1], torch.int32), ([0, 0, 1], torch.int64):
        found = A[rows].pattern
        assert [t.dtype for t in found.indices] == [dtype, dtype]
    for columns, dtype in ([0, 1, 1], torch.int64), ([1, 0], torch.int32), ([1], torch.int32):
        found = A[:, columns]
        assert [t.dtype for t in found.pattern.indices] == [dtype, dtype]
        assert torch.equal(found.to_dense(), A.to_dense()[:, columns])
    assert A[:, [1, 1, 1, 1]].pattern.indices[0].dtype == torch.int64
    one = spgrad.sparse_csr_tensor(ptr[[0, 0]], idx[:0], torch.ones(0), (1, 4))
    assert one[:, [3, 2, 1]].pattern.indices[0].dtype == torch.int32
    one = spgrad.sparse_csr_tensor(ptr[[0, 2]] // 2, idx[:1], torch.ones(1), (1, 4))
    assert one[:, [3, 2, 1, 0]].pattern.indices[0].dtype == torch.int64


def test_rows_that_int32_may_not_count_are_taken_by_int64(monkeypatch):
    """The quick way for rows alone has pointers of the dtype that the matrix has."""
    for module in (compressed, fast):
        monkeypatch.setattr(module, "_INT32", 3)  # in place of 2^31 - 1
    ptr, idx = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 1, 0]).int()
    A = spgrad.sparse_csr_tensor(ptr, idx, torch.ones(3), (2, 2))
    for rows, dtype in ([1], torch.int32), ([0, 0], torch.int64), ([1, 1], torch.int32):
        found = A[torch.tensor(rows)]
        assert [t.dtype for t in found.pattern.indices] == [dtype, dtype]
        assert torch.equal(found.to_dense(), A.to_dense()[rows])


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_lists_of_rows_and_columns_of_coo(index_dtype):
    """Few rows are searched for; many rows, and columns, are taken of lines, as in CSR.

    A matrix of few elements is taken of lines for any number of rows.
    """
    small = testing.random_sparse((200, 50), torch.sparse_coo, index_dtype=index_dtype)
    assert torch.equal(small[torch.tensor([7])].to_dense(), small.to_dense()[[7]])
    assert small.pattern.derived(kept.POINTERS) is not None
    A, again = (
        testing.random_sparse((2000, 50), torch.sparse_coo, density=0.5, index_dtype=index_dtype)
        for _ in range(2)
    )
    few, many = torch.tensor([7, 3, 7]), torch.randperm(2000)[:900]
    columns = torch.tensor([30, 2, 49, 2])
    x = again.to_dense()
    for rows, pointers in ((few, False), (many, True), (few, True)):
        assert torch.equal(A[rows].to_dense(), x[rows])
        assert (A.pattern.derived(kept.POINTERS) is not None) == pointers
    A.requires_grad_()
    for key in (many, (slice(None), columns), (slice(9, 150, 2), columns)):
        taken = A[key]
        expected = x.clone().requires_grad_()
        assert taken.layout == torch.sparse_coo
        assert taken.pattern.indices[0].dtype == index_dtype
        assert torch.equal(taken.to_dense(), x[key])
        linear = taken.indices()[0].long() * 50 + taken.indices()[1]
        assert bool((linear.diff() > 0).all())
        g = torch.randn(taken.shape, dtype=x.dtype)
        (taken.to_dense() * g).sum().backward()
        (expected[key] * g).sum().backward()
        torch.testing.assert_close(A.grad.to_dense(), expected.grad * (x != 0))
        A.grad = None


def test_lists_of_a_coo_matrix_of_far_more_rows_or_columns_than_elements():
    indices = torch.tensor([[3, 2**31], [1, 2**30]])
    A = spgrad.sparse_coo_tensor(indices, torch.ones(2), (2**31 + 1, 2**30 + 1), is_coalesced=True)
    assert A[torch.tensor([2**31, 5])].indices().tolist() == [[0], [2**30]]
    assert A[:, torch.tensor([2, 1])].indices().tolist() == [[3], [1]]
    wide = A[torch.tensor([2**31, 3])]
    assert wide[:, torch.tensor([1, 2**30])].indices().tolist() == [[0, 1], [1, 0]]
