"""Shapes of more than 2^31 elements are like any other."""

import pytest
import torch

import spgrad
from spgrad import kernels, testing
from spgrad.core.pattern import LAYOUTS

SIDE = 70_000  # SIDE * SIDE is above 2^32
NSE = 400


def corners(m=SIDE, n=SIDE, nse=NSE):
    """Coordinates whose linear index is anywhere, the last element among them."""
    row, col = torch.randint(m, (nse,)), torch.randint(n, (nse,))
    row[-1], col[-1] = m - 1, n - 1
    flat = (row * n + col).unique()
    return torch.stack([flat // n, flat % n])


def large(name="csr", index=torch.int32, m=SIDE, n=SIDE):
    """A matrix of so many rows and columns, and its coordinates."""
    indices = corners(m, n)
    val = torch.randn(indices.shape[1], dtype=torch.float64)
    A = spgrad.sparse_coo_tensor(indices.to(index), val, (m, n), is_coalesced=True)
    blocks = (2, 2) if name in ("bsr", "bsc") else None
    return spgrad.to_sparse(A, layout=LAYOUTS[name], blocksize=blocks)


def entries(A):
    """{coordinates: value} of the elements that are not zero."""
    C = A.detach().to_sparse_coo().coalesce()
    places = zip(*C.indices().tolist(), strict=True)
    return {p: v for p, v in zip(places, C.values().tolist(), strict=True) if v}


def moved(A, to):
    return {to(i, j): v for (i, j), v in entries(A).items()}


LAST = SIDE - 1
MOVES = {
    "t": (lambda A: A.mT, lambda i, j: (j, i)),
    "flip": (lambda A: A.flip(0, 1), lambda i, j: (LAST - i, LAST - j)),
    "roll": (lambda A: A.roll((1, 2), (0, 1)), lambda i, j: ((i + 1) % SIDE, (j + 2) % SIDE)),
    "reshape": (
        lambda A: A.reshape(SIDE // 2, 2 * SIDE),
        lambda i, j: ((i * SIDE + j) // (2 * SIDE), (i * SIDE + j) % (2 * SIDE)),
    ),
    "flatten": (lambda A: A.flatten(), lambda i, j: (i * SIDE + j,)),
    "unsqueeze": (lambda A: A.unsqueeze(0), lambda i, j: (0, i, j)),
    "unflatten": (lambda A: A.unflatten(0, (2, -1)), lambda i, j: (i * 2 // SIDE, i % 35_000, j)),
    "scaled": (lambda A: A * 2 / 2, lambda i, j: (i, j)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_elements_are_moved(name):
    A = large(name)
    for function, to in MOVES.values():
        B = function(A)
        assert entries(B) == moved(A, to)
    assert B.pattern.indices[0].dtype == torch.int32
    kept = entries(A.tril())
    assert kept == {p: v for p, v in entries(A).items() if p[0] >= p[1]}
    for dim in (0, 1):
        twice = moved(A, lambda i, j: (i, j))
        further = {(i + SIDE * (1 - dim), j + SIDE * dim): v for (i, j), v in entries(A).items()}
        assert entries(torch.cat([A, A], dim)) == twice | further
    assert entries(A.repeat(1, 2)) == entries(torch.cat([A, A], 1))
    assert entries(spgrad.block_diag(A, A)).keys() == twice.keys() | {
        (i + SIDE, j + SIDE) for i, j in twice
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_products_and_sums(name):
    A = large(name).requires_grad_()
    x = torch.randn(SIDE, 2, dtype=torch.float64)
    row, col = A.detach().to_sparse_coo().indices()
    val = A.detach().to_sparse_coo().values()
    expected = torch.zeros_like(x).index_add_(0, row, val[:, None] * x[col])
    y = A @ x
    testing.assert_close(y, expected)
    y.sum().backward()
    testing.assert_close(A.grad.to_sparse_coo().values(), x.sum(1)[col])
    testing.assert_close(A.sum(1), expected.new_zeros(SIDE).index_add_(0, row, val))
    testing.assert_close(A.sum(0), expected.new_zeros(SIDE).index_add_(0, col, val))
    testing.assert_close(A.sum(), val.sum())
    soft = torch.softmax(A.detach(), 1).to_sparse_coo()
    assert torch.equal(soft.indices(), torch.stack([row, col]))
    testing.assert_close(soft.sum(1)[row.unique()], torch.ones(len(row.unique())).double())


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_patterns(name):
    A, B = large(name), large(name)
    a, b = entries(A), entries(B)
    both = {p: a.get(p, 0) + b.get(p, 0) for p in a.keys() | b.keys()}
    assert entries(A + B) == pytest.approx(both)
    assert entries(A * B) == pytest.approx({p: a[p] * b[p] for p in a.keys() & b.keys()})
    C = entries(A @ B)
    expected = {}
    for (i, j), v in a.items():
        for (k, c), w in b.items():
            if j == k:
                expected[i, c] = expected.get((i, c), 0) + v * w
    assert C == pytest.approx(expected)


def test_repeated_elements():
    indices = corners()
    twice = torch.cat([indices, indices], 1)[:, torch.randperm(2 * indices.shape[1])]
    for index in (torch.int32, torch.int64):
        A = spgrad.sparse_coo_tensor(twice.to(index), torch.ones(twice.shape[1]), (SIDE, SIDE))
        A = A.coalesce()
        assert torch.equal(A.indices().long(), indices)
        assert A.indices().dtype == index
        assert bool((A.values() == 2).all())


def test_a_dimension_above_2_to_the_31():
    m = 2**33
    indices = torch.tensor([[0, m - 1, 2**32], [1, 2, 0]])
    A = spgrad.sparse_coo_tensor(indices, [1.0, 2.0, 3.0], (m, 3)).coalesce()
    assert A.indices().tolist() == [[0, 2**32, m - 1], [1, 0, 2]]
    assert A.flip(0).indices()[0].tolist() == [0, m - 1 - 2**32, m - 1]
    assert A.mT.indices()[1].tolist() == [2**32, 0, m - 1]
    assert A.flatten().indices()[0].tolist() == [1, 3 * 2**32, 3 * m - 1]
    assert torch.cat([A, A]).indices()[0, -1] == 2 * m - 1
    assert torch.cat([A, A], 1).nse == A.repeat(1, 2).nse == 6
    assert (A + A.roll(1, 0)).nse == 6
    assert A.sum() == 6


def test_indices_are_widened_where_they_have_to_be():
    A = large(index=torch.int32)
    assert A.flatten().indices().dtype == torch.int64  # 70 000^2 does not fit
    assert A.flatten().indices().max() == SIDE**2 - 1 > 2**31
    one = spgrad.sparse_coo_tensor(torch.tensor([[LAST], [LAST]]).int(), [1.0], (SIDE, SIDE))
    column = spgrad.sparse_coo_tensor(torch.tensor([[LAST], [0]]).int(), [1.0], (SIDE, 1))
    for layout in (torch.sparse_coo, torch.sparse_csc):
        product = spgrad.kron(one.to_sparse(layout=layout), column.to_sparse(layout=layout))
        assert product.shape == (SIDE**2, SIDE)
        assert entries(product) == {(SIDE**2 - 1, LAST): 1}
        assert product.pattern.indices[0].dtype == torch.int64
    assert entries(one.repeat(40_000, 1)).keys() == {(SIDE * i + LAST, LAST) for i in range(40_000)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_indexing(name):
    A = large(name)
    row, col = torch.tensor(list(entries(A))).T
    val = torch.tensor(list(entries(A).values()), dtype=torch.float64)
    of_last = {(j,): v for (i, j), v in entries(A).items() if i == LAST}
    assert entries(A[LAST]) == of_last
    assert entries(A[SIDE - 10 :, ::2]).keys() == {
        (i - SIDE + 10, j // 2) for i, j in entries(A) if i >= SIDE - 10 and j % 2 == 0
    }
    assert A[LAST, LAST] == of_last[LAST,]
    testing.assert_close(
        torch.stack([A[i, j] for i, j in zip(row[:3], col[:3], strict=True)]), val[:3]
    )


def test_more_elements_than_int64_counts():
    size = (2**31, 2**31, 2**31)
    indices = torch.tensor([[5, 2**31 - 1, 5, 0], [1, 2**31 - 1, 1, 7], [9, 2**31 - 1, 9, 0]])
    with pytest.raises(ValueError, match=r"2\^63 - 1 elements in all"):
        spgrad.sparse_coo_tensor(indices, [1.0, 2.0, 3.0, 4.0], size)
    one = spgrad.sparse_coo_tensor([[0], [0]], [1.0], (2**31, 2**31))
    with pytest.raises(ValueError, match=r"spgrad.kron.*2\^63 - 1 elements in all"):
        spgrad.kron(one, one)
    unique, ptr, order = kernels.sort_coo(indices, size)  # which needs no linear index
    assert unique.T.tolist() == [[0, 7, 0], [5, 1, 9], [2**31 - 1] * 3]
    assert (ptr.tolist(), order.tolist()) == ([0, 1, 3, 4], [3, 0, 2, 1])


@pytest.mark.parametrize("batch", [(), (2,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("block", [None, (2, 2)], ids=["csc", "bsc"])
def test_columns_of_very_many_rows_become_coo(batch, block):
    """As those of few rows: nothing has one number for each row."""

    def converted(rows):
        ptr, idx = torch.tensor([0, 1, 3]).expand(*batch, 3), torch.tensor([2, 0, 2])
        idx = idx.expand(*batch, 3)
        vals = torch.arange(1.0, 1 + idx.numel() * 4 ** (block is not None))
        vals = vals.view(*idx.shape, *(block or ())).requires_grad_()
        make = spgrad.sparse_bsc_tensor if block else spgrad.sparse_csc_tensor
        step = block[0] if block else 1
        A = make(ptr, idx, vals, (*batch, step * rows, step * 2)).to_sparse_coo()
        (A.values() * torch.arange(A.nse)).sum().backward()
        return A.indices(), A.values(), vals.grad

    for few, very_many in zip(converted(7), converted(2**40), strict=True):
        assert torch.equal(few, very_many)


@pytest.mark.parametrize("name", ["coo", "csr"])
def test_sums_of_rows_need_no_memory_for_columns(name):
    indices = torch.tensor([[0, 2, 2, 1], [1, 0, 1, 1], [5, 2**30 - 1, 7, 0]], dtype=torch.int32)
    A = spgrad.sparse_coo_tensor(indices, [1.0, 2.0, 3.0, 4.0], (3, 2, 2**40)).coalesce()
    A = A.to_sparse(layout=LAYOUTS[name]).requires_grad_()
    y = A.sum(-1)
    assert y.tolist() == [[0.0, 1.0], [0.0, 4.0], [2.0, 3.0]]
    y.square().sum().backward()
    assert A.grad.values().tolist() == [2.0, 8.0, 4.0, 6.0]


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csc"])
def test_places_in_the_whole_take_no_memory_for_each_row(layout):
    rows, many = torch.tensor([5, 2**40 - 1, 5]), (2**40, 4)
    if layout == "csc":
        A = spgrad.sparse_csc_tensor([0, 1, 2, 3, 3], rows, torch.tensor([-2.0, 1.0, 3.0]), many)
    else:
        indices = torch.stack([rows, torch.tensor([0, 1, 2])])
        A = spgrad.sparse_coo_tensor(indices, torch.tensor([-2.0, 1.0, 3.0]), many)
        A = A.coalesce() if layout == "coo" else A
    assert (A.argmax(), A.argmin(), (-A).argmax()) == (22, 20, 20)
    assert A.argmax(specified=True) == 22
    B = abs(A)
    assert (B.argmin(), B.argmin(specified=True)) == (0, 4 * (2**40 - 1) + 1)
