"""The constructors of empty and hybrid tensors, of batches, and of other numbers of dimensions."""

from types import SimpleNamespace

import pytest
import torch
from constructors import CONSTRUCTOR, DENSE, INDEX_NAMES, NATIVE, PARTS, tensors

import spgrad
from spgrad import support

COMPRESSED = support.ALL[1:]


@pytest.mark.parametrize(
    "make",
    [
        lambda f: f((2, 3)),
        lambda f: f([2, 3]),
        lambda f: f(torch.Size((2, 3))),
        lambda f: f(size=(2, 3)),
        lambda f: f(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (2, 3)),
        lambda f: f([[], []], [], (2, 3)),
    ],
)
def test_empty_coo(make):
    A, twin = make(spgrad.sparse_coo_tensor), make(torch.sparse_coo_tensor)
    assert A.shape == twin.shape
    assert A.nse == 0
    assert A.dtype == twin.dtype
    assert A.is_coalesced() == twin.is_coalesced()
    assert torch.equal(A.to_dense(), torch.zeros(2, 3))


def test_empty_options():
    A = spgrad.sparse_coo_tensor((2, 3), dtype=torch.int32, device="cpu")
    assert A.dtype == torch.int32
    assert spgrad.sparse_coo_tensor((2, 3), requires_grad=True).requires_grad
    for name in COMPRESSED:
        blocks = (1, 1) if name.startswith("b") else ()
        A = CONSTRUCTOR[name]([0], [], torch.zeros(0, *blocks))
        assert A.shape == (0, 0)
        assert A.to_dense().shape == (0, 0)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dense", [(1,), (4,), (2, 3), (0,)], ids=str)
def test_dense_dimensions(name, dense):
    *indices, vals = tensors(name)
    ramp = 1.0 + torch.arange(torch.Size(dense).numel()).view(dense)
    vals = vals.reshape(*vals.shape, *(1 for _ in dense)) * ramp
    for size in ((2, 3, *dense), None):
        A = CONSTRUCTOR[name](*indices, vals, size)
        assert A.shape == (2, 3, *dense)
        assert A.dense_dim() == len(dense)
        assert A.sparse_dim() == 2
        expected = DENSE.reshape(2, 3, *(1 for _ in dense)) * ramp
        assert torch.equal(A.to_dense(), expected)
        if 0 not in dense:
            native = NATIVE[name](*indices, vals, (2, 3, *dense), check_invariants=True)
            assert native.dense_dim() == len(dense)
            assert torch.equal(A.to_dense(), native.to_dense())
    assert torch.equal(A._values(), vals)


def batch_parts(name):
    """Two items, DENSE and its double, in a batch of equal nse."""
    *indices, vals = tensors(name)
    return *(torch.stack([i, i]) for i in indices), torch.stack([vals, 2 * vals])


@pytest.mark.parametrize("name", COMPRESSED)
def test_batch(name):
    ptr, idx, vals = batch_parts(name)
    for size in ((2, 2, 3), None):
        A = CONSTRUCTOR[name](ptr, idx, vals, size)
        native = NATIVE[name](ptr, idx, vals, (2, 2, 3), check_invariants=True)
        assert A.shape == (2, 2, 3)
        assert torch.equal(A.to_dense(), torch.stack([DENSE, 2 * DENSE]))
        assert torch.equal(A.to_dense(), native.to_dense())
        assert torch.equal(A.values(), native.values())
        for index in INDEX_NAMES[name]:
            assert torch.equal(getattr(A, index)(), getattr(native, index)())
        assert A._nnz() == native._nnz()
    nested = CONSTRUCTOR[name](*(t.unsqueeze(1) for t in (ptr, idx, vals)))
    assert nested.shape == (2, 1, 2, 3)
    assert torch.equal(nested.to_dense()[:, 0], A.to_dense())


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_ragged_batch(name, index_dtype):
    """One item of DENSE, one without entries: torch can't hold this."""
    ptr, idx, vals = tensors(name)
    ptrs = torch.stack([ptr, torch.zeros_like(ptr), ptr]).to(index_dtype)
    idx = torch.cat([idx, idx]).to(index_dtype)
    A = CONSTRUCTOR[name](ptrs, idx, torch.cat([vals, 2 * vals]), (3, 2, 3))
    expected = torch.stack([DENSE, torch.zeros(2, 3), 2 * DENSE])
    assert torch.equal(A.to_dense(), expected)
    compressed, plain = INDEX_NAMES[name]
    assert torch.equal(getattr(A, compressed)(), ptrs)
    assert torch.equal(getattr(A, plain)(), idx)
    assert A.nse == len(idx)
    again = CONSTRUCTOR[name](getattr(A, compressed)(), getattr(A, plain)(), A.values(), A.shape)
    assert torch.equal(again.to_dense(), expected)


