"""Products and their gradients."""

import collections
import contextlib

import torch
import torch.distributed as dist
from group import F64, case, close, dense, entry_ids, matrix, own, partitions, second_order
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import spgrad
from spgrad.distributed import distribute, exchange, from_local
from spgrad.lowering.products import spmm


def compare(A, D, n, world, dtype=F64):
    """Value, gradients, and gradients of gradients of both products against one process."""
    for adjoint in (False, True):
        m, k = A.shape[::-1] if adjoint else A.shape
        whole, weight, other = dense(k, n, dtype), dense(m, n, dtype, 2), dense(k, n, dtype, 3)
        values = A.values().detach().requires_grad_()
        B = spgrad.from_values(values, A)
        x = whole.clone().requires_grad_()
        wanted = second_order((B.mT if adjoint else B) @ x, values, x, weight, other)
        sums = magnitudes(A, adjoint, whole, weight, other)
        local = D.local_values().detach().requires_grad_()
        E = D.with_values(local)
        E = E.T if adjoint else E
        x = E.scatter(whole).requires_grad_()
        y = E @ x
        loss = (y.abs().square() * own(E, weight).abs()).sum()
        plain = torch.autograd.grad(loss, (local, x), retain_graph=True)  # by other kernels
        found = second_order(y, local, x, own(E, weight), other[E.column_ids])
        ids = entry_ids(D)
        for ours, theirs, terms, at in zip(
            plain, wanted[1:3], sums[1:3], (ids, E.column_ids), strict=True
        ):
            close(ours, theirs[at], terms[at])
        for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            at = (E.row_ids, ids, E.column_ids, ids, E.column_ids)[i]
            close(ours, theirs[at], sums[i][at])


def magnitudes(A, adjoint, x, weight, other):
    """The sums of the magnitudes of the terms of all that `compare` compares.

    All are sums of products of the operands, so they are the same sums of their magnitudes.
    """
    values, x, weight, other = (t.detach().abs().double() for t in (A.values(), x, weight, other))
    values.requires_grad_()
    B = spgrad.from_values(values, A)
    return second_order((B.mT if adjoint else B) @ x.requires_grad_(), values, x, weight, other)


@case
def products(rank, world):
    for partition in partitions(23, world):
        A = matrix()
        compare(A, distribute(A, partition=partition), 3, world)


@case
def more_elements_than_one_pass_is_faster_for(rank, world):
    """Each gradient of the own columns has a kernel of its own."""
    A = matrix(40, 40, 0.5)
    D = distribute(A)
    small, spmm._SMALL = spmm._SMALL, 0
    try:
        assert not spmm.in_one_pass(3, D.scatter(dense(40, 3)), D.plan.own)
        compare(A, D, 3, world)
    finally:
        spmm._SMALL = small


@case
def rectangles(rank, world):
    for m, k in ((30, 7), (5, 40), (1, 9), (9, 1)):
        A = matrix(m, k, 0.4)
        compare(A, distribute(A), 2, world)
        sizes = [k - (world - 1) if k >= world else 0, *[1 if k >= world else 0] * (world - 1)]
        if sum(sizes) == k:
            D = distribute(A, columns=sizes)
            compare(A, D, 2, world)
            compare(A, from_local(A[D.row_ids], columns=sizes), 2, world)


@case
def dtypes(rank, world):
    for dtype in (torch.float32, torch.complex64, torch.complex128):
        A = matrix(dtype=dtype)
        compare(A, distribute(A), 2, world, dtype)
    for dtype in (torch.bfloat16, torch.float16):
        A = matrix(dtype=torch.float32).to(dtype)
        compare(A, distribute(A), 2, world, dtype)
    A = matrix(index=torch.int32)
    compare(A, distribute(A), 1, world)
    A, x = matrix().sign().to(torch.int16), torch.arange(46, dtype=torch.int16).view(23, 2)
    D = distribute(A)  # gloo does not send this dtype
    assert torch.equal(D.gather(D @ D.scatter(x)), A @ x)
    assert torch.equal(D.full().to_dense(), A.to_dense())


@case
def layouts(rank, world):
    A = matrix(24, 24)
    x = dense(24, 2)
    for B in (
        A.to_sparse_coo(),
        A.to_sparse_csc(),
        A.to_sparse_bsr((2, 3)),
        A.to_sparse_bsc((2, 3)),
        A.to_sparse(layout=torch.sparse_coo),
    ):
        D = distribute(B)
        close(D @ D.scatter(x), own(D, A @ x))


@case
def as_many_rows_as_processes(rank, world):
    """METIS need not divide them."""
    A = matrix(world, world, 1.0)
    D, x = distribute(A, partition="metis"), dense(world, 2)
    assert D.row_ids.tolist() == [rank]
    close(D @ D.scatter(x), own(D, A @ x))


