"""Operations on rows, and training."""

import torch
from group import F64, case, close, dense, entry_ids, matrix, own, partitions
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import spgrad
from spgrad.distributed import distribute


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
        close((D.detach() / D.detach().norm()).full().to_dense(), dense_a / dense_a.norm())
        for placement in (Shard(0), Replicate()):
            by_rows, by_columns = (distribute_tensor(t, D.mesh, [placement]) for t in (r, c))
            close((D * by_rows).full().to_dense(), dense_a * r)
            close((D * by_columns).full().to_dense(), dense_a * c)
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
    for placement in (Shard(0), Replicate()):
        of_all = [distribute_tensor(t, D.mesh, [placement]).requires_grad_() for t in (q, k, v)]
        found = D.attention(*of_all)
        close(found.full_tensor(), wanted)
        found.square().sum().backward()
        for ours, theirs in zip(of_all, whole, strict=True):
            close(ours.grad.full_tensor(), theirs.grad)


@case
def torch_names(rank, world):
    """The functions of torch that have a sharded form."""
    A = matrix()
    D, x = distribute(A), dense(23, 2)
    own_x, whole = D.scatter(x), A.to_dense()
    close(torch.matmul(D, own_x), own(D, whole @ x))
    close(torch.mm(D, own_x), own(D, whole @ x))
    close(torch.mv(D, own_x[:, 0].contiguous()), own(D, whole @ x[:, 0]))
    close(torch.softmax(D, dim=1).full().to_dense(), torch.softmax(A, 1).to_dense())
    close(torch.sum(D, dim=1), own(D, whole.sum(1)))
    close(torch.sum(D).full_tensor(), whole.sum())
    for function in (torch.add, torch.sub):
        close(function(D, D.map(torch.square)).full().to_dense(), function(whole, whole.square()))
    for function in (torch.mul, torch.div):
        close(function(D, 4.0).full().to_dense(), function(whole, 4.0))
    close(D.t().full().to_dense(), whole.T)


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
    known = distribute_tensor(torch.tensor(0.5, dtype=F64), D.mesh, [Replicate()]).requires_grad_()
    moved = D.add_identity(known)
    close(moved.full().to_dense(), wanted)
    moved.diagonal().sum().backward()
    close(known.grad.full_tensor(), torch.tensor(23.0, dtype=F64))


@case
def optimizers(rank, world):
    """Adam on the values as a DTensor, with the norm of the gradient clipped, as in one process."""
    for dtype in (F64, torch.float32):
        A = matrix(dtype=dtype)
        x, target = dense(23, 2, dtype), dense(23, 2, dtype, seed=7)
        alone = torch.nn.Parameter(A.values().detach().clone())
        D = distribute(A)
        shared = torch.nn.Parameter(D.values())
        for values, layer, rows in (
            (alone, lambda v, A=A, x=x: spgrad.from_values(v, A) @ x, target),
            (shared, lambda v, D=D, x=x: D.with_values(v) @ D.scatter(x), own(D, target)),
        ):
            optimizer = torch.optim.Adam([values], lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                (layer(values) - rows).square().sum().backward()
                torch.nn.utils.clip_grad_norm_([values], 1.0)
                optimizer.step()
        close(shared.full_tensor().detach(), alone.detach())


@case
def page_rank(rank, world):
    """A loop of products with the transpose; each process ends it after the same step."""
    A = matrix().detach()
    A = spgrad.from_values(A.values().abs(), A)
    wanted, count = ranks(A, torch.full((23, 1), 1 / 23, dtype=F64), lambda t: t)
    for partition in partitions(23, world):
        D = distribute(A, partition=partition)

        def everywhere(t):
            torch.distributed.all_reduce(t)
            return t

        found, steps = ranks(D, D.T.scatter(torch.full((23, 1), 1 / 23, dtype=F64)), everywhere)
        close(found, own(D, wanted))
        assert steps == count


def ranks(A, p, total):
    """Ranks of pages that link to others by A, with a way to add up over processes."""
    out = A.sum(1).reshape(-1, 1)
    for step in range(200):
        share = torch.where(out > 0, p / out.clamp(min=1e-30), 0)
        lost = total(torch.where(out > 0, 0, p).sum())
        new = 0.85 * (A.T @ share + lost / 23) + 0.15 / 23
        change = total((new - p).abs().sum())
        p = new
        if change < 1e-12:
            return p, step
    raise AssertionError("the ranks did not converge")
