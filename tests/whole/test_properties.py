"""What holds for every tensor: conversions undo each other, and products are linear."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

pytest.importorskip("scipy.sparse")

settings.register_profile("properties", parent=settings.default, max_examples=30)
properties = settings.get_profile("properties")

INDEX_DTYPES = (torch.int32, torch.int64)
DTYPES = (torch.float32, torch.float64, torch.complex128, torch.int64, torch.bool)
BLOCKS = ((1, 1), (2, 1), (1, 3), (2, 3))


@st.composite
def matrices(draw, *, batch=False, dtypes=DTYPES, rows=None):
    """A SparseTensor of any layout, of whole numbers, so that sums are exact."""
    name = draw(st.sampled_from(support.ALL))
    blocks = draw(st.sampled_from(BLOCKS))
    m, k = (rows, rows) if rows else (6 * draw(st.integers(0, 2)), 6 * draw(st.integers(0, 2)))
    lead = draw(st.sampled_from([(), (2,), (2, 3)])) if batch else ()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    shape = (*lead, m, k)
    specified = torch.rand(shape, generator=generator) < density
    indices = specified.nonzero().t().contiguous().to(draw(st.sampled_from(INDEX_DTYPES)))
    vals = torch.randint(0, 9, (indices.shape[1],), generator=generator)  # also explicit zeros
    A = spgrad.sparse_coo_tensor(indices, vals, shape, dtype=draw(st.sampled_from(dtypes)))
    if name == "coo":
        return A.coalesce()
    return A.to_sparse(layout=LAYOUTS[name], blocksize=blocks if name.startswith("b") else None)


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


def checked(A):
    """Takes a tensor apart and validates the parts as those from outside."""
    if A.layout == torch.sparse_coo:
        made = spgrad.sparse_coo_tensor(A.indices(), A.values(), A.shape, is_coalesced=True)
    else:
        ptr = (A.crow_indices if A.pattern.compressed_by_rows else A.ccol_indices)()
        idx = (A.col_indices if A.pattern.compressed_by_rows else A.row_indices)()
        made = spgrad.sparse_compressed_tensor(ptr, idx, A.values(), A.shape, layout=A.layout)
    assert made.pattern.same_as(A.pattern)
    assert torch.equal(made._vals, A._vals)


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


NUMBERS = (torch.float64, torch.complex128, torch.int64)


@properties
@given(A=matrices(dtypes=NUMBERS), n=st.sampled_from([0, 1, 2, 8, 17]), seed=st.integers(0, 99))
def test_matmul_is_linear_and_equals_dense(A, n, seed):
    generator = torch.Generator().manual_seed(seed)
    m, k = A.shape

    def whole(*shape):
        return torch.randint(-4, 5, shape, generator=generator).to(A.dtype)

    x, y, left = whole(k, n), whole(k, n), whole(n, m)
    assert torch.equal(A @ x, A.to_dense() @ x)
    assert torch.equal(left @ A, left @ A.to_dense())
    assert torch.equal(A @ (3 * x - y), 3 * (A @ x) - A @ y)
    B = spgrad.from_values(whole(*A._vals.shape), A)
    assert torch.equal((A + 2 * B) @ x, A @ x + 2 * (B @ x))
    assert torch.equal(spgrad.addmm(x[:1, :1].new_ones(1, n), A, x, alpha=2), 2 * (A @ x) + 1)


@properties
@given(
    A=matrices(dtypes=NUMBERS[:1], rows=6),
    B=matrices(dtypes=NUMBERS[:1], rows=6),
    C=matrices(dtypes=NUMBERS[:1], rows=6),
)
def test_products_of_sparse_matrices(A, B, C):
    AB = A @ B
    assert AB.layout == A.layout
    checked(AB)
    assert torch.equal(AB.to_dense(), A.to_dense() @ B.to_dense())
    assert torch.equal((AB @ C).to_dense(), (A @ (B @ C)).to_dense())
    x = torch.arange(12.0, dtype=torch.float64).view(6, 2)
    assert torch.equal(AB @ x, A @ (B @ x))
    sampled = spgrad.sampled_addmm(A, B.to_dense(), C.to_dense(), beta=0)
    assert sampled.pattern is A.pattern
    wanted = B.to_dense() @ C.to_dense() * testing.mask_of(A.pattern)
    assert torch.equal(sampled.to_dense(), wanted)


@properties
@given(A=matrices(batch=True, dtypes=NUMBERS[:1]), n=st.integers(0, 3))
def test_batches_are_their_items(A, n):
    x = torch.arange(float(A.shape[-1] * n), dtype=torch.float64).view(A.shape[-1], n)
    assert torch.equal(A @ x, A.to_dense() @ x)
    assert torch.equal(x.t() @ A.to_dense().mT, (A @ x).mT)


@properties
@given(A=matrices(dtypes=NUMBERS[:1]), seed=st.integers(0, 99))
def test_transposition_of_a_product_is_its_adjoint(A, seed):
    """<A x, g> = <x, A^T g>, and the gradient of A is g x^T where A has an element."""
    generator = torch.Generator().manual_seed(seed)
    m, k = A.shape
    x, g = (
        torch.randint(-4, 5, (s, 3), generator=generator, dtype=torch.int64).double()
        for s in (k, m)
    )
    x.requires_grad_()
    leaf = A.detach().requires_grad_()
    y = leaf @ x
    y.backward(g)
    assert torch.equal((y.detach() * g).sum(), (x.detach() * x.grad).sum())
    assert leaf.grad.pattern is A.pattern
    assert torch.equal(leaf.grad.to_dense(), g @ x.detach().t() * testing.mask_of(A.pattern))
