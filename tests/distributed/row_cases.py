"""Operations on rows, and training."""

import torch
from group import F64, case, close, dense, entry_ids, matrix, own, partitions, raises
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import spgrad
from spgrad import linalg
from spgrad.distributed import distribute, solve


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
            wide = matrix(9)  # rows and columns are shared out apart
            some = distribute(wide)
            of_wide = wide.to_dense()
            of_rows = distribute_tensor(r[:9].contiguous(), some.mesh, [placement])
            for M, dense_m in ((some, of_wide), (some.T, of_wide.T)):
                row, column = (of_rows, by_columns) if M is some else (by_columns, of_rows)
                x, y = (r[:9], c) if M is some else (c[:, None], r[:9, 0])
                close((M * row.reshape(-1, 1)).full().to_dense(), dense_m * x)
                close((M * column.reshape(-1)).full().to_dense(), dense_m * y)
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
def norms(rank, world):
    """Of every order, with gradients, as in one process; the others are refused by name."""
    full = spgrad.from_dense(dense(5, 7, seed=3) + 0.1).to_sparse_csr()
    tied = spgrad.from_dense(torch.tensor([[3.0, -3, 0], [0, 1, 0]], dtype=F64)).to_sparse_csr()
    empty = spgrad.zeros(3, 4, dtype=F64, layout=torch.sparse_csr)
    for A in (matrix(dtype=F64), full, tied, empty, matrix(dtype=torch.complex128)):
        D = distribute(A)
        for p in (2, 1, 0, 0.5, 3, -1, float("inf"), float("-inf"), "fro"):
            number = 2 if p == "fro" else p
            check_norm(D, A, lambda M, p=p: spgrad.norm(M, p), lambda M, p=p: M.norm(p))
            for dim in (1, -2):
                of = (lambda M, n=number, d=dim: torch.linalg.vector_norm(M, n, d),) * 2
                if dim == 1 or 0 <= number < float("inf"):
                    check_norm(D, A, *of)
                if dim == -2 or 0 <= number < float("inf"):
                    check_norm(
                        D.T, A, lambda M, n=number, d=dim: spgrad.vector_norm(M.mT, n, d), of[1]
                    )
        for p in (None, "fro", 1, -1, float("inf"), float("-inf")):
            check_norm(D, A, *(lambda M, p=p: torch.linalg.norm(M, p),) * 2)
            check_norm(
                D.T,
                A,
                lambda M, p=p: torch.linalg.norm(M.mT, p),
                lambda M, p=p: torch.linalg.norm(M, p),
            )
            if p is not None:
                check_norm(D, A, *(lambda M, p=p: torch.linalg.matrix_norm(M, p, (1, 0)),) * 2)
        check_norm(D, A, *(lambda M: torch.norm(M, dim=1),) * 2)
        check_norm(D, A, *(lambda M: torch.linalg.norm(M, 3, 1),) * 2)
    bad = full.values().detach().clone()
    bad[3] = float("nan")
    D = distribute(spgrad.from_values(bad, full))
    for p in (2, 0, float("inf"), float("-inf"), -1):
        wanted = torch.linalg.vector_norm(spgrad.from_values(bad, full).to_dense(), p)
        torch.testing.assert_close(D.norm(p).to_local(), wanted, equal_nan=True)
    refused = spgrad.UnsupportedError
    raises(refused, "`p` is 'nuc'", lambda: D.norm("nuc"))
    raises(refused, "`ord` is 2", lambda: torch.linalg.norm(D, 2))
    raises(ValueError, "`dim` is 2", lambda: D.norm(2, 2))
    raises(TypeError, "`p` is 'one'", lambda: D.norm("one"))
    raises(refused, "Distribute the transpose", lambda: D.norm(float("inf"), 0))
    raises(refused, "'keepdim'", lambda: torch.norm(D, keepdim=True))
    raises(ValueError, "`dim` is (0, 0)", lambda: torch.linalg.matrix_norm(D, 1, (0, 0)))
    if world > 1:
        raises(ValueError, f"rank {world - 1} and", lambda: D.norm(2 if rank == world - 1 else 1))


def check_norm(D, A, alone, sharded):
    """A norm of D and its gradient, against that of A in one process."""
    values = A.values().detach().requires_grad_()
    wanted = alone(spgrad.from_values(values, A))
    local = D.local_values().detach().requires_grad_()
    found = sharded(D.with_values(local))
    if isinstance(found, DTensor):
        found, mine = found.to_local(), wanted
    else:
        assert len(wanted) in D.shape
        mine = wanted[D.row_ids if len(wanted) == D.shape[0] else D.column_ids]
    close(found, mine)
    (g,) = torch.autograd.grad(wanted.sum(), values)
    (h,) = torch.autograd.grad(found.sum(), local)
    close(h, g[entry_ids(D)])


