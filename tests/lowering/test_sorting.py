"""Sorting coordinates: one key, several keys, keys that are too long for a counting sort."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.lowering import sorting

SIZES = {
    "one_key": (7, 5, 3),
    "two_keys": (300, 400, 5),
    "a_key_for_each": (300, 400, 350),
    "joined_in_pairs": (200, 250, 300, 200),
    "too_long_to_count": (5, 2**40, 3),
}


def distinct(sizes, count=500):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([torch.randint(n, (count,), generator=generator) for n in sizes])
    found = drawn.unique(dim=1)
    return found[:, torch.randperm(found.shape[1], generator=generator)]


@pytest.mark.parametrize("case", SIZES)
def test_lexicographic(case):
    indices = distinct(SIZES[case])
    found = sorting.lexicographic(indices, SIZES[case])
    assert found.dtype == torch.int64
    assert torch.equal(indices[:, found], indices.unique(dim=1))


@pytest.mark.parametrize("case", ["one_key", "two_keys", "a_key_for_each", "joined_in_pairs"])
@pytest.mark.parametrize("leading", [0, 1, 2])
def test_lexicographic_of_leading_dimensions_keeps_the_order_of_the_others(case, leading):
    indices = distinct(SIZES[case])
    behind = indices[:, sorting.lexicographic(indices[leading:], SIZES[case][leading:])]
    found = sorting.lexicographic(behind, SIZES[case], leading)
    assert torch.equal(behind[:, found], indices.unique(dim=1) if leading else behind)


@pytest.mark.parametrize("case", ["two_keys", "a_key_for_each", "joined_in_pairs"])
def test_permuted_coordinates_are_sorted(case):
    indices = distinct(SIZES[case])
    A = spgrad.sparse_coo_tensor(indices, torch.arange(1.0, indices.shape[1] + 1), SIZES[case])
    A = A.coalesce().requires_grad_()
    for dims in ((2, 0, 1), (2, 1, 0), (1, 2, 0)):
        dims = (*dims, *range(3, len(SIZES[case])))
        B = A.permute(dims)
        assert B.is_coalesced()
        assert torch.equal(B.indices(), B.indices().unique(dim=1))
        assert torch.equal(A[tuple(B.indices()[dims.index(d)] for d in range(A.dim()))], B.values())
        weights = torch.arange(float(A.nse))
        (grad,) = torch.autograd.grad((B.values() * weights).sum(), A)
        assert torch.equal(grad.permute(dims).values(), weights)


def test_coalesce_of_dimensions_that_do_not_join():
    indices = distinct(SIZES["a_key_for_each"])
    twice = torch.cat([indices, indices.flip(1)], 1)
    A = spgrad.sparse_coo_tensor(twice, torch.ones(twice.shape[1]), SIZES["a_key_for_each"])
    assert torch.equal(A.coalesce().indices(), indices.unique(dim=1))
    testing.assert_close(A.coalesce().values(), torch.full((indices.shape[1],), 2.0))


def test_many():
    pattern = spgrad.eye(20_000).pattern
    assert sorting.many(80_001, pattern)
    assert not sorting.many(80_000, pattern)
    assert not sorting.many(1 << 16, spgrad.eye(2).pattern)
    assert sorting.many((1 << 16) + 1, spgrad.eye(2).pattern)
