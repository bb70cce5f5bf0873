"""Patterns that are known to have ascending indices, which merges then need not look at."""

import itertools

import pytest
import torch

import spgrad
from spgrad import kernels

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]

ROWS = torch.tensor([6, 1, 2])

RESULTS = {
    "A.t()": lambda A: A.t(),
    "A @ A": lambda A: A @ A,
    "A[2:6]": lambda A: A[2:6],
    "A[:, 2:6]": lambda A: A[:, 2:6],
    "A[::2, ::2]": lambda A: A[::2, ::2],
    "flip": lambda A: A.flip(0),
    "A[rows]": lambda A: A[ROWS],
    "tril": torch.tril,
    "cat 0": lambda A: torch.cat([A, A], 0),
    "cat 1": lambda A: torch.cat([A, A], 1),
    "kron": lambda A: torch.kron(A[:2, :2], A[:4, :2]),
    "A + I": lambda A: A + spgrad.eye(8, layout=A.layout, blocksize=A.pattern.blocksize),
    "prune": lambda A: spgrad.prune(A, 0.5),
}
"""Operations on a matrix of shape (8, 8)."""


def matrix(layout):
    blocksize = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    x = torch.rand(8, 8) * (torch.rand(8, 8) < 0.5)
    return spgrad.from_dense(x, layout=layout, blocksize=blocksize)


def lines(pattern):
    """Pointers and plain indices; a COO matrix is one line of linear positions."""
    if not pattern.is_coo:
        return pattern.indices
    row, col = pattern.indices[0]
    return torch.tensor([0, len(row)]), row * pattern.shape[1] + col


def ascend(pattern):
    ptr, idx = lines(pattern)
    line = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())
    return bool(((idx.diff() > 0) | (line.diff() > 0)).all())


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_noted_is_true(layout, name):
    for _ in range(5):
        A = matrix(layout)
        for result in (A, RESULTS[name](A), RESULTS[name](A).to_sparse_csr()):
            assert not result.pattern.ascends or ascend(result.pattern)


@pytest.mark.parametrize("name", ["A @ A", "tril", "prune", "A[2:6]", "cat 0", "A + I"])
def test_results_of_csr_note_it(name):
    assert RESULTS[name](matrix(torch.sparse_csr)).pattern.ascends


def test_constructors_note_it():
    ptr, idx = torch.tensor([0, 1, 3]), torch.tensor([1, 0, 2])
    for A in (
        spgrad.sparse_csr_tensor(ptr, idx, torch.rand(3), (2, 3)),
        spgrad.sparse_coo_tensor(torch.stack([idx.sort().values, idx]), torch.rand(3)),
        spgrad.eye(3),
        spgrad.from_dense(torch.eye(3)),
        spgrad.spdiags(torch.rand(2, 3), torch.tensor([0, 1]), (3, 3)),
        spgrad.rand(9, 9, density=0.3),
        spgrad.banded(9, 2),
    ):
        assert A.pattern.ascends


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_conversions_and_transposes_note_it(layout, to):
    A = matrix(layout)
    blocksize = (2, 2) if to in (torch.sparse_bsr, torch.sparse_bsc) else None
    for B in (A, A.t()):
        assert B.to_sparse(layout=to, blocksize=blocksize).pattern.ascends
        assert B.to_sparse(layout=to, blocksize=blocksize).t().pattern.ascends


def test_sorting_notes_it():
    A = spgrad.sparse_coo_tensor(torch.randint(8, (2, 30)), torch.rand(30), (8, 8))
    assert not A.pattern.ascends
    assert A.coalesce().pattern.ascends
    assert A.to_sparse_csr().pattern.ascends


def test_a_conversion_of_unchecked_indices_does_not():
    ptr, idx = torch.tensor([0, 3, 5]), torch.tensor([2, 0, 1, 4, 3])
    A = spgrad.sparse_csr_tensor(ptr, idx, torch.rand(5), (2, 5), check_invariants=False)
    for B in (A, A.t(), A.to_sparse_coo(), A[:, 1:], torch.cat([A, A])):
        assert not B.pattern.ascends


def test_changed_indices_are_looked_at():
    """Otherwise the sum of a line that does not ascend would be wrong."""
    ptr, idx = torch.tensor([0, 3]), torch.tensor([0, 2, 4])
    A = spgrad.sparse_csr_tensor(ptr, idx, torch.rand(3), (1, 6))
    B = spgrad.sparse_csr_tensor(ptr.clone(), torch.tensor([1, 2, 3]), torch.rand(3), (1, 6))
    assert A.pattern.ascends
    idx.copy_(torch.tensor([4, 2, 0]))
    assert not A.pattern.ascends
    dense = torch.zeros(1, 6).index_copy_(1, idx, A.values()[None])
    assert torch.equal((A + B).to_dense(), dense + B.to_dense())


def test_tensors_of_inference_note_it():
    """torch counts no changes of such tensors."""
    with torch.inference_mode():
        assert matrix(torch.sparse_csr).pattern.ascends


def merged_or_refused(merge, operands, threads):
    """Threads that begin in the middle of lines notice some lines that do not ascend."""
    try:
        ptr, idx, *_ = merge(*operands, True)
    except RuntimeError as error:
        return threads > 1 and "do not ascend" in str(error)
    return int(ptr[-1]) == len(idx) <= len(operands[1]) + len(operands[4])


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("size", [3000, 100_000])
def test_a_merge_ends_whatever_the_order(size, threads):
    """Whatever a program did with the memory of indices that were checked before."""
    orders = [torch.arange(size), torch.arange(size).flip(0), torch.randperm(size)]
    orders += [o.view(-1, 10).t().reshape(-1) for o in orders]
    ptr, before = torch.tensor([0, size]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for a, b in itertools.product(orders, orders):
            operands = ptr, a, a.float(), ptr, b, b.float()
            assert merged_or_refused(kernels.union_values, operands, threads)
            assert merged_or_refused(kernels.intersection_values, operands, threads)
    finally:
        torch.set_num_threads(before)