@case
def powers(rank, world):
    A = matrix()
    D, x = distribute(A), dense(23, 2)
    for function in (abs, lambda M: M.abs(), lambda M: M**2, lambda M: M.pow(3.0), torch.abs):
        values, local = (t.detach().requires_grad_() for t in (A.values(), D.local_values()))
        wanted = function(spgrad.from_values(values, A)) @ x
        found = function(D.with_values(local)) @ D.scatter(x)
        close(found, own(D, wanted))
        wanted.square().sum().backward()
        found.square().sum().backward()
        close(local.grad, values.grad[entry_ids(D)])
    close(torch.pow(D, 2).full().to_dense(), A.to_dense() ** 2)
    raises(ValueError, "`exponent` is 0", lambda: D**0)
    raises(TypeError, "`exponent` is a", lambda: D ** torch.ones(23, 23, dtype=F64))
    if world > 1:
        text = f"rank {world - 1} and 2 on rank 0"
        raises(ValueError, text, lambda: D ** (3 if rank == world - 1 else 2))


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
def attention_with_heads(rank, world):
    """The heads share the mask and its gradient."""
    mask = matrix()
    for heads in ((3,), (2, 3)):
        q, k, v = (
            dense(23 * 6, 4, seed=s)[: 23 * torch.Size(heads).numel()].reshape(*heads, 23, 4)
            for s in (1, 2, 3)
        )
        values = mask.values().detach().requires_grad_()
        whole = [t.clone().requires_grad_() for t in (q, k, v[..., :3])]
        wanted = spgrad.scaled_dot_product_attention(*whole, spgrad.from_values(values, mask))
        wanted.square().sum().backward()
        for partition in partitions(23, world):
            D = distribute(mask, partition=partition)
            leaf = D.local_values().detach().requires_grad_()
            local = [t.detach()[..., D.row_ids, :].requires_grad_() for t in whole]
            found = D.with_values(leaf).attention(*local)
            close(found, wanted[..., D.row_ids, :])
            found.square().sum().backward()
            close(leaf.grad, values.grad[entry_ids(D)])
            for ours, theirs in zip(local, whole, strict=True):
                close(ours.grad, theirs.grad[..., D.row_ids, :])
    q, k, v = local
    raises(ValueError, "`key` has shape", lambda: D.attention(q, k[0], v))
    raises(ValueError, "`value` has shape", lambda: D.attention(q, k, v[..., :0, :]))
    raises(ValueError, "`query` has shape", lambda: D.attention(q[..., :2], k, v))
    several = distribute_tensor(dense(69, 4).reshape(3, 23, 4), D.mesh, [Replicate()])
    raises(ValueError, "A DTensor has no heads", lambda: D.attention(several, k, v))
    if world > 1:
        kind = "own rows with 4 columns of float64 that require a gradient"
        text = f"`query` is [1, 3] heads of {kind} on rank {world - 1}"
        few = [t[:1] if rank == world - 1 else t for t in (q, k, v)]
        raises(ValueError, text, lambda: D.attention(*few))


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


@case
def autocast(rank, world):
    """Products have autocast's dtype, also of rows that a layer before gave; solves have not."""
    A = spgrad.set_diag(matrix(dtype=torch.float32), 9.0).to_sparse_csr()
    D, x = distribute(A), dense(23, 2, torch.float32)
    weight = dense(2, 2, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for function in (
            lambda M, x: M @ (x @ weight),
            lambda M, x: (
                spgrad.spmm(M, x, "amax") if isinstance(M, torch.Tensor) else M.spmm(x, "amax")
            ),
            attend,
        ):
            whole, local = x.clone().requires_grad_(), D.scatter(x).requires_grad_()
            wanted, found = function(A, whole), function(D, local)
            assert found.dtype == torch.bfloat16
            close(found, own(D, wanted))
            wanted.sum().backward()
            found.sum().backward()
            assert local.grad.dtype == torch.float32
            torch.testing.assert_close(local.grad, whole.grad[D.column_ids], rtol=0.05, atol=0.1)
        b = own(D, x).requires_grad_()
        z = solve(D, b, linalg.GMRES(rtol=1e-6))
        (g,) = torch.autograd.grad(z.sum(), b)
    torch.testing.assert_close(z, own(D, torch.linalg.solve(A.to_dense(), x)), rtol=1e-4, atol=1e-5)
    ones = torch.ones_like(x)
    torch.testing.assert_close(
        g, own(D, torch.linalg.solve(A.to_dense().T, ones)), rtol=1e-4, atol=1e-5
    )
    if world > 1:

        def on_one_rank():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=rank == world - 1):
                D @ D.scatter(x)

        raises(ValueError, f"on rank {world - 1} and", on_one_rank)


def attend(M, x):
    if isinstance(M, torch.Tensor):
        return spgrad.scaled_dot_product_attention(x, x, x, M)
    return M.attention(x, x, x)


@case
def integers_and_truth_values(rank, world):
    """Products count; norms are refused on every rank, also on those without elements."""
    A = matrix(dtype=F64)
    for dtype in (torch.int32, torch.bool):
        B = spgrad.from_values((A.values() * 3).round().to(dtype), A)
        for partition in ("nse", [23] + [0] * (world - 1)):
            D, x = distribute(B, partition=partition), (dense(23, 2) * 4).to(dtype)
            own_x = D.scatter(x)
            for found, wanted in (
                (D @ own_x, B @ x),
                (D.T @ own_x, B.mT @ x),
                (D @ own_x[:, 0].contiguous(), B @ x[:, 0].contiguous()),
                (D.sum(1), B.sum(1)),
                (D.sum(0), B.sum(0)),
            ):
                assert found.dtype == wanted.dtype
                assert torch.equal(found, own(D, wanted))
            assert torch.equal(D.sum().to_local(), B.sum())
            for p in (2, 1, float("inf"), float("-inf")):
                raises(ValueError, "`D` has dtype", lambda p=p, D=D: D.norm(p))
