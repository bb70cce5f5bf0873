"""The examples of the page torch.sparse, one function for each, in its order."""

import pytest
import torch
from torch.testing import assert_close

import spgrad

I = [[0, 1, 1], [2, 0, 2]]  # noqa: E741
ENTRIES = torch.tensor([[0, 0, 3], [4, 0, 5]])


def same(actual, expected):
    """Equal to what the document prints, also in shape and, for whole numbers, in dtype."""
    expected = expected if isinstance(expected, torch.Tensor) else torch.tensor(expected)
    assert_close(actual, expected, rtol=0, atol=1.5e-4)


def test_construction(make):
    s = make.sparse_coo_tensor(I, [3, 4, 5], (2, 3))
    assert isinstance(s, spgrad.SparseTensor)
    same(s._indices(), I)
    same(s._values(), [3, 4, 5])
    assert (s.shape, s._nnz(), s.layout) == ((2, 3), 3, torch.sparse_coo)
    same(s.to_dense(), ENTRIES)


def test_construction_from_index_tuples(make):
    i, v = [[0, 2], [1, 0], [1, 2]], [3, 4, 5]
    for s in (
        make.sparse_coo_tensor(list(zip(*i, strict=True)), v, (2, 3)),
        make.sparse_coo_tensor(torch.tensor(i).t(), v, (2, 3)),
        make.sparse_coo_tensor(torch.tensor(i).t(), v, torch.Size([2, 3])),
    ):
        same(s.to_dense(), ENTRIES)


def test_construction_without_entries(make):
    s = make.sparse_coo_tensor(size=(2, 3))
    assert s._indices().shape == (2, 0)
    assert s._values().shape == (0,)
    assert (s.shape, s._nnz(), s.layout) == ((2, 3), 0, torch.sparse_coo)


def test_hybrid(make):
    s = make.sparse_coo_tensor(I, [[3, 4], [5, 6], [7, 8]], (2, 3, 2))
    same(s._indices(), I)
    same(s._values(), [[3, 4], [5, 6], [7, 8]])
    same(s.to_dense(), [[[0, 0], [0, 0], [3, 4]], [[5, 6], [0, 0], [7, 8]]])
    s = s.coalesce()
    m, k = s.sparse_dim(), s.dense_dim()
    assert m + k == len(s.shape) == s.ndim
    assert s.indices().shape == (m, 3)
    assert s.values().shape == (3,) + s.shape[m : m + k]  # noqa: RUF005
    assert s.values().layout == torch.strided


def test_uncoalesced(make):
    s = make.sparse_coo_tensor([[1, 1]], [3, 4], (3,))
    same(s._indices(), [[1, 1]])
    same(s._values(), [3, 4])
    assert s._nnz() == 2
    c = s.coalesce()
    same(c.indices(), [[1]])
    same(c.values(), [7])
    assert (c.shape, c._nnz(), c.is_coalesced()) == ((3,), 1, True)


def test_addition(make):
    """The document shows four entries; here they are two, already added up."""
    a = make.sparse_coo_tensor([[1, 1]], [5, 6], (2,))
    b = make.sparse_coo_tensor([[0, 0]], [7, 8], (2,))
    s = a + b
    assert isinstance(s, spgrad.SparseTensor)
    same(s.to_dense(), [15, 11])
    same(s.coalesce().indices(), [[0, 1]])
    same(s.coalesce().values(), [15, 11])


def test_working_with_coo(make):
    s = make.sparse_coo_tensor(I, [[3, 4], [5, 6], [7, 8]], (2, 3, 2))
    assert isinstance(s, torch.Tensor)
    assert s.is_sparse
    assert s.layout == torch.sparse_coo
    assert (s.sparse_dim(), s.dense_dim()) == (2, 1)
    with pytest.raises(RuntimeError, match="coalesce"):
        s.indices()
    same(s._indices(), I)
    assert not s.is_coalesced()
    same(s.coalesce().indices(), I)


def test_values_are_detached_and_coalesced_ones_are_not(make):
    v = torch.tensor([3.0, 4.0, 5.0], requires_grad=True)
    s = make.sparse_coo_tensor(I, v, (2, 3))
    assert not s._values().requires_grad
    (2 * s.coalesce().values()).sum().backward()
    same(v.grad, [2.0, 2.0, 2.0])


def test_scaling_and_square_root_of_repeats(make):
    s = make.sparse_coo_tensor([[1, 1]], [9.0, 16.0], (3,))
    same((s * 2).to_dense(), [0.0, 50.0, 0.0])
    same(s.sqrt().to_dense(), [0.0, 5.0, 0.0])  # not 3 + 4


def test_indexing(make):
    s = make.sparse_coo_tensor(I, [[3, 4], [5, 6], [7, 8]], (2, 3, 2))
    row = s[1].coalesce()
    same(row.indices(), [[0, 2]])
    same(row.values(), [[5, 6], [7, 8]])
    assert (row.shape, row._nnz()) == ((3, 2), 2)
    same(s[1, 0, 1], 6)
    same(s[1, 0, 1:], [6])


