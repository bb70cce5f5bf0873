"""Ranges of entries that a pattern without some of its entries is made of."""

import pytest
import torch

import spgrad
from spgrad.lowering.ranges import lines_of, without_entries


@pytest.mark.parametrize("left_out", [[], [0], [8], [0, 4, 8]])
def test_the_ranges_between_entries_that_are_left_out(left_out):
    pattern = spgrad.from_dense(torch.ones(3, 3)).pattern
    entry = torch.tensor(left_out, dtype=torch.int64)
    there = torch.tensor([any(e // 3 == row for e in left_out) for row in range(3)])
    made, ranges = without_entries(lines_of(pattern), entry, there)
    kept = [e for e in range(9) if e not in left_out]
    pairs = zip(ranges.begin.tolist(), ranges.end.tolist(), strict=True)
    assert [e for begin, end in pairs for e in range(begin, end)] == kept
    assert torch.equal(ranges.ptr.diff(), ranges.end - ranges.begin)
    assert int(ranges.ptr[-1]) == ranges.count == len(kept)
    assert made.indices[1].tolist() == [e % 3 for e in kept]
