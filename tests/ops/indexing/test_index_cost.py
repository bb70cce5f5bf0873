"""What an index expression looks at, keeps and copies."""

import pytest
import torch
from samples import leaf

import spgrad
from spgrad import testing
from spgrad.core import kept
from spgrad.ops.indexing import compressed


def test_rows_of_csr_and_coo_look_at_nothing_else():
    """No conversion, transpose or list of all positions is made for rows, ranges and points."""
    for name in ("csr", "csc", "coo"):
        A = leaf(name, (40, 60)).detach()
        before = set(A.pattern._derived)
        part = A[:, 3] if name == "csc" else A[3]
        assert part.nse < A.nse
        _ = (A[:, 3:9], A[:, 5:6]) if name == "csc" else (A[3:9], A[5:6])
        _ = A[2, 3], A[:, [4, 2]] if name == "csc" else A[[4, 2]]
        assert set(A.pattern._derived) - before == {kept.PART}


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


def test_pointers_are_int64_where_rows_have_more_entries_than_int32_counts(monkeypatch):
    monkeypatch.setattr(compressed, "_INT32", 3)  # in place of 2^31 - 1
    ptr, idx = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 1, 0]).int()
    A = spgrad.sparse_csr_tensor(ptr, idx, torch.ones(3), (2, 2))
    for rows, dtype in ([1, 1, 1], torch.int32), ([0, 0, 1], torch.int64):
        found = A[rows].pattern
        assert [t.dtype for t in found.indices] == [dtype, dtype]
