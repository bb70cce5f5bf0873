"""Products by torch's names, also in drop-in mode: sorted, with gradients on the pattern."""

import pytest
import torch
import torch.nn.functional as F
from samples import drawn, made_by_spgrad

import spgrad
from spgrad import support, testing

F64 = torch.float64


@pytest.mark.parametrize("name", ["csr", "csc"])
def test_products_are_sorted(sparse, name):
    """So that what comes after them is right; mixtures of layouts and addmm too."""
    a, b = drawn(50, 50), drawn(50, 50, seed=1)
    A, B = sparse(a, name), sparse(b, "csc" if name == "csr" else "csr")
    for P, p in (
        (A @ A, a @ a),
        (A @ B, a @ b),
        (torch.addmm(A, A, B), a + a @ b),
        (torch.sparse.mm(B, A), b @ a),
    ):
        plain = P.pattern.indices[1]
        ptr = P.pattern.indices[0]
        inner = torch.ones(plain.numel(), dtype=torch.bool)
        inner[ptr[:-1][ptr.diff() > 0]] = False
        assert bool((plain.diff()[inner[1:]] > 0).all())
        testing.assert_close(P, p)
        testing.assert_close(P * A, p * a)
        testing.assert_close(P * b, p * b)
        testing.assert_close(b.sparse_mask(P), b * testing.mask_of(P.pattern))
        softmax = torch.sparse.softmax(P.to_sparse_coo(), 1)
        rest = torch.where(testing.mask_of(P.pattern), p, -torch.inf)
        testing.assert_close(softmax, rest.softmax(1).nan_to_num(0.0))


@pytest.mark.parametrize("name", support.ALL)
def test_products_in_other_layouts(sparse, name):
    a, b, c = drawn(4, 6), drawn(6, 4, seed=1), drawn(4, 4, seed=2)
    A, B, C = (sparse(t, name) for t in (a, b, c))
    testing.assert_close(torch.sparse.mm(A, B), a @ b)
    testing.assert_close(torch.addmm(C, A, B), c + a @ b)
    assert torch.sparse.mm(A, B)._nnz() > 0


FORMS = {
    "@": lambda A, x: A @ x,
    "x @": lambda A, x: x.t() @ A.t(),
    "mm": torch.mm,
    "matmul": torch.matmul,
    "mv": lambda A, x: torch.mv(A, x[:, 0]),
    "addmm": lambda A, x: torch.addmm(torch.ones(4, 3, dtype=F64), A, x),
    "addmv": lambda A, x: torch.addmv(torch.ones(4, dtype=F64), A, x[:, 0]),
    "linear": lambda A, x: F.linear(x.t(), A),
    "sparse.mm": torch.sparse.mm,
    "sparse.addmm": lambda A, x: torch.sparse.addmm(torch.ones(4, 3, dtype=F64), A, x),
    "sum": lambda A, x: A.sum() * x.sum(),
}


@pytest.mark.parametrize("name", support.ALL)
def test_the_gradient_of_the_sparse_operand_is_sparse(sparse, name):
    a, x = drawn(4, 6), torch.randn(6, 3, dtype=F64)
    for form in FORMS.values():
        A, twin = sparse(a, name).requires_grad_(), a.clone().requires_grad_()
        y, expected = form(A, x), form(twin, x)
        g = torch.randn_like(expected)
        y.backward(g)
        expected.backward(g)
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))


def test_a_product_with_itself(sparse):
    for name in support.ALL:
        blocked = name.startswith("b")
        a = sparse(torch.eye(4), name).requires_grad_()
        torch.sparse.mm(a, a).sum().backward()
        wanted = torch.eye(2).repeat_interleave(2, 0).repeat_interleave(2, 1) if blocked else 1
        testing.assert_close(a.grad, 2 * torch.ones(4, 4) * wanted * testing.mask_of(a.pattern))


