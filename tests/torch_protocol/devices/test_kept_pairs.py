"""Products of two sparse matrices from kept pairs of entries, as on a GPU."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.core import kept
from spgrad.ops.products import spgemm

LAYOUTS = ("coo", "csr", "csc", "bsr", "bsc")


@pytest.fixture
def pairs_kept(monkeypatch):
    """Pairs are kept on the CPU too, and no kernel finds them anew."""
    monkeypatch.setattr(spgemm, "lists_pairs", lambda like: True)
    for name in ("spgemm_values", "masked_spgemm"):
        monkeypatch.setattr(spgemm.kernels, name, None)


def matrix(layout, shape, seed, **options):
    options = {"dtype": torch.float64, "density": 0.3, **options}
    return testing.random_sparse(shape, testing.LAYOUTS[layout], seed=seed, **options)


def repeated(seed):
    """A COO matrix whose elements repeat and stand in no order."""
    made = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, 6, (2, 25), generator=made)
    values = torch.randn(25, generator=made, dtype=torch.float64)
    return spgrad.sparse_coo_tensor(indices, values, (6, 6))


def check(A, B):
    """Value and gradients of A B, of the first call and of later ones, beside the dense product."""
    a, b = A.to_dense().requires_grad_(), B.to_dense().requires_grad_()
    wanted = a @ b
    g = torch.randn(wanted.shape, dtype=wanted.dtype)
    wanted.backward(g)
    for _ in range(2):
        A, B = A.detach().requires_grad_(), B.detach().requires_grad_()
        C = A @ B
        torch.testing.assert_close(C.to_dense(), wanted)
        C.to_dense().backward(g)
        for sparse, dense in ((A, a), (B, b)):
            there = spgrad.from_values(torch.ones_like(sparse.detach().values()), sparse)
            assert sparse.grad.pattern is sparse.pattern
            torch.testing.assert_close(sparse.grad.to_dense(), dense.grad * there.to_dense())


@pytest.mark.usefixtures(pairs_kept.__name__)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_layouts(left, right):
    check(matrix(left, (6, 8), 0), matrix(right, (8, 4), 1))


@pytest.mark.usefixtures(pairs_kept.__name__)
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_batches(layout):
    check(matrix(layout, (3, 6, 8), 0), matrix(layout, (3, 8, 4), 1))


@pytest.mark.usefixtures(pairs_kept.__name__)
def test_no_entries():
    check(matrix("csr", (6, 8), 0, density=0.0), matrix("csr", (8, 4), 1))
    check(matrix("csr", (6, 8), 0), matrix("csr", (8, 4), 1, density=0.0))


@pytest.mark.usefixtures(pairs_kept.__name__)
def test_repeated_elements():
    A, B = repeated(0), repeated(1)
    wanted = A.to_dense() @ B.to_dense()
    for _ in range(2):
        torch.testing.assert_close((A @ B).to_dense(), wanted)
    A, B = A.requires_grad_(), B.requires_grad_()
    (A @ B).to_dense().sum().backward()
    row, col = A.pattern.indices[0]
    ones = torch.ones(6, 6, dtype=torch.float64)
    torch.testing.assert_close(A.grad._values(), (ones @ B.detach().to_dense().T)[row, col])


@pytest.mark.usefixtures(pairs_kept.__name__)
def test_second_order():
    A, B = matrix("csr", (5, 4), 0), matrix("csc", (4, 6), 1)

    def product(a, b):
        return spgrad.values(spgrad.from_values(a, A) @ spgrad.from_values(b, B))

    vals = [spgrad.values(t).clone().requires_grad_() for t in (A, B)]
    assert torch.autograd.gradcheck(product, vals)
    assert torch.autograd.gradgradcheck(product, vals)


@pytest.mark.usefixtures(pairs_kept.__name__)
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex128])
def test_dtypes(dtype):
    A, B = (matrix("csr", (6, 6), seed, dtype=dtype) for seed in (0, 1))
    for _ in range(2):
        torch.testing.assert_close((A @ B).to_dense(), A.to_dense() @ B.to_dense())


def test_more_pairs_than_are_kept(monkeypatch):
    """Kernels find them in each call."""
    monkeypatch.setattr(spgemm, "lists_pairs", lambda like: True)
    monkeypatch.setattr(spgemm, "MOST_PAIRS", 1)
    A, B = matrix("csr", (6, 8), 0), matrix("csr", (8, 4), 1)
    check(A, B)
    assert (A @ B).nse
    assert A.pattern.derived(kept.PRODUCT)[B.pattern].pairs is None


def test_no_pairs_are_kept_on_the_cpu():
    A, B = matrix("csr", (6, 8), 0), matrix("csr", (8, 4), 1)
    assert (A @ B).nse
    assert A.pattern.derived(kept.PRODUCT)[B.pattern].pairs is None
