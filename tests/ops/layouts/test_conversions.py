"""Conversions of any matrix keep every element, and undo each other."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matrices import BLOCKS, checked, matrices, properties
from samples import leaf

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

pytest.importorskip("scipy.sparse")


def elements(A):
    """The specified elements, explicit zeros and all, as a set of coordinates."""
    return set(map(tuple, testing.mask_of(A.pattern).nonzero().tolist()))


@properties
@given(A=matrices(batch=True), name=st.sampled_from(support.ALL), blocks=st.sampled_from(BLOCKS))
def test_conversions_keep_every_element(A, name, blocks):
    options = {"blocksize": blocks} if name.startswith("b") else {}
    if name in ("bsr", "bsc") and A.layout == LAYOUTS[name]:
        options = {}
    B = A.to_sparse(layout=LAYOUTS[name], **options)
    assert B.layout == LAYOUTS[name]
    assert B.dtype == A.dtype
    assert torch.equal(B.to_dense(), A.to_dense())
    filled = name.startswith("b")
    assert elements(B) >= elements(A) if filled else elements(B) == elements(A)
    assert [i.dtype for i in B.pattern.indices] == [A.pattern.indices[0].dtype] * len(
        B.pattern.indices
    )
    checked(B)
    back = B.to_sparse(layout=A.layout, blocksize=A.pattern.blocksize)
    assert torch.equal(back.to_dense(), A.to_dense())
    if not filled:
        assert back.pattern.same_as(A.pattern)
        assert torch.equal(back._vals, A._vals)


@properties
@given(A=matrices())
def test_native_round_trip(A):
    x = spgrad.to_torch(A)
    assert (x.layout, x.shape, x.dtype) == (A.layout, A.shape, A.dtype)
    assert torch.equal(x.to_dense(), A.to_dense())
    B = spgrad.from_torch(x)
    assert B.pattern.same_as(A.pattern)
    assert torch.equal(B._vals, A._vals)


@properties
@given(A=matrices())
def test_scipy_round_trip(A):
    S = spgrad.to_scipy(A)
    assert (S.toarray() == A.to_dense().numpy()).all()
    B = spgrad.from_scipy(S)
    if A.layout == torch.sparse_coo:
        B = B.coalesce()
    if A.layout != torch.sparse_bsc:
        assert B.pattern.same_as(A.pattern)
    assert torch.equal(B.to_dense(), A.to_dense())


@properties
@given(A=matrices(batch=True), name=st.sampled_from(support.ALL), blocks=st.sampled_from(BLOCKS))
def test_dense_round_trip(A, name, blocks):
    dense = A.to_dense()
    B = spgrad.from_dense(dense, LAYOUTS[name], blocksize=blocks if name[0] == "b" else None)
    assert torch.equal(B.to_dense(), dense)
    if name[0] != "b":
        assert B.pattern.elements == int((dense != 0).sum())
    checked(B)


@properties
@given(A=matrices(), seed=st.integers(0, 2**16))
def test_coalesce_undoes_repeating_and_shuffling(A, seed):
    A = A.to_sparse_coo()
    if A.dtype == torch.bool:
        A = A.to(torch.int64)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(2 * A.nse, generator=generator)
    indices = torch.cat([A.indices(), A.indices()], 1)[:, order]
    B = spgrad.sparse_coo_tensor(indices, torch.cat([A.values()] * 2)[order], A.shape)
    assert torch.equal(B.to_dense(), 2 * A.to_dense())
    C = B.coalesce()
    assert C.pattern.same_as(A.pattern)
    assert torch.equal(C.values(), 2 * A.values())
    assert C.coalesce() is C


@pytest.mark.parametrize("name", support.ALL)
def test_dense_in_another_dtype(name):
    A = leaf(name)
    y = A.to_dense(dtype=torch.float32)
    assert y.dtype == torch.float32
    assert torch.equal(y, A.detach().to_dense().float())
    y.sum().backward()
    assert A.grad.dtype == A.dtype


def test_infinite_parts_of_complex_elements_stay():
    value = complex(math.inf, -math.inf)
    for indices, size in (([[1]], (2,)), ([[1, 1], [0, 0]], (2, 1))):
        vals = torch.tensor([value, 1j][: len(indices[0])], requires_grad=True)
        x = spgrad.sparse_coo_tensor(indices, vals, size).to_dense()
        assert x.flatten().tolist() == [0, value]
        assert torch.autograd.grad(x.real.sum(), vals)[0].tolist() == [1] * len(vals)


@pytest.mark.parametrize("name", support.ALL)
def test_a_zero_keeps_its_sign(name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    x = spgrad.from_values(torch.full_like(A.values(), -0.0), A).to_dense()
    assert torch.equal(x.signbit(), testing.mask_of(A.pattern))


@pytest.mark.parametrize("to", ["bsr", "bsc"])
@pytest.mark.parametrize("name", ["bsr", "bsc"])
def test_blocks_become_blocks_of_another_size(name, to):
    A = testing.random_sparse((6, 12), LAYOUTS[name], blocksize=(2, 3)).requires_grad_()
    B = getattr(A, f"to_sparse_{to}")((3, 4))
    assert (B.layout, B.pattern.blocksize) == (LAYOUTS[to], (3, 4))
    assert torch.equal(B.to_dense(), A.to_dense())
    checked(B.detach())
    g = torch.randn(6, 12, dtype=A.dtype)
    B.to_dense().backward(g)
    assert torch.equal(A.grad.to_dense(), g * testing.mask_of(A.pattern))
    assert A.to_sparse(layout=LAYOUTS[to]).pattern.blocksize == (2, 3)


@pytest.mark.parametrize("to", ["bsr", "bsc"])
@pytest.mark.parametrize("blocks", [(4, 4), (3, 6), (3, 4), (8, 12)])
@pytest.mark.parametrize(
    "make",
    [lambda A, **how: A.to_sparse(**how), lambda A, **how: spgrad.from_dense(A.to_dense(), **how)],
)
def test_blocks_that_leave_rows_or_columns_over_are_refused(make, blocks, to):
    A = testing.random_sparse((4, 6))
    with pytest.raises(ValueError, match=r"ints that divide the matrix sizes \(4, 6\) are acc"):
        make(A, layout=LAYOUTS[to], blocksize=blocks)
