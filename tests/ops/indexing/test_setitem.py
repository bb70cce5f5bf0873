"""Assignment to parts of a sparse tensor, and sums into them, against dense tensors."""

import pytest
import torch
from expressions import F64, MATRIX, S, of_dense
from samples import leaf

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("name", support.ALL)


@layouts
@pytest.mark.parametrize(
    "case", [c for c in MATRIX if c not in ("list", "points", "matrix_of_rows")]
)
def test_assignment(case, name):
    index = MATRIX[case]
    index = index if not isinstance(index, slice | list) else (index,)
    F = leaf(name, density=1.1)
    x = F.detach().to_dense()
    shape = of_dense(x, index).shape
    value = torch.randn(shape, dtype=F64)
    turned = of_dense(torch.arange(24).view(4, 6), index).reshape(-1)
    wanted = x.view(-1).index_copy(0, turned, value.reshape(-1)).view(4, 6)
    B = F.detach().clone()
    B[index] = value
    testing.assert_close(B, wanted)
    assert B.pattern is F.pattern
    value.requires_grad_()
    C = F * 1
    C[index] = value
    testing.assert_close(C.detach(), wanted)
    g = torch.randn(4, 6, dtype=F64)
    of_F, of_value = torch.autograd.grad(C.to_dense(), (F, value), g)
    testing.assert_close(of_F, g.view(-1).index_fill(0, turned, 0).view(4, 6))
    testing.assert_close(of_value, g.view(-1)[turned].view(shape))


@layouts
def test_assignment_where_elements_are_missing(name):
    A = leaf(name).detach()
    x = A.to_dense()
    mask = testing.mask_of(A.pattern)
    B = A.clone()
    B[1:3] = 0
    B[:, 1] = 0.0 * torch.ones(4)
    numbers = torch.arange(int(mask.sum()), dtype=F64)
    B[mask] = numbers
    testing.assert_close(B, torch.zeros(4, 6, dtype=F64).masked_scatter(mask, numbers))
    B[A > 0] = 7
    assert B[A > 0].eq(7).all()
    assert torch.equal(
        B.to_dense() == 7, (x > 0) | (torch.zeros_like(x).masked_scatter(mask, numbers) == 7)
    )
    B[1:3] = 2 * A[1:3]
    testing.assert_close(B[1:3], 2 * x[1:3])
    B[0] *= 3
    B[2] = spgrad.zeros(6, layout=torch.sparse_coo, dtype=F64)
    assert B[2].to_dense().count_nonzero() == 0
    row, col = (~mask).nonzero()[0].tolist()
    for index, value in (
        ((row, col), 1.0),
        (row, 1.0),
        ((S(None), col), torch.ones(4, dtype=F64)),
        (~mask, 2),
        (S(None), spgrad.sparse_coo_tensor([[row], [col]], [1.0], (4, 6)).double()),
    ):
        says = r"in A\[.*\] = .*: `value` .*Add elements first: A \+"
        with pytest.raises(spgrad.StateError, match=says):
            A[index] = value
    testing.assert_close(A, x)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
def test_values_of_dtypes_that_torch_does_not_count(dtype):
    A = spgrad.from_dense(torch.ones(2, 3, dtype=F64))
    A[1] = torch.tensor([2, 0, 4]).to(torch.float32).to(dtype)
    assert A.to_dense().tolist() == [[1, 1, 1], [2, 0, 4]]


def test_assignment_in_graphs():
    A = leaf()
    with pytest.raises(RuntimeError, match="leaf"):
        A[0] = 0
    with torch.no_grad():
        A[0] = 0
    assert A[0].detach().values().abs().sum() == 0
    y = A.sin()
    used = (y * y).values().sum()
    y[0] = 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.backward()
    B = leaf("coo", coalesced=False).detach()
    with pytest.raises(spgrad.StateError, match="setitem"):
        B[0] = 0


@layouts
def test_assignment_to_dense_dimensions(name):
    H = leaf(name, (4, 6, 3), dense_dim=1, density=1.1).detach()
    x = H.to_dense()
    for index, value in (
        ((..., 1), 5.0),
        ((S(1, 3), [0, 2], [2, 0]), 6.0),
        (([0, 1], [1, 2]), torch.randn(2, 3, dtype=F64)),
        ((1, 2, S(0, 2)), torch.randn(2, dtype=F64)),
        (S(0, 2), torch.randn(2, 6, 1, dtype=F64)),
    ):
        H[index] = value
        x[index] = value
        testing.assert_close(H, x)


@layouts
def test_index_add(name, poisoned):
    for dim, count in ((0, 3), (1, 5)):
        A = leaf(name)
        shape = [4, 6]
        shape[dim] = count
        B = leaf("coo" if name.startswith("b") else name, tuple(shape), seed=1)
        index = torch.randint(A.shape[dim], (count,))
        y = A.index_add(dim, index, B, alpha=2)
        a, b = testing.dense_leaves([A, B])
        wanted = a.index_add(dim, index, b, alpha=2)
        testing.assert_close(y.detach(), wanted.detach())
        assert y.layout == A.layout
        g = torch.randn(4, 6, dtype=F64)
        wanted.backward(g)
        y.to_dense().backward(g)
        for operand, twin in ((A, a), (B, b)):
            testing.assert_close(operand.grad, twin.grad * testing.mask_of(operand.pattern))
    H = leaf(name, (4, 6, 3), dense_dim=1)
    y = torch.index_add(H, 0, torch.tensor([3, 3, 0, 1]), H)
    x = H.detach().to_dense()
    testing.assert_close(y.detach(), x.index_add(0, torch.tensor([3, 3, 0, 1]), x))


def test_index_add_of_bool_to_numbers_counts():
    """Two slices that go to one place add 2, not True."""
    A = spgrad.from_dense(torch.tensor([[1.0, 0.0]]))
    B = spgrad.from_dense(torch.tensor([[True, True], [True, False]]))
    y = spgrad.index_add(A, 0, torch.tensor([0, 0]), B)
    assert y.to_dense().tolist() == [[3.0, 1.0]]


@layouts
@pytest.mark.parametrize("index", [..., slice(None)], ids=["...", ":"])
def test_a_sparse_value_for_all_elements(name, index):
    A, V = leaf(name, density=1.1).detach(), leaf("coo", seed=1).detach()
    A[index] = V
    assert torch.equal(A.to_dense(), V.to_dense())


@layouts
def test_a_sparse_value_for_the_dense_dimensions_of_an_element(name):
    H = leaf(name, (4, 6, 3), dense_dim=1, density=1.1).detach()
    V = spgrad.sparse_coo_tensor([[0, 2]], torch.tensor([5.0, 7.0], dtype=F64), (3,))
    x = H.to_dense()
    H[1, 2] = V
    x[1, 2] = V.to_dense()
    testing.assert_close(H, x)
    some = leaf(name, (4, 6, 3), dense_dim=1, density=0.1).detach()
    i, j, _ = (~testing.mask_of(some.pattern)).nonzero()[0].tolist()
    some[i, j] = V * 0
    with pytest.raises(spgrad.StateError, match=r"`value` is not 0 at 2 place\(s\)"):
        some[i, j] = V