@case
def edges(rank, world):
    for A in (spgrad.zeros(6, 6, dtype=F64, layout=torch.sparse_csr), matrix(2, 2, 1.0)):
        D = distribute(A)
        x = dense(A.shape[1], 3)
        close(D @ D.scatter(x), own(D, A @ x))
        close(D.full().to_dense(), A.to_dense())
    D = distribute(spgrad.zeros(0, 0, dtype=F64, layout=torch.sparse_csr))
    assert (D @ torch.zeros(0, 2, dtype=F64)).shape == (0, 2)
    D = distribute(matrix())
    x = D.scatter(dense(23, 1)[:, 0])
    close(D @ x, own(D, matrix() @ dense(23, 1)[:, 0]))
    assert (D @ x[:, None][:, :0]).shape == (D.local_shape[0], 0)


@case
def first_process_has_it(rank, world):
    for partition in partitions(23, world):
        D = distribute(matrix() if rank == 0 else None, partition=partition)
        compare(matrix(), D, 2, world)


@case
def rows_of_each_process(rank, world):
    A = matrix()
    bounds = [0, *[3 + i for i in range(world - 1)], 23]
    D = from_local(A[bounds[rank] : bounds[rank + 1]])
    compare(A, D, 2, world)
    close(D.to_local().to_dense(), A.to_dense()[bounds[rank] : bounds[rank + 1]])


@case
def rows_sent_are_those_named(rank, world):
    A = matrix(40, 40, 0.1)
    for partition in partitions(40, world):
        D = distribute(A, partition=partition)
        columns = A.to_dense()[D.row_ids].ne(0).any(0).nonzero().squeeze(1)
        named = set(columns.tolist()) - set(D.column_ids.tolist())
        assert D.plan.exchange.arriving == len(named)
        assert set(D.plan.far_ids.tolist()) == named
        with counted() as (rows, calls):
            D @ D.scatter(dense(40, 2))
        assert rows == {"sent": len(D.plan.exchange.send), "received": len(named)}
        assert calls == ["all_to_all_single"]


@contextlib.contextmanager
def counted():
    """The rows that this process sends and receives from now on, and the calls that do it."""
    rows, calls = collections.Counter(sent=0, received=0), []
    plain = {name: getattr(dist, name) for name in ("all_to_all_single", "isend", "irecv")}

    def together(out, given, *more, **options):
        rows.update(sent=len(given), received=len(out))
        calls.append("all_to_all_single")
        return plain["all_to_all_single"](out, given, *more, **options)

    def one(name, key):
        def call(given, **options):
            rows[key] += len(given)
            calls.append(name)
            return plain[name](given, **options)

        return call

    dist.all_to_all_single = together
    dist.isend, dist.irecv = one("isend", "sent"), one("irecv", "received")
    try:
        yield rows, calls
    finally:
        for name, function in plain.items():
            setattr(dist, name, function)


@contextlib.contextmanager
def small_messages(rows):
    """Messages of this many rows of two float64, as if there were as many as would need them."""
    size, exchange._MESSAGE = exchange._MESSAGE, rows * 16
    try:
        yield
    finally:
        exchange._MESSAGE = size


@case
def many_messages(rank, world):
    """More rows than travel at a time; the gradients leave while others are computed."""
    A = matrix(120, 120, 0.3)
    with small_messages(2):
        for partition in ("nse", torch.arange(120) * 7 % world):
            D = distribute(A, partition=partition)
            compare(A, D, 2, world)
            with counted() as (rows, calls):
                y = D @ D.scatter(dense(120, 2))
            E = D.plan.exchange
            assert rows == {"sent": len(E.send), "received": E.arriving}
            assert calls.count("irecv") >= 4 * (world - 1)
            assert calls.count("isend") >= 4 * (world - 1)
            assert (world == 1) == ("all_to_all_single" in calls)
            for _ in range(3):  # not in the order of arrival
                assert torch.equal(D @ D.scatter(dense(120, 2)), y)
            with torch.inference_mode():
                assert torch.equal(D @ D.scatter(dense(120, 2)), y)
        A = matrix(50, 90, 0.3, torch.complex128)
        compare(A, distribute(A), 3, world, torch.complex128)