@pytest.mark.parametrize("name", support.ALL)
def test_names_that_raise_in_torch(sparse, name):
    a, b, x = drawn(4, 6), drawn(2, 4, 6), torch.randn(6, 3, dtype=F64)
    A, B = sparse(a, name), sparse(b, name)
    column, rows = torch.randn(4, dtype=F64), torch.randn(2, 5, 4, dtype=F64)
    added = torch.randn(2, 4, 3, dtype=F64)
    small = drawn(2, 2, seed=3)
    for y, expected in (
        (A.T, a.T),
        (A.mT, a.mT),
        (B.permute(1, 0, 2), b.permute(1, 0, 2)),
        (torch.addmv(column, A, x[:, 0]), torch.addmv(column, a, x[:, 0])),
        (torch.bmm(rows, B), torch.bmm(rows, b)),
        (torch.baddbmm(added, B, x.expand(2, 6, 3)), torch.baddbmm(added, b, x.expand(2, 6, 3))),
        (torch.matmul(B, x), b @ x),
        (torch.matmul(A, x.expand(2, 6, 3)), a @ x.expand(2, 6, 3)),
        (torch.kron(A, sparse(small, name)), torch.kron(a, small)),
        (F.linear(x.t(), A, column), F.linear(x.t(), a, column)),
        (torch.einsum("ij,jk->ik", A, x), a @ x),
    ):
        testing.assert_close(y, expected)
    if sparse is made_by_spgrad:
        testing.assert_close(torch.tensordot(A, x, 1), a @ x)


def test_batches_of_two_sparse_operands_broadcast_both_ways():
    A, B = drawn(2, 1, 4, 6), drawn(1, 3, 6, 5)
    found = made_by_spgrad(A) @ made_by_spgrad(B)
    assert found.shape == (2, 3, 4, 5)
    torch.testing.assert_close(found.to_dense(), A @ B)


def test_products_with_batches_are_contiguous():
    """As those of torch.matmul, which can be viewed in other shapes."""
    A, batch = made_by_spgrad(drawn(4, 6)), made_by_spgrad(drawn(2, 4, 6))
    for y, wanted in (
        (A @ drawn(2, 6, 3), A.to_dense() @ drawn(2, 6, 3)),
        (batch @ drawn(3, 1, 6, 5), batch.to_dense() @ drawn(3, 1, 6, 5)),
        (drawn(2, 3, 4) @ batch, drawn(2, 3, 4) @ batch.to_dense()),
    ):
        assert y.is_contiguous()
        testing.assert_close(y, wanted)


@pytest.mark.parametrize("factors", [(1, 1), (2.5, 1), (1, 0), (0, 0.5), (-1, 2.0), (True, True)])
@pytest.mark.parametrize("shape", [(4, 3), (3,), (4, 1), ()], ids=str)
def test_the_input_of_addmm_stays_as_it_is(shape, factors):
    dense = torch.rand(4, 5, dtype=torch.float64) * (torch.rand(4, 5) < 0.5)
    x, given = torch.rand(5, 3).double(), torch.rand(shape).double()
    A, before, (alpha, beta) = spgrad.from_dense(dense), given.clone(), factors
    wanted = torch.addmm(given, dense, x, alpha=alpha, beta=beta)
    for _ in range(2):
        torch.testing.assert_close(torch.addmm(given, A, x, alpha=alpha, beta=beta), wanted)
    assert torch.equal(given, before)


@pytest.mark.parametrize("hub", [True, False], ids=["one long row", "rows of one length"])
def test_entries_whose_bound_on_products_exceeds_int32(hub):
    """Entries of A times those of B are more than 2^31 - 1, and the products are few.

    So indices of 32 bits stay what they are.
    """
    m, k, n = 50_000, 300, 45_000
    if hub:
        rows = torch.cat([torch.zeros(n, dtype=torch.int64), torch.arange(1, k)])
        columns = torch.cat([torch.arange(n), torch.arange(1, k)])
        taken = torch.arange(m) % (k - 1) + 1
        taken[[0, 7, m - 1]] = 0
    else:
        rows = torch.arange(k).repeat_interleave(150)
        columns = (torch.arange(k)[:, None] + 7 * torch.arange(150)).reshape(-1)
        taken = torch.arange(m) % k
    values = torch.arange(1.0, 1 + rows.numel())
    B = spgrad.sparse_coo_tensor(torch.stack([rows, columns]), values, (k, n)).to_sparse_csr()
    B = spgrad.sparse_csr_tensor(*(i.int() for i in B.pattern.indices), values, (k, n))
    ptr, column = torch.arange(m + 1).int(), taken.int()
    A = spgrad.sparse_csr_tensor(ptr, column, torch.full((m,), 2.0), (m, k))
    assert A.nse * B.nse > torch.iinfo(torch.int32).max
    product, wanted = A @ B, 2 * B[taken]
    assert product.nse == wanted.nse
    for found, expected in zip(product.pattern.indices, wanted.pattern.indices, strict=True):
        assert found.dtype == torch.int32
        assert torch.equal(found, expected.int())
    assert torch.equal(product.values(), wanted.values())
