"""Files, checkpoints, and arguments that are wrong on one rank or on all."""

import faulthandler

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from group import (
    LIMIT,
    case,
    close,
    definite,
    dense,
    matrix,
    own,
    raises,
    shared_folder,
)

import spgrad
from spgrad.distributed import distribute, from_local, load, save


@case
def files(rank, world):
    import scipy.sparse

    A = matrix(29, 31, 0.2)
    folder = shared_folder()
    for partition in ("nse", torch.arange(29) * 5 % world):
        D = distribute(A, partition=partition)
        save(D, folder / f"{type(partition).__name__}")
        E = load(folder / f"{type(partition).__name__}")
        assert torch.equal(E.full().to_dense(), A.to_dense())
        assert E._values.dtype == A.dtype
    symmetric = definite()
    if rank == 0:
        S = scipy.sparse.csr_array(A.to_dense().numpy())
        scipy.sparse.save_npz(folder / "a.npz", S, compressed=False)
        spgrad.io.save(A, folder / "a.mtx")
        scipy.io.mmwrite(folder / "s.mtx", scipy.sparse.coo_array(symmetric.to_dense().numpy()))
        scipy.io.mmwrite(
            folder / "c.mtx",
            scipy.sparse.coo_array(matrix(dtype=torch.complex128).to_dense().numpy()),
        )
        text = (folder / "a.mtx").read_text().splitlines()
        (folder / "short.mtx").write_text("\n".join(text[:-3]) + "\n")
        (folder / "bad.mtx").write_text("\n".join([*text[:-1], "1 99 3.0"]) + "\n")
        (folder / "none.mtx").write_text("hello\n")
    dist.barrier()
    close(load(folder / "a.npz").full().to_dense(), A.to_dense())
    close(load(folder / "a.mtx").full().to_dense(), A.to_dense())
    close(load(folder / "s.mtx").full().to_dense(), symmetric.to_dense())
    close(load(folder / "c.mtx").full().to_dense(), matrix(dtype=torch.complex128).to_dense())
    raises(ValueError, "lacks 3 of the entries", lambda: load(folder / "short.mtx"))
    raises(ValueError, "bad.mtx", lambda: load(folder / "bad.mtx"))
    raises(ValueError, "none.mtx", lambda: load(folder / "none.mtx"))
    raises(ValueError, "absent", lambda: load(folder / "absent.npz"))
    raises(TypeError, "`path` is", lambda: load(3))


def only_last(rank, world, bad, good):
    """An argument that is wrong on one rank."""
    return bad if rank == world - 1 else good


@case
def wrong_on_one_rank(rank, world):
    A = matrix()
    D = distribute(A)
    x = D.scatter(dense(23, 2))
    last = f"on rank {world - 1}"

    def one(bad, good):
        return only_last(rank, world, bad, good)

    where = last if world > 1 else "on rank 0"
    raises(ValueError, where, lambda: D @ one(x[:-1], x))
    raises(ValueError, where, lambda: D @ one(x.float(), x))
    raises(TypeError, where, lambda: D @ one(A, x))
    raises(ValueError, where, lambda: D @ one(x[:, :, None], x))
    for partition in ("best", [22] * world, torch.full((23,), world), torch.ones(3).long()):
        raises(ValueError, where, lambda bad=partition: distribute(A, partition=one(bad, "nse")))
    raises(TypeError, where, lambda: distribute(one(A.to_dense(), A)))
    raises(ValueError, where, lambda: D.with_values(one(torch.ones(1), D.local_values())))
    raises(TypeError, where, lambda: from_local(one(3, D.to_local())))
    raises(ValueError, where, lambda: D * one(torch.ones(2, 2), x[:, :1]))
    raises(ValueError, "lack", lambda: D.add_identity(1.0))
    raises(ValueError, where, lambda: D.gather(one(x[:-1], x)))
    raises(TypeError, where, lambda: D.gather(one(A, x)))
    raises(ValueError, where, lambda: D.sum(one(2, 0)))
    raises(ValueError, where, lambda: D.full(one(world, 0)))
    if world > 1:
        raises(ValueError, f"{last} and", lambda: D @ one(x[:, :1], x))
        raises(ValueError, f"{last} and", lambda: D @ one(x.clone().requires_grad_(), x))
        raises(ValueError, "on the ranks", lambda: distribute(one(matrix(24, 24), A)))
        raises(ValueError, f"{last} and", lambda: from_local(one(A, A[:, :20])))
        raises(ValueError, "`call` is", lambda: D.spmm(x, one("mean", "sum")))
        raises(ValueError, f"{last} and", lambda: D.gather(one(x.float(), x)))
        raises(ValueError, f"{last} and", lambda: D.sum(one(1, 0)))
        raises(ValueError, f"{last} and", lambda: D.full(one(None, 0)))


@case
def refusals(rank, world):
    D = distribute(matrix())
    x = D.scatter(dense(23, 2))
    raises(spgrad.UnsupportedError, "x @ D", lambda: x.T @ D)
    raises(spgrad.UnsupportedError, "exp(0) is 1", lambda: torch.exp(D))
    raises(spgrad.UnsupportedError, "ShardedMatrix", lambda: torch.linalg.inv(D))
    raises(spgrad.UnsupportedError, "D[...]", lambda: D[:3])
    raises(spgrad.UnsupportedError, "transposed", lambda: D.T.softmax(1))
    raises(ValueError, "`dim` is 0", lambda: D.softmax(0))
    raises(ValueError, "another pattern", lambda: D + distribute(matrix()))
    raises(TypeError, "add_identity", lambda: D + 1)
    raises(ValueError, "`reduce` is", lambda: D.spmm(x, "median"))
    raises(ValueError, "one matrix", lambda: distribute(torch.stack([matrix(), matrix()])))
    assert f"shape=(23, 23), nse={D.nse}" in repr(D)


def checkpoint(rank, world, directory):
    """Four processes train and save; two, with other rows, load and go on as one would."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)
    start = f"file://{directory}/start{world}"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=world)
    A = matrix()
    target = dense(23, 2, seed=7)

    def train(values, layer, rows, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (layer(values) - rows).square().sum().backward()
            optimizer.step()

    D = distribute(A, partition="nse" if world == 4 else torch.arange(23) * 5 % world)
    values = torch.nn.Parameter(D.values())
    optimizer = torch.optim.Adam([values], lr=0.1)
    operands = values, lambda v: D.with_values(v) @ D.scatter(dense(23, 2)), own(D, target)
    if world == 4:
        train(*operands, optimizer, 2)
        state = {"values": values, "optimizer": optimizer.state_dict()}
        dcp.save(state, checkpoint_id=f"{directory}/saved")
    else:
        with torch.no_grad():
            values.zero_()
        train(*operands, optimizer, 1)
        state = {"values": values, "optimizer": optimizer.state_dict()}
        dcp.load(state, checkpoint_id=f"{directory}/saved")
        optimizer.load_state_dict(state["optimizer"])
        train(*operands, optimizer, 2)
        alone = torch.nn.Parameter(A.values().detach().clone())
        optimizer = torch.optim.Adam([alone], lr=0.1)
        train(alone, lambda v: spgrad.from_values(v, A) @ dense(23, 2), target, optimizer, 4)
        close(values.full_tensor().detach(), alone.detach())
    dist.destroy_process_group()
