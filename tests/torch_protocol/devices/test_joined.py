"""Patterns that are joined as on a device: by one merge, without a comparison before."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.lowering import align

LAYOUTS = ("csr", "csc", "bsr", "bsc", "coo")
JOINS = {
    "either": torch.add,
    "both": torch.mul,
    "first": lambda A, B: A.sparse_mask(B),
}


def matrix(layout, seed, index_dtype=torch.int32):
    A = testing.random_sparse((12, 12), testing.LAYOUTS[layout], seed=seed, index_dtype=index_dtype)
    return A.requires_grad_()


def of_equal_elements(A):
    """Another tensor, whose pattern has the same elements and other memory."""
    pattern = A.pattern
    indices = tuple(i.clone() for i in pattern.indices)
    made = type(pattern).from_spec(pattern.spec, pattern.shape, indices)
    return spgrad.SparseTensor(torch.randn_like(A.detach()._vals), made).requires_grad_()


def of_as_many_elements(A):
    """Other elements, as many: all two columns further on."""
    blocks = {"blocksize": A.pattern.blocksize} if A.pattern.blocksize else {}
    made = spgrad.from_dense(A.detach().to_dense().roll(2, 1), A.layout, **blocks)
    assert made.nse == A.nse
    return made.requires_grad_()


@pytest.fixture
def _on_a_device(monkeypatch):
    monkeypatch.setattr(align, "asks_device", lambda pattern: True)


@pytest.mark.parametrize("order", [("first", "both", "either"), ("either", "both", "first")])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["equal", "as many", "others"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("_on_a_device")
def test_results_are_those_of_dense_tensors(layout, kind, index_dtype, order):
    A = matrix(layout, 0, index_dtype)
    B = {"equal": of_equal_elements, "as many": of_as_many_elements}.get(
        kind, lambda A: matrix(layout, 1, index_dtype)
    )(A)
    a, b = (t.detach().to_dense().requires_grad_() for t in (A, B))
    of_b = spgrad.from_values(torch.ones_like(B.detach()._vals), B.detach()).to_dense()
    for name in order:
        y = JOINS[name](A, B)
        expected = a * of_b if name == "first" else JOINS[name](a, b)
        testing.assert_close(y.to_dense(), expected)
        if kind == "equal":
            assert y.nse == A.nse
        operands = [(A, a)] if name == "first" else [(A, a), (B, b)]
        weight = torch.randn(12, 12, dtype=torch.float64)
        ours = torch.autograd.grad((y.to_dense() * weight).sum(), [s for s, _ in operands])
        theirs = torch.autograd.grad((expected * weight).sum(), [d for _, d in operands])
        for (s, _), found, dense in zip(operands, ours, theirs, strict=True):
            assert found.pattern.same_as(s.pattern)
            where = spgrad.from_values(torch.ones_like(s.detach()._vals), s.detach()).to_dense()
            testing.assert_close(found.to_dense(), dense * where)


@pytest.mark.usefixtures("_on_a_device")
def test_equal_elements_keep_the_pattern():
    A = matrix("csr", 0)
    B = of_equal_elements(A)
    assert (A + B).pattern is A.pattern
    assert (A * B).pattern is A.pattern
    assert A.sparse_mask(B).pattern.same_as(A.pattern)


@pytest.mark.usefixtures("_on_a_device")
def test_a_quotient_after_a_product_of_equal_elements():
    """The product has found that they are equal; the quotient is on the pattern of the first."""
    A = matrix("csr", 0)
    B = of_equal_elements(A)
    assert (A * B).pattern is A.pattern
    quotient = A / B
    assert quotient.pattern is A.pattern
    assert torch.equal(quotient.detach()._vals, (A.detach()._vals / B.detach()._vals))
