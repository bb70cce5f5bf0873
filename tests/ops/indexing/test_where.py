"""where: which elements it has, numbers, NaN, refusals."""

import math

import pytest
import torch

import spgrad

C = torch.tensor([[True, False], [True, False]])
A = torch.tensor([[1.0, 0.0], [0.0, 4.0]])
B = torch.tensor([[5.0, 6.0], [0.0, 0.0]])


def sparse(x):
    return spgrad.from_dense(x)


def test_it_has_the_elements_of_all_sparse_arguments():
    found = spgrad.where(sparse(C), sparse(A), sparse(B).to_sparse_coo())
    assert found.pattern.name == "csr"
    assert found.nse == 4
    assert torch.equal(found.to_dense(), torch.where(C, A, B))


def test_numbers_and_a_method():
    assert torch.equal(torch.where(sparse(C), 2.0, sparse(B)).to_dense(), torch.where(C, 2.0, B))
    assert torch.equal(spgrad.where(C, sparse(A), 0).to_dense(), torch.where(C, A, 0))
    assert torch.equal(sparse(A).where(C, sparse(B)).to_dense(), A.where(C, B))
    assert torch.equal(sparse(A).where(sparse(C), 0.0).to_dense(), A.where(C, 0.0))


def test_its_values_are_contiguous():
    strided = torch.ones(3, 2).T
    hybrid = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], strided, (2, 2, 3), is_coalesced=True)
    assert not hybrid.values().is_contiguous()
    assert spgrad.where(hybrid != 0, hybrid, hybrid).values().is_contiguous()


@pytest.mark.parametrize("call", [torch.where, spgrad.where])
def test_a_condition_alone_gives_the_places_where_it_is_true(call):
    explicit = spgrad.sparse_csr_tensor([0, 2, 3], [0, 1, 0], [True, False, True], (2, 2))
    assert [t.tolist() for t in call(explicit)] == [[0, 1], [0, 0]]
    for found, wanted in zip(call(sparse(C).to_sparse_csc()), torch.where(C), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32])
def test_a_tensor_without_dimensions_decides_the_dtype_as_in_torch(dtype):
    for x in (torch.tensor(2.0, dtype=torch.float64), torch.tensor(2)):
        found = spgrad.where(sparse(C), x, sparse(A.to(dtype)))
        wanted = torch.where(C, x, A.to(dtype))
        assert found.dtype == wanted.dtype
        assert torch.equal(found.to_dense(), wanted)
    x = torch.tensor(2.0, requires_grad=True)
    spgrad.where(sparse(C), x, sparse(B)).to_dense().sum().backward()
    assert x.grad == 2


def test_what_is_not_taken_leaves_no_nan():
    bad = sparse(torch.tensor([[1.0, math.nan], [math.inf, 4.0]])).requires_grad_()
    found = spgrad.where(sparse(C), bad, sparse(B))
    assert found.to_dense()[0, 1] == 6
    found.to_dense()[0].sum().backward()
    assert bad.grad.to_dense().tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: spgrad.where(sparse(C), sparse(A), 1.0), "`other` is a float, which would make"),
        (lambda: spgrad.where(C, 1.0, sparse(A)), "`input` is a float"),
        (lambda: spgrad.where(sparse(A), sparse(A), sparse(B)), "`condition` has dtype float32"),
        (lambda: spgrad.where(sparse(C), sparse(A)), "`other` is None; a sparse or dense"),
        (lambda: spgrad.where(C), "`condition` is a dense tensor of shape"),
        (lambda: spgrad.where(C, A, B), "are dense; a sparse one"),
        (lambda: spgrad.where(sparse(C), "x", sparse(B)), "`input` is a str"),
        (lambda: spgrad.where(sparse(C), sparse(A), spgrad.eye(3)), "`other` has shape"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text):
        call()


@pytest.mark.parametrize("real", ["input", "other", "number"])
def test_gradients_of_a_real_and_a_complex_argument(real):
    """torch.where has none for them."""
    condition = spgrad.from_dense(torch.tensor([[True, False, True], [False, False, True]]))
    a = torch.tensor([[1.0, 0.0, 3.0], [4.0, 0.0, 0.0]], dtype=torch.float64)
    number = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    A = spgrad.from_dense(a).requires_grad_()
    C = spgrad.from_dense(a + 2j * a.flip(1)).requires_grad_()
    one, two = {"input": (A, C), "other": (C, A), "number": (number, C)}[real]
    wide = [t if t.is_complex() else t.to(torch.complex128) for t in (one, two)]
    got, want = spgrad.where(condition, one, two), spgrad.where(condition, *wide)
    assert got.dtype == torch.complex128
    torch.testing.assert_close(got, want)
    ours, theirs = (
        torch.autograd.grad(result.to_dense().abs().sum(), (one, two)) for result in (got, want)
    )
    for x, mine, other in zip((one, two), ours, theirs, strict=True):
        assert mine.dtype == x.dtype
        torch.testing.assert_close(mine, other)
