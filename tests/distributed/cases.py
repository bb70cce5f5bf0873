"""What every process of a group runs; each case raises where its numbers are not those of one."""

import faulthandler
import traceback

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import spgrad
from spgrad.distributed import distribute, from_local

F64 = torch.float64
CASES = {}
LIMIT = 240
"""Seconds after which a group of processes that hangs is ended."""


def case(function):
    CASES[function.__name__] = function
    return function


def run(rank, world, directory):
    """Runs all cases in one process of a group, and writes what each of them raised."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)
    start = f"file://{directory}/start"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=world)
    failed = {}
    for name, function in CASES.items():
        torch.manual_seed(0)
        try:
            function(rank, world)
        except Exception:
            failed[name] = traceback.format_exc()
    torch.save(failed, f"{directory}/{rank}.pt")
    dist.destroy_process_group()


def matrix(m=23, k=23, share=0.2, dtype=F64, seed=0, index=torch.int64):
    """A CSR matrix with some rows without elements."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(m, k, dtype=dtype, generator=generator)
    dense = dense * (torch.rand(m, k, generator=generator) < share)
    dense[m // 3] = 0
    A = spgrad.from_dense(dense).to_sparse_csr()
    crow, col = A.crow_indices().to(index), A.col_indices().to(index)
    return spgrad.sparse_csr_tensor(crow, col, A.values(), (m, k))


def dense(rows, n, dtype=F64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, n, dtype=dtype, generator=generator)


def close(found, wanted):
    kind = {torch.float32: 1e-5, torch.complex64: 1e-5}.get(wanted.dtype, 1e-12)
    torch.testing.assert_close(found, wanted, rtol=kind, atol=kind)


def own(D, t):
    """The rows of the result of D that this process has, of all rows."""
    return t[D.row_ids]


def partitions(m, world):
    parts = torch.arange(m) * 7 % world
    uneven = [m - (world - 1), *[1] * (world - 1)]
    return ["nse", "rows", "metis", uneven, parts]


def compare(A, D, n, world, dtype=F64):
    """Value, gradients, and gradients of gradients of both products against one process."""
    for adjoint in (False, True):
        m, k = A.shape[::-1] if adjoint else A.shape
        whole, weight, other = dense(k, n, dtype), dense(m, n, dtype, 2), dense(k, n, dtype, 3)
        values = A.values().detach().requires_grad_()
        B = spgrad.from_values(values, A)
        x = whole.clone().requires_grad_()
        wanted = second_order((B.mT if adjoint else B) @ x, values, x, weight, other)
        local = D.local_values().detach().requires_grad_()
        E = D.with_values(local)
        E = E.T if adjoint else E
        x = E.scatter(whole).requires_grad_()
        y = E @ x
        found = second_order(y, local, x, own(E, weight), other[E.column_ids])
        ids = entry_ids(D)
        for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            at = (E.row_ids, ids, E.column_ids, ids, E.column_ids)[i]
            close(ours, theirs[at])


def second_order(y, values, x, weight, other):
    """y, the gradients of sum(w y^2), and those of how these depend on the operands."""
    loss = (y.abs().square() * weight.abs()).sum()
    first = torch.autograd.grad(loss, (values, x), create_graph=True)
    again = first[0].abs().square().sum() + (first[1] * other.conj()).real.sum()
    return [y, *first, *torch.autograd.grad(again, (values, x))]


def entry_ids(D):
    """Where the values of this process stand among those of the whole matrix."""
    return D.plan.entry_ids


@case
def products(rank, world):
    for partition in partitions(23, world):
        A = matrix()
        compare(A, distribute(A, partition=partition), 3, world)


@case
def rectangles(rank, world):
    for m, k in ((30, 7), (5, 40), (1, 9), (9, 1)):
        A = matrix(m, k, 0.4)
        compare(A, distribute(A), 2, world)
        sizes = [k - (world - 1) if k >= world else 0, *[1 if k >= world else 0] * (world - 1)]
        if sum(sizes) == k:
            compare(A, distribute(A, columns=sizes), 2, world)


@case
def dtypes(rank, world):
    for dtype in (torch.float32, torch.complex64, torch.complex128):
        A = matrix(dtype=dtype)
        compare(A, distribute(A), 2, world, dtype)
    for dtype in (torch.bfloat16, torch.float16):
        A = matrix(dtype=torch.float32).to(dtype)
        x = dense(23, 2, torch.float32).to(dtype)
        D = distribute(A)
        torch.testing.assert_close(D @ D.scatter(x), own(D, A @ x), rtol=2e-2, atol=2e-2)
    A = matrix(index=torch.int32)
    compare(A, distribute(A), 1, world)


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
        sent = []
        start = D.plan.exchange.start

        def counted(x, start=start, sent=sent):
            pending = start(x)
            sent.append((pending.sent.shape[0], pending.out.shape[0]))
            return pending

        object.__setattr__(D.plan.exchange, "start", counted)
        D @ D.scatter(dense(40, 2))
        assert sent == [(len(D.plan.exchange.send), len(named))]


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


@case
def rowwise(rank, world):
    A = matrix().requires_grad_()
    for partition in partitions(23, world):
        D = distribute(A, partition=partition)
        assert D.requires_grad
        x = dense(23, 2)
        close(D.softmax(1).full().to_dense(), torch.softmax(A.detach(), 1).to_dense())
        for reduce in ("mean", "amax", "amin"):
            whole = x.clone().requires_grad_()
            wanted = spgrad.spmm(A.detach(), whole, reduce)
            wanted.square().sum().backward()
            local = D.scatter(x).requires_grad_()
            found = D.detach().spmm(local, reduce)
            close(found, own(D, wanted))
            found.square().sum().backward()
            close(local.grad, whole.grad[D.column_ids])
        dense_a = A.detach().to_dense()
        close(D.detach().sum(1), own(D, dense_a.sum(1)))
        close(D.detach().sum(0), dense_a.sum(0)[D.column_ids])
        close(D.T.detach().sum(1), dense_a.sum(0)[D.column_ids])
        close(D.detach().sum().full_tensor(), dense_a.sum())
        close(D.detach().norm().full_tensor(), dense_a.norm())
        r, c = dense(23, 1), dense(23, 1, seed=5)[:, 0]
        close((D * own(D, r)).full().to_dense(), dense_a * r)
        close((D * c[D.column_ids]).full().to_dense(), dense_a * c)
        close((D / own(D, r)).full().to_dense(), dense_a / r)
        close((D.T * c[D.column_ids][:, None]).full().to_dense(), dense_a.T * c[:, None])
        close((2 * D + D - D * 0.5).full().to_dense(), dense_a * 2.5)
        close(torch.relu(-D).full().to_dense(), torch.relu(-dense_a))
        close(torch.abs(D).full().to_dense(), dense_a.abs())
        close(D.map(torch.exp).full().values(), A.detach().values().exp())


@case
def gradients_of_rowwise(rank, world):
    """Of the whole chain of a layer of attention, with learned values, against one process."""
    A = matrix()
    values = A.values().detach().requires_grad_()
    B = spgrad.from_values(values, A)
    scale = dense(23, 1).requires_grad_()
    B = torch.softmax(B * scale, 1)
    loss = (B @ dense(23, 2)).square().sum() + B.sum(0).square().sum() + B.norm()
    loss.backward()
    D = distribute(A)
    local = D.local_values().requires_grad_()
    own_scale = own(D, dense(23, 1)).requires_grad_()
    E = (D.with_values(local) * own_scale).softmax(1)
    loss = (E @ D.scatter(dense(23, 2))).square().sum() + E.sum(0).square().sum()
    loss.backward(retain_graph=True)
    E.norm().to_local().backward()
    close(local.grad, values.grad[entry_ids(D)])
    close(own_scale.grad, own(D, scale.grad))


@case
def attention(rank, world):
    mask = matrix()
    q, k, v = (dense(23, 4, seed=s) for s in (1, 2, 3))
    whole = [t.clone().requires_grad_() for t in (q, k, v)]
    wanted = spgrad.scaled_dot_product_attention(*whole, mask)
    wanted.square().sum().backward()
    D = distribute(mask)
    local = [t[D.row_ids].requires_grad_() for t in (q, k, v)]
    found = D.attention(*local)
    close(found, own(D, wanted))
    found.square().sum().backward()
    for ours, theirs in zip(local, whole, strict=True):
        close(ours.grad, own(D, theirs.grad))


@case
def identity(rank, world):
    A = spgrad.set_diag(matrix(), 2.0).to_sparse_csr()
    for partition in partitions(23, world):
        D = distribute(A, partition=partition)
        wanted = A.to_dense() + 0.5 * torch.eye(23, dtype=F64)
        close(D.add_identity(0.5).full().to_dense(), wanted)
        close(D.diagonal(), own(D, A.to_dense().diagonal()))
    alpha = torch.tensor(0.5, dtype=F64, requires_grad=True)
    D.add_identity(alpha).diagonal().sum().backward()
    close(alpha.grad, torch.tensor(float(D.local_shape[0]), dtype=F64))


@case
def optimizers(rank, world):
    """Adam on the values as a DTensor, with the norm of the gradient clipped, as in one process."""
    A = matrix()
    x, target = dense(23, 2), dense(23, 2, seed=7)
    alone = torch.nn.Parameter(A.values().detach().clone())
    D = distribute(A)
    shared = torch.nn.Parameter(D.values())
    for values, layer, rows in (
        (alone, lambda v: spgrad.from_values(v, A) @ x, target),
        (shared, lambda v: D.with_values(v) @ D.scatter(x), own(D, target)),
    ):
        optimizer = torch.optim.Adam([values], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (layer(values) - rows).square().sum().backward()
            torch.nn.utils.clip_grad_norm_([values], 1.0)
            optimizer.step()
    close(shared.full_tensor().detach(), alone.detach())
