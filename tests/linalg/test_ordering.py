"""Orders of rows and columns, and what is put in them."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.core.pattern import LAYOUTS


def two_clusters(n):
    """Two complete graphs of n nodes that one edge joins, its nodes in random order."""
    block = torch.block_diag(torch.ones(n, n), torch.ones(n, n))
    block[0, n] = block[n, 0] = 1
    shuffled = torch.randperm(2 * n)
    return block[shuffled][:, shuffled], (shuffled >= n).long()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_reverse_cuthill_mckee(layout):
    """A path whose nodes were shuffled is a band of width one again."""
    n = 24
    shuffled = torch.randperm(n)
    path = torch.eye(n).roll(1, 0).tril()[shuffled][:, shuffled]
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    A = spgrad.from_dense(path, layout, **blocks).requires_grad_()
    perm = spgrad.reverse_cuthill_mckee(A)
    assert perm.dtype == torch.int64
    assert perm.sort().values.equal(torch.arange(n))
    B = A.detach().to_sparse_csr()[perm][:, perm]
    assert torch.equal(B.to_dense(), path[perm][:, perm])
    if not blocks:  # whose explicit zeros count
        assert B.to_dense().nonzero().diff().abs().max() == 1
    x = torch.randn(n, 3)
    testing.assert_close(B @ x[perm], (path @ x)[perm])


def test_reverse_cuthill_mckee_of_little_and_of_others():
    for n in (0, 1, 3):
        empty = spgrad.sparse_csr_tensor(torch.zeros(n + 1, dtype=torch.int64), [], [], (n, n))
        assert spgrad.reverse_cuthill_mckee(empty).sort().values.tolist() == list(range(n))
    A = torch.eye(4).to_sparse()
    twice = torch.sparse_coo_tensor([[0, 0, 3], [3, 3, 1]], [True, True, True], (4, 4))
    assert len(spgrad.reverse_cuthill_mckee(A)) == len(spgrad.reverse_cuthill_mckee(twice)) == 4
    for wrong, kind, says in [
        (torch.eye(3), TypeError, "sparse"),
        (spgrad.from_dense(torch.ones(2, 3)), ValueError, "square"),
        (spgrad.from_dense(torch.ones(2, 3, 3)), ValueError, "each matrix of a batch"),
    ]:
        with pytest.raises(kind, match=rf"spgrad\.reverse_cuthill_mckee: .*{says}"):
            spgrad.reverse_cuthill_mckee(wrong)


def test_locality_order_puts_clusters_side_by_side():
    dense, cluster = two_clusters(12)
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        order = spgrad.locality_order(spgrad.from_dense(dense, layout), size=12)
        assert order.dtype == torch.int64
        assert order.sort().values.equal(torch.arange(24))
        assert cluster[order].diff().abs().sum() == 1
    blocks = spgrad.from_dense(dense, torch.sparse_bsr, blocksize=(2, 2))
    assert spgrad.locality_order(blocks, size=12).sort().values.equal(torch.arange(24))


def test_locality_order_of_one_cluster_is_that_of_cuthill_and_mckee():
    chain = torch.eye(16).roll(1, 0).tril()
    A = spgrad.from_dense(chain[torch.randperm(16)][:, torch.randperm(16)])
    assert len(spgrad.locality_order(A)) == 16
    assert spgrad.locality_order(A).equal(spgrad.locality_order(A, 16))


def test_locality_order_of_little_and_of_others():
    for n in (0, 1, 3):
        empty = spgrad.sparse_csr_tensor(torch.zeros(n + 1, dtype=torch.int64), [], [], (n, n))
        assert spgrad.locality_order(empty, 1).sort().values.tolist() == list(range(n))
    A = spgrad.eye(3)
    for wrong, kind, says in [
        ((torch.eye(3),), TypeError, "sparse"),
        ((spgrad.from_dense(torch.ones(2, 3)),), ValueError, "square"),
        ((A, 0), ValueError, "`size` is 0"),
        ((A, 1.5), TypeError, "`size`"),
    ]:
        with pytest.raises(kind, match=rf"spgrad\.locality_order: .*{says}"):
            spgrad.locality_order(*wrong)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_reorder_gives_the_product_in_the_new_order(layout):
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    dense = torch.randn(8, 8) * (torch.rand(8, 8) < 0.4)
    A = spgrad.from_dense(dense, layout, **blocks).requires_grad_()
    x = torch.randn(8, 3, requires_grad=True)
    order = torch.randperm(8)
    B, y, bias, back = spgrad.reorder(A, order.int(), x, torch.arange(8))
    testing.assert_close(B.to_dense(), dense[order][:, order])
    assert bias.equal(order)
    testing.assert_close((B @ y)[back], A @ x)
    weight = torch.randn(8, 3)
    ours = torch.autograd.grad(((B @ y)[back] * weight).sum(), (A, x))
    theirs = torch.autograd.grad(((A @ x) * weight).sum(), (A, x))
    assert ours[0].layout == layout
    assert ours[0].nse == A.nse
    for got, expected in zip(ours, theirs, strict=True):
        testing.assert_close(got.to_dense(), expected.to_dense())


def test_reorder_refuses_what_is_no_order():
    A, x = spgrad.eye(3), torch.ones(3, 2)
    empty = spgrad.from_dense(torch.zeros(0, 0))
    assert spgrad.reorder(empty, torch.zeros(0, dtype=torch.int64))[1].shape == (0,)
    for order, operands, kind, says in [
        ([0, 1, 2], (), TypeError, "`order`"),
        (torch.tensor([0.0, 1.0, 2.0]), (), ValueError, "int64"),
        (torch.tensor([0, 1]), (), ValueError, r"\(2,\)"),
        (torch.tensor([0, 1, 3]), (), IndexError, "0 to 3"),
        (torch.tensor([0, -1, 2]), (), IndexError, "-1 to 2"),
        (torch.tensor([0, 2, 2]), (), ValueError, "lacks row 1"),
        (torch.tensor([0, 2, 1]), (x[:2],), ValueError, r"`operands\[0\]` has shape \(2, 2\)"),
        (torch.tensor([0, 2, 1]), (x, torch.tensor(1.0)), ValueError, r"`operands\[1\]`"),
        (torch.tensor([0, 2, 1]), (A,), TypeError, r"`operands\[0\]`"),
    ]:
        with pytest.raises(kind, match=rf"spgrad\.reorder: .*{says}"):
            spgrad.reorder(A, order, *operands)
    with pytest.raises(ValueError, match="square"):
        spgrad.reorder(spgrad.from_dense(torch.ones(2, 3)), torch.tensor([0, 1]))
