"""Splits of entries, and negative samples."""

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad import data


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def matrix(m=9, k=7, density=0.4, layout="csr"):
    dense = torch.rand(m, k, generator=generator(), dtype=torch.float64) + 0.1
    dense = dense * (torch.rand(m, k, generator=generator(1)) < density)
    return getattr(spgrad.from_dense(dense), f"to_sparse_{layout}")()


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_parts_add_up(layout):
    A = matrix(layout=layout).requires_grad_()
    parts = data.split_entries(A, (0.5, 0.3, 0.2), generator=generator())
    nse = spgrad.values(A).numel()
    assert [spgrad.values(p).numel() for p in parts] == [
        round(0.5 * nse),
        round(0.8 * nse) - round(0.5 * nse),
        nse - round(0.8 * nse),
    ]
    assert all(p.layout == A.layout for p in parts)
    assert_close(sum(p.to_dense() for p in parts), A.to_dense())
    assert_close(sum((p.to_dense() != 0).int() for p in parts), (A.to_dense() != 0).int())
    (parts[0].sum() + 3 * parts[2].sum()).backward()
    wanted = (parts[0].to_dense() != 0) + 3.0 * (parts[2].to_dense() != 0)
    assert_close(A.grad.to_dense(), wanted.double())


def test_each_entry_is_as_likely_in_each_part():
    A = matrix()
    count = torch.zeros(9, 7)
    for seed in range(500):
        count += data.split_entries(A, (0.25, 0.75), generator=generator(seed))[0].to_dense() != 0
    share = count[A.to_dense() != 0] / 500
    assert (share - 0.25).abs().max() < 0.1


@pytest.mark.parametrize("fractions", [(0.5,), (), (1.5, -0.5), (float("nan"), 1.0)])
def test_fractions_that_do_not_fit(fractions):
    with pytest.raises(ValueError, match="`fractions` is"):
        data.split_entries(matrix(), fractions)


@pytest.mark.parametrize("density", [0.0, 0.4, 0.95, 1.0])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_pairs_that_are_not_there(density, layout):
    A = matrix(density=density, layout=layout)
    missing = 63 - spgrad.values(A).numel()
    for num in {0, min(1, missing), missing // 3, missing}:
        found = data.negative_sampling(A, num, generator=generator())
        assert found.shape == (2, num)
        assert len(set(zip(*found.tolist(), strict=True))) == num
        assert (A.to_dense()[found[0], found[1]] == 0).all()
    with pytest.raises(ValueError, match=f"`num` is {missing + 1}; at most {missing}"):
        data.negative_sampling(A, missing + 1)


def test_each_missing_pair_is_as_likely():
    A = matrix()
    count = torch.zeros(9, 7)
    for seed in range(1000):
        count[tuple(data.negative_sampling(A, 5, generator=generator(seed)))] += 1
    there = count[A.to_dense() == 0]
    expected = 5000 / len(there)
    assert float(((there - expected) ** 2 / expected).sum()) < len(there) + 8 * len(there) ** 0.5


def test_a_huge_matrix():
    A = spgrad.sparse_coo_tensor(torch.tensor([[5], [7]]), torch.ones(1), (2**31, 2**31))
    found = data.negative_sampling(A.coalesce(), 1000)
    assert found.max() > 2**29