@case
def little_besides_the_rows(rank, world):
    """Messages of about equal sizes, of which one at a time is copied; a plan of 32-bit numbers."""
    D = distribute(matrix(96, 96, 1.0))
    plan = D.plan
    assert {t.dtype for t in (plan.exchange.send, plan.far_ids)} == {torch.int32}
    assert len(plan.entry_starts) == min(1, D.local_shape[0])
    rows = torch.empty(0, 2, dtype=F64)
    with small_messages(7):
        for count in (0, 1, 7, 8, 15, 100, 1000):
            found = exchange.messages([count, 2 * count], rows)
            for peer, wanted in enumerate((count, 2 * count)):
                sizes = [end - begin for of, begin, end, _ in found if of == peer]
                assert sum(sizes) == wanted
                assert len(sizes) == -(-wanted // max(7, -(-wanted // 16)))
                assert max(sizes, default=0) - min(sizes, default=0) < max(len(sizes), 2)
    held, plain = [], torch.empty

    def counting(*size, **options):
        t = plain(*size, **options)
        held.append(t.numel() * t.element_size())
        return t

    torch.empty = counting
    try:
        every_other = torch.ones(96, 96, dtype=F64)
        every_other[:, ::2] = 0
        apart = distribute(spgrad.from_dense(every_other).to_sparse_csr())
        x = apart.scatter(dense(96, 2))
        held.clear()
        with small_messages(4):
            apart @ x
        assert sum(held) <= 4 * 16
    finally:
        torch.empty = plain


@case
def parts(rank, world):
    """The entries in columns of other processes are multiplied part by part, as rows arrive."""
    A = matrix(80, 80, 1.0) * 0.1
    for partition in ("nse", torch.arange(80) * 7 % world):
        D = distribute(A, partition=partition)
        assert len(D.plan.far) == (1 if world == 1 else 4)
        assert D.plan.far[-1].end == D.plan.exchange.arriving
        compare(A, D, 3, world)
        dense_a, line = A.to_dense(), dense(80, 1, seed=4)[:, 0]
        close(D.sum(1), own(D, dense_a.sum(1)))
        close(D.sum(0), dense_a.sum(0)[D.column_ids])
        close((D * line[D.column_ids]).full().to_dense(), dense_a * line)
        close(
            torch.relu(D).softmax(1).full().to_dense(), torch.softmax(torch.relu(A), 1).to_dense()
        )


@case
def rows_side_by_side_are_not_copied(rank, world):
    """Messages of a range of rows leave from x itself; those of rows that lie apart are copied."""
    copied = []
    plain = torch.index_select

    def counting(x, dim, index, *, out=None):
        if out is not None:
            copied.append(len(index))
        return plain(x, dim, index) if out is None else plain(x, dim, index, out=out)

    torch.index_select = counting
    try:
        with small_messages(2):
            full = distribute(matrix(96, 96, 1.0))
            every_other = torch.ones(96, 96, dtype=F64)
            every_other[:, ::2] = 0
            apart = distribute(spgrad.from_dense(every_other).to_sparse_csr())
            x = dense(96, 2)
            full @ full.scatter(x)
            assert copied == []
            apart @ apart.scatter(x)
            assert sum(copied) == len(apart.plan.exchange.send)
            every_other[:, 1::4] = torch.rand(96, 24, dtype=F64)
            every_other[:, :24] = 0.5
            every_other[:, 48:60] = 0.5
            for size in (2, 5, 7):  # messages of both kinds, and a last one that is shorter
                with small_messages(size):
                    mixed = distribute(spgrad.from_dense(every_other).to_sparse_csr())
                    close(mixed @ mixed.scatter(x), own(mixed, every_other @ x))
    finally:
        torch.index_select = plain


@case
def gathered(rank, world):
    A = matrix(13, 17, 0.3)
    for partition in ("nse", torch.arange(13) * 5 % world):
        D = distribute(A, partition=partition)
        B = D.full()
        assert torch.equal(B.to_dense(), A.to_dense())
        assert B._nnz() == A._nnz()
        assert torch.equal(D.T.full_tensor().to_dense(), A.to_dense().T)
        only = D.full(rank=world - 1)
        assert (only is None) == (rank != world - 1)
        y = D @ D.scatter(dense(17, 2))
        close(D.gather(y), A @ dense(17, 2))


@case
def dtensors(rank, world):
    A = matrix()
    mesh = dist.init_device_mesh("cpu", (world,))
    for partition in partitions(23, world):
        D = distribute(A, mesh, partition)
        values = A.values().detach().requires_grad_()
        whole = dense(23, 2).requires_grad_()
        wanted = spgrad.from_values(values, A) @ whole
        wanted.square().sum().backward()
        for placement in (Shard(0), Replicate()):
            x = distribute_tensor(dense(23, 2), mesh, [placement]).requires_grad_()
            leaf = D.values().detach().requires_grad_()
            assert leaf.shape == (A._nnz(),)
            y = D.with_values(leaf) @ x
            assert isinstance(y, DTensor)
            close(y.full_tensor(), wanted.detach())
            y.square().sum().backward()
            close(x.grad.full_tensor(), whole.grad)
            close(leaf.grad.full_tensor(), values.grad)
        close(D.values().full_tensor(), A.values())
        assert torch.equal(D.with_values(D.values()).local_values(), D.local_values())