@pytest.mark.parametrize("name", COMPRESSED)
def test_batch_of_no_items_and_of_no_lines(name):
    block = (1, 1) if name.startswith("b") else ()
    long = {"dtype": torch.int64}
    no_items = (torch.zeros(0, 3, **long), torch.zeros(0, 2, **long), torch.zeros(0, 2, *block))
    A = CONSTRUCTOR[name](*no_items, (0, 2, 2))
    assert A.to_dense().shape == (0, 2, 2)
    size = (2, 0, 4) if name.endswith("sr") else (2, 4, 0)
    no_lines = (torch.zeros(2, 1, **long), torch.zeros(2, 0, **long), torch.zeros(2, 0, *block))
    A = CONSTRUCTOR[name](*no_lines, size)
    assert A.to_dense().shape == size


def test_sparse_dimensions_of_coo():
    scalar = spgrad.sparse_coo_tensor(
        torch.zeros(0, 2, dtype=torch.int64), torch.tensor([3.0, 4.0])
    )
    assert scalar.shape == ()
    assert scalar.to_dense() == 7
    assert scalar.coalesce().values().tolist() == [7]
    cube = spgrad.sparse_coo_tensor([[1], [0], [2]], [5.0])
    assert cube.shape == (2, 1, 3)
    assert cube.sparse_dim() == 3
    assert cube.to_dense()[1, 0, 2] == 5


def test_inputs_that_are_not_contiguous():
    indices = torch.tensor([[0, 0], [0, 2], [1, 1]]).t()
    vals = torch.tensor([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]])[:, 0]
    assert torch.equal(spgrad.sparse_coo_tensor(indices, vals, (2, 3)).to_dense(), DENSE)
    crow, col = (torch.tensor(i).repeat_interleave(2)[::2] for i in PARTS["csr"][:2])
    assert torch.equal(spgrad.sparse_csr_tensor(crow, col, vals, (2, 3)).to_dense(), DENSE)
    ptr, idx, vals = batch_parts("csr")
    flipped = [t.t().contiguous().t() for t in (ptr, idx, vals)]
    A = spgrad.sparse_csr_tensor(*flipped, (2, 2, 3))
    assert torch.equal(A.to_dense(), torch.stack([DENSE, 2 * DENSE]))
    spaced = idx[:1].repeat_interleave(2, 1)[:, ::2]  # of a single batch item
    A = spgrad.sparse_csr_tensor(ptr[:1], spaced, vals[:1], (1, 2, 3))
    assert torch.equal(A.to_dense()[0], DENSE)


def test_sizes_are_tensors_of_one_int():
    """Programs take a size from the greatest index."""
    index = torch.tensor([[0, 1], [1, 2]])
    rows, columns = index.amax(1) + 1
    for A in (
        spgrad.sparse_coo_tensor(index, torch.ones(2), (rows, columns)),
        spgrad.sparse_csr_tensor([0, 1, 2], [1, 2], [1.0, 1.0], [rows, columns]),
        spgrad.from_edges(index, size=(rows, columns)),
        spgrad.zeros((rows, columns)),
    ):
        assert type(A.shape[0]) is int
        assert A.shape == (2, 3)
    assert spgrad.from_edges(index, size=columns).shape == (3, 3)
    for wrong in (torch.tensor(2.0), torch.tensor(True), torch.tensor([2])):
        with pytest.raises(TypeError, match="a sequence of ints is accepted"):
            spgrad.sparse_coo_tensor(index, torch.ones(2), (wrong, 3))
    with pytest.raises(ValueError, match="non-negative sizes"):
        spgrad.sparse_coo_tensor(index, torch.ones(2), (torch.tensor(-2), 3))


def test_a_batch_with_more_entries_than_its_index_dtype_counts(monkeypatch):
    """Its pointers and indices become int64. Here int32 counts to 5, for lack of memory."""
    parts = [[0, 1, 3], [0, 1, 3]], [[2, 0, 1], [1, 0, 2]]
    crow, col = (torch.tensor(t, dtype=torch.int32) for t in parts)
    vals = torch.arange(1.0, 7.0).view(2, 3)
    wanted = spgrad.sparse_csr_tensor(crow, col, vals, (2, 2, 3))
    assert wanted.pattern.indices[0].dtype == torch.int32
    most = torch.iinfo
    monkeypatch.setattr(
        torch,
        "iinfo",
        lambda dtype: SimpleNamespace(max=5) if dtype == torch.int32 else most(dtype),
    )
    A = spgrad.sparse_csr_tensor(crow, col, vals, (2, 2, 3))
    monkeypatch.undo()
    assert {t.dtype for t in A.pattern.indices} == {torch.int64}
    assert torch.equal(A.to_dense(), wanted.to_dense())
