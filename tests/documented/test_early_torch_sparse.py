"""The examples of the page torch.sparse of the early releases, and those of torch.sparse.mm."""

import pytest
import torch
from torch.testing import assert_close

import spgrad

# torch's own constructors, which the mode calls, warn that they are deprecated
pytestmark = pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor:UserWarning")

A_VALUES = [1.5901, 0.0183, -0.6146, 1.8061, -0.0112, 0.6302]
B_VALUES = [[-0.6479, 0.7874], [-1.2056, 0.5641], [-1.1716, -0.9923]]


def printed(actual, expected):
    """Equal to the four decimals that a document prints."""
    assert_close(actual.detach(), torch.tensor(expected), rtol=0, atol=1.5e-4)


def test_construction(make):
    i = torch.LongTensor([[0, 1, 1], [2, 0, 2]])
    v = torch.FloatTensor([3, 4, 5])
    s = make.FloatTensor(i, v, torch.Size([2, 3]))
    assert isinstance(s, spgrad.SparseTensor)
    assert s.dtype == torch.float32
    printed(s.to_dense(), [[0.0, 0, 3], [4, 0, 5]])
    i = torch.LongTensor([[0, 2], [1, 0], [1, 2]])
    printed(make.FloatTensor(i.t(), v, torch.Size([2, 3])).to_dense(), [[0.0, 0, 3], [4, 0, 5]])


def test_hybrid_without_a_size(make):
    i = torch.LongTensor([[2, 4]])
    v = torch.FloatTensor([[1, 3], [5, 7]])
    s = make.FloatTensor(i, v)
    printed(s.to_dense(), [[0.0, 0], [0, 0], [1, 3], [0, 0], [5, 7]])
    assert s.sparse_dim() + s.dense_dim() == len(s.shape)
    assert s._indices().shape == (s.sparse_dim(), s._nnz())
    assert s._values().shape == (s._nnz(), *s.shape[s.sparse_dim() :])


def test_construction_from_sizes(make):
    s = make.FloatTensor(2, 3)
    assert s.shape == (2, 3)
    assert s._nnz() == 0
    assert s.dtype == torch.float32


def test_repeated_additions_stay_small(make):
    s = make.FloatTensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), torch.Size([2, 2]))
    total = s
    for _ in range(3):
        total = total.add(s)
    assert total.coalesce()._nnz() == 2
    printed(total.to_dense(), [[0.0, 4], [4, 0]])


def test_what_depends_on_coalescing(make):
    s = make.FloatTensor(torch.tensor([[0, 0]]), torch.tensor([9.0, 16.0]), torch.Size([2]))
    assert s._values().shape == (2,)
    assert s._indices().shape == (1, 2)
    printed(s.sqrt().to_dense(), [5.0, 0.0])
    printed(torch.ones(2).sparse_mask(s.coalesce()).to_dense(), [1.0, 0.0])


def test_addmm_supports_backward_for_the_sparse_matrix(make):
    mat, mat2 = torch.randn(2, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    mat1 = make.to_sparse(torch.tensor([[0, 2.0, 0], [1, 0, 3]])).requires_grad_(True)
    y = torch.sparse.addmm(mat, mat1, mat2, beta=2, alpha=3)
    assert_close(y, 2 * mat + 3 * mat1.to_dense() @ mat2)
    y.sum().backward()
    assert mat1.grad.is_coalesced()
    assert_close(mat1.grad.values(), 3 * mat2.detach().sum(1)[[1, 0, 2]])
    assert_close(mat.grad, torch.full((2, 4), 2.0))
    assert_close(mat2.grad, 3 * torch.tensor([1.0, 2, 3])[:, None].expand(3, 4))


@pytest.mark.parametrize("names", ["torch.sparse.mm", "torch.mm", "@"])
def test_mm(make, names):
    """The example that three of the documents print, with the numbers that they print."""
    mm = {"torch.sparse.mm": torch.sparse.mm, "torch.mm": torch.mm, "@": torch.matmul}[names]
    a = make.to_sparse(torch.tensor(A_VALUES).view(2, 3)).requires_grad_(True)
    assert a.requires_grad
    assert a._nnz() == 6
    assert a.layout == torch.sparse_coo
    assert a.coalesce().indices().tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    printed(a.coalesce().values(), A_VALUES)
    b = torch.tensor(B_VALUES, requires_grad=True)
    y = mm(a, b)
    assert y.layout == torch.strided
    assert y.grad_fn is not None
    printed(y, [[-0.3323, 1.8723], [-1.8951, 0.7904]])
    y.sum().backward()
    assert (a.grad.layout, a.grad.shape, a.grad._nnz()) == (torch.sparse_coo, (2, 3), 6)
    assert a.grad.is_coalesced()
    assert a.grad.indices().tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    printed(a.grad.values(), [0.1394, -0.6415, -2.1639, 0.1394, -0.6415, -2.1639])
    printed(b.grad, [[3.3962] * 2, [0.0071] * 2, [0.0156] * 2])


def test_mm_of_two_sparse_matrices(make):
    """Sparse times sparse gives sparse, with a backward for both."""
    a = make.to_sparse(torch.tensor([[1.0, 0, 2], [0, 3, 0]])).requires_grad_(True)
    b = make.to_sparse(torch.tensor([[0.0, 4], [5, 0], [0, 6]])).requires_grad_(True)
    y = torch.sparse.mm(a, b)
    assert y.layout == torch.sparse_coo
    printed(y.to_dense(), [[0.0, 16], [15, 0]])
    torch.sparse.sum(y).backward()
    printed(a.grad.to_dense(), [[4.0, 0, 6], [0, 5, 0]])
    printed(b.grad.to_dense(), [[0.0, 1], [3, 0], [0, 2]])


S_VALUES = [
    [[-0.6438, -1.6467, 1.4004], [0.3411, 0.0918, -0.2312]],
    [[0.5348, 0.0634, -2.0494], [-0.7125, -1.0646, 2.1844]],
    [[0.1276, 0.1874, -0.6334], [-1.9682, -0.5340, 0.7483]],
]


def test_sum(make):
    v = torch.tensor(S_VALUES, requires_grad=True)
    s = make.sparse_coo_tensor([[2, 0, 3], [2, 4, 1]], v, torch.Size([5, 5, 2, 3]))
    assert (s.sparse_dim(), s.dense_dim(), s._nnz()) == (2, 2, 3)
    part = torch.sparse.sum(s, [1, 3])
    assert isinstance(part, spgrad.SparseTensor)
    assert (part.shape, part._nnz()) == ((5, 2), 3)
    part = part.coalesce()
    assert part.indices().tolist() == [[0, 2, 3]]
    printed(part.values(), [[-1.4512, 0.4073], [-0.8901, 0.2017], [-0.3183, -1.7539]])
    whole = torch.sparse.sum(s, [0, 1, 3])
    assert whole.layout == torch.strided
    printed(whole, [-2.6596, -1.1450])
    whole.sum().backward()
    printed(v.grad, torch.ones(3, 2, 3).tolist())
    twin = make.sparse_coo_tensor([[2, 0, 3], [2, 4, 1]], torch.tensor(S_VALUES), (5, 5, 2, 3))
    twin = twin.coalesce().detach().requires_grad_()
    torch.sparse.sum(twin, [1, 3]).to_dense().sum().backward()
    assert twin.grad.is_coalesced()
    assert twin.grad.indices().tolist() == [[0, 2, 3], [4, 2, 1]]
    assert torch.sparse.sum(twin.detach(), dtype=torch.float64).dtype == torch.float64
