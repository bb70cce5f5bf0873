"""unique: zeros that count, NaN, no elements, names of torch, refusals."""

import math

import pytest
import torch

import spgrad

X = torch.tensor([[0.0, 2.0, 2.0, 0.0], [-1.0, 0.0, 0.0, 2.0]])
LAYOUTS = ("coo", "csr", "csc", "bsr", "bsc")


def sparse(x, layout="csr"):
    blocks = {"blocksize": (2, 2)} if layout.startswith("bs") else {}
    return spgrad.from_dense(x).to_sparse(layout=getattr(torch, f"sparse_{layout}"), **blocks)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", [torch.unique, torch.Tensor.unique, spgrad.unique])
def test_it_is_that_of_the_dense_tensor(layout, call):
    A = sparse(X, layout)
    assert torch.equal(call(A), torch.unique(X))
    for found, wanted in zip(
        call(A, return_counts=True), torch.unique(X, return_counts=True), strict=True
    ):
        assert torch.equal(found, wanted)


def test_zero_is_there_only_if_an_element_is_zero():
    full = sparse(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
    assert torch.unique(full).tolist() == [1, 3]
    explicit = spgrad.sparse_csr_tensor([0, 2, 3], [0, 1, 1], [0.0, 5.0, 5.0], (2, 2))
    found, counts = torch.unique(explicit, return_counts=True)
    assert (found.tolist(), counts.tolist()) == ([0, 5], [2, 2])
    found, counts = spgrad.unique(explicit, return_counts=True, specified=True)
    assert (found.tolist(), counts.tolist()) == ([0, 5], [1, 2])


def test_every_nan_is_its_own_and_last():
    A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 1, 1], [math.nan, -0.0, math.nan], (2, 2))
    found, counts = torch.unique(A, return_counts=True)
    assert found[0] == 0
    assert found.isnan().tolist() == [False, True, True]
    assert counts.tolist() == [2, 1, 1]


def test_repeated_indices_are_added_first():
    A = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (1, 3), is_coalesced=False)
    found, counts = torch.unique(A, return_counts=True)
    assert (found.tolist(), counts.tolist()) == ([0, 3], [2, 1])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)])
def test_no_elements(shape):
    found, counts = torch.unique(spgrad.zeros(*shape), return_counts=True)
    wanted = torch.unique(torch.zeros(shape), return_counts=True)
    assert (found.tolist(), counts.tolist()) == tuple(t.tolist() for t in wanted)


def test_a_matrix_too_large_to_be_dense():
    A = spgrad.sparse_coo_tensor([[5, 7], [1, 2]], [1.0, 1.0], (2**31, 2**31))
    found, counts = torch.unique(A, return_counts=True)
    assert (found.tolist(), counts.tolist()) == ([0, 1], [2**62 - 2, 2])


def test_its_backward_raises_as_that_of_torch_does():
    A = sparse(X).requires_grad_()
    with pytest.raises(RuntimeError, match="_unique2"):
        torch.unique(A).sum().backward()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda A: torch.unique(A, return_inverse=True), "`return_inverse` is True, and the"),
        (lambda A: A.unique(dim=0), "`dim` is 0; None is accepted"),
        (lambda A: torch.unique(A.to(torch.complex64)), "dtype complex64"),
        (lambda A: spgrad.unique(A, specified=1), "`specified` is 1; True and False"),
        (lambda A: spgrad.unique(A.to_dense()), "spgrad.unique: `input` is a dense tensor"),
        (torch.unique_consecutive, "has no form for a SparseTensor"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text):
        call(sparse(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_many_numbers(dtype):
    """Those of floating-point dtypes are sorted by their digits."""
    x = torch.randn(60, 90, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[:, ::7] = x[:, 1::7]
    x[0, :6] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, math.nan, 0.0])
    A = sparse(x)
    found, counts = torch.unique(A, return_counts=True)
    wanted, often = torch.unique(x, return_counts=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(counts, often)
    with pytest.raises(RuntimeError, match="derivative for 'unique"):
        spgrad.unique(A.clone().requires_grad_()).sum().backward()