def test_softmax_takes_the_rest_as_minus_infinity(make):
    s = make.sparse_coo_tensor(I, [3.0, 4.0, 4.0], (2, 3))
    same(torch.sparse.softmax(s, 1).to_dense(), [[0.0, 0, 1], [0.5, 0, 0.5]])
    same(torch.sparse.log_softmax(s, 1).coalesce().values(), [0.0, -0.6931, -0.6931])


def test_csr_construction(make):
    crow_indices = torch.tensor([0, 2, 4])
    col_indices = torch.tensor([0, 1, 0, 1])
    values = torch.tensor([1, 2, 3, 4])
    csr = make.sparse_csr_tensor(crow_indices, col_indices, values, dtype=torch.double)
    assert isinstance(csr, spgrad.SparseTensor)
    same(csr.crow_indices(), crow_indices)
    same(csr.col_indices(), col_indices)
    assert (csr.shape, csr._nnz(), csr.dtype) == ((2, 2), 4, torch.float64)
    same(csr.to_dense(), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))


def test_csr_operations(make):
    a = torch.tensor([[0, 0, 1, 0], [1, 2, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    sp = make.to_sparse_csr(a)
    same(sp.crow_indices(), [0, 1, 3, 3])
    same(sp.col_indices(), [2, 0, 1])
    same(sp.values(), torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64))
    assert (sp.shape, sp._nnz(), sp.layout) == ((3, 4), 3, torch.sparse_csr)
    vec = torch.randn(4, 1, dtype=torch.float64)
    same(sp.matmul(vec), torch.stack([vec[2], vec[0] + 2 * vec[1], torch.zeros_like(vec[0])]))


def by_rows(name):
    return lambda A, x, z: getattr(torch, name)(A, x)


PRODUCTS = {
    "mv": (lambda A, x, z: torch.mv(A, x[:, 0]), lambda a, x, z: a @ x[:, 0], None),
    "matmul": (by_rows("matmul"), lambda a, x, z: a @ x, None),
    "mm": (by_rows("mm"), lambda a, x, z: a @ x, None),
    "sparse.mm": (lambda A, x, z: torch.sparse.mm(A, x), lambda a, x, z: a @ x, None),
    "smm": (by_rows("smm"), lambda a, x, z: a @ x, (2, 0)),
    "hspmm": (by_rows("hspmm"), lambda a, x, z: a @ x, (1, 1)),
    "addmm": (
        lambda A, x, z: torch.addmm(z, A, x, beta=2, alpha=3),
        lambda a, x, z: 2 * z + 3 * a @ x,
        None,
    ),
    "sparse.addmm": (
        lambda A, x, z: torch.sparse.addmm(z, A, x, beta=2, alpha=3),
        lambda a, x, z: 2 * z + 3 * a @ x,
        None,
    ),
    "dense @ sparse": (lambda A, x, z: z.t() @ A, lambda a, x, z: z.t() @ a, None),
    "by transposes": (
        lambda A, x, z: (A.t() @ z).t(),
        lambda a, x, z: z.t() @ a,
        None,
    ),
}


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_linear_algebra(make, name):
    """The layouts of the table; every one has the gradient that only some have in torch."""
    run, dense, sparse_result = PRODUCTS[name]
    a = torch.tensor([[0, 2.0, 0], [3, 0, 4], [0, 0, 0], [1, 0, 0]])
    x, z = torch.randn(3, 2), torch.randn(4, 2)
    layouts = [make.to_sparse] if sparse_result else [make.to_sparse, make.to_sparse_csr]
    for to_sparse in layouts:
        A = to_sparse(a).requires_grad_()
        dense_x, dense_z = x.clone().requires_grad_(), z.clone().requires_grad_()
        twin = [t.clone().requires_grad_() for t in (a, x, z)]
        y, expected = run(A, dense_x, dense_z), dense(*twin)
        assert isinstance(y, spgrad.SparseTensor) == bool(sparse_result)
        if sparse_result:
            assert y.layout == torch.sparse_coo
            assert (y.sparse_dim(), y.dense_dim()) == sparse_result
            y = y.to_dense()
        assert_close(y, expected)
        g = torch.randn_like(expected)
        y.backward(g)
        expected.backward(g)
        assert_close(A.grad.to_dense(), twin[0].grad * (a != 0))
        for operand, wanted in zip((dense_x, dense_z), twin[1:], strict=True):
            if wanted.grad is not None:
                assert_close(operand.grad, wanted.grad)


def test_bmm_and_sspaddmm(make):
    b = torch.randn(2, 3, 4) * (torch.rand(2, 3, 4) < 0.5)
    x = torch.randn(2, 4, 2)
    assert_close(torch.bmm(make.to_sparse(b), x), b @ x)
    m = torch.randn(3, 2) * (torch.rand(3, 2) < 0.5)
    y = torch.sspaddmm(make.to_sparse(m), make.to_sparse(b[0]), x[0], beta=2, alpha=3)
    assert y.layout == torch.sparse_coo
    assert_close(y.to_dense(), 2 * m + 3 * b[0] @ x[0])
