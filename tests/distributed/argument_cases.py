"""Checkpoints of values, and arguments that are wrong on one rank or on all."""

import copy
import faulthandler
import pickle
import zlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from group import (
    F64,
    LIMIT,
    case,
    close,
    dense,
    matrix,
    own,
    raises,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import spgrad
from spgrad import linalg
from spgrad.distributed import agreement, distribute, from_local, save, solve


def only_last(rank, world, bad, good):
    """An argument that is wrong on one rank."""
    return bad if rank == world - 1 else good


@case
def wrong_beside_a_checksum_of_zero(rank, world):
    """No checksum of arguments is taken for the mark of an error."""
    facts = {"x": "00010001111000110111010000011011000000000000"}
    assert zlib.crc32(repr(facts).encode()) == 0

    def check():
        if rank == world - 1:
            raise spgrad.StateError("wrong here")
        return facts

    group, last = dist.group.WORLD, f"on rank {world - 1} of {world}, wrong here"
    raises(RuntimeError, last, lambda: agreement.agree(group, check, "cpu"))


@case
def another_call_on_one_rank(rank, world):
    """All that the other ranks compare is equal there, and it compares more."""
    if world == 1:
        return
    facts = {"call": ("sum",)}
    names = " | ".join(["call"] * (world - 1) + ["call, alpha"])
    given = only_last(rank, world, {**facts, "alpha": None}, facts)
    text = f"the ranks made different calls ({names}); the same call is accepted"
    raises(ValueError, text, lambda: agreement.agree(dist.group.WORLD, lambda: given, "cpu"))


@case
def wrong_on_one_rank(rank, world):
    A = matrix()
    D = distribute(A)
    x = D.scatter(dense(23, 2))
    last = f"on rank {world - 1}"

    def one(bad, good):
        return only_last(rank, world, bad, good)

    where = f"{last} of {world}, "  # and not that ranks differ, which is "on rank 1 and ..."
    raises(ValueError, where, lambda: D @ one(x[:-1], x))
    raises(ValueError, where, lambda: D @ one(x.float(), x))
    raises(TypeError, where, lambda: D @ one(A, x))
    raises(ValueError, where, lambda: D @ one(x[:, :, None], x))
    for bad, text in (
        ("best", "is 'best'"),
        ([22] * world, f"is {[22] * world}"),
        (torch.arange(23) % world + 1, f"has processes from 1 to {world}; 0 to {world - 1} are"),
        (torch.arange(23) % world - 1, f"has processes from -1 to {world - 2}; 0 to"),
        (torch.ones(3).long(), "has shape (3,)"),
    ):
        text = f"{where}`partition` {text}"
        raises(ValueError, text, lambda bad=bad: distribute(A, partition=one(bad, "nse")))
    raises(TypeError, where, lambda: distribute(one(A.to_dense(), A)))
    raises(ValueError, "on the ranks", lambda: distribute(None))
    raises(ValueError, where, lambda: D.with_values(one(torch.ones(1), D.local_values())))
    raises(TypeError, where, lambda: from_local(one(3, D.to_local())))
    raises(ValueError, where, lambda: D * one(torch.ones(2, 2), x[:, :1]))
    raises(ValueError, "lack", lambda: D.add_identity(1.0))
    raises(TypeError, where, lambda: D * one("two", 2.0))
    raises(TypeError, where, lambda: D + one(1, D))
    raises(ValueError, where, lambda: D - one(distribute(A), D))
    raises(ValueError, where, lambda: D.softmax(one(0, 1)))
    raises(ValueError, where, lambda: D.scatter(one(dense(22, 2), dense(23, 2))))
    raises(TypeError, where, lambda: D.scatter(one(None, dense(23, 2))))
    raises(TypeError, where, lambda: D.attention(one(A, own(D, dense(23, 2))), x, x))
    raises(ValueError, where, lambda: D.attention(one(x.float(), own(D, dense(23, 2))), x, x))
    raises(ValueError, where, lambda: D.attention(one(x[:-1], own(D, dense(23, 2))), x, x))
    raises(ValueError, where, lambda: D.attention(one(x[:, :1], own(D, dense(23, 2))), x, x))
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
        raises(ValueError, "`partition` is", lambda: distribute(A, partition=one("rows", "nse")))
        raises(ValueError, "`columns` is", lambda: distribute(A, columns=one(None, sizes(world))))
        raises(ValueError, "`A` is", lambda: distribute(one(2 * A, A)))
        raises(ValueError, "`A` is", lambda: distribute(one(A.T.to_sparse_csr(), A)))
        raises(ValueError, f"{last} and", lambda: D.gather(one(x.float(), x)))
        raises(ValueError, f"{last} and", lambda: D.sum(one(1, 0)))
        raises(ValueError, f"{last} and", lambda: D.full(one(None, 0)))


def sizes(world):
    """Other shares of 23 columns than the equal ones."""
    return [23 - (world - 1), *[1] * (world - 1)]


@case
def kinds_differ_between_ranks(rank, world):
    """Each argument is right by itself, but one rank has another kind, shape or dtype."""
    if world == 1:
        return
    A = spgrad.set_diag(matrix(), 3.0).to_sparse_csr()
    D = distribute(A)
    x = D.scatter(dense(23, 2))
    rows, columns = own(D, dense(23, 1)), x[:, 0].contiguous()
    last = f"on rank {world - 1} and"

    def one(bad, good):
        return only_last(rank, world, bad, good)

    number = torch.tensor(2.0, dtype=F64)
    for bad, good in (
        (2.0, rows),
        (columns, 2.0),
        (rows, columns),
        (columns, number),
        (D, 2.0),
        (D, columns),
        (2j, 2.0),
        (rows.float(), rows),
        (columns.clone().requires_grad_(), columns),
        (number.clone().requires_grad_(), number),
        (D.sum(), columns),
    ):
        raises(ValueError, last, lambda bad=bad, good=good: D * one(bad, good))
        if not isinstance(bad, type(D)):
            raises(ValueError, last, lambda bad=bad, good=good: D / one(bad, good))
    raises(ValueError, last, lambda: D + one(D.map(torch.Tensor.float), D))
    raises(ValueError, "`alpha` is 1j", lambda: D.add_identity(one(1j, 1.0)))
    raises(TypeError, "on rank", lambda: D.add_identity(one(torch.ones(3), 1.0)))
    raises(ValueError, last, lambda: D.with_values(one(D.local_values().float(), D.local_values())))
    wide, wide_x = one((D.map(torch.Tensor.float), x.float()), (D, x))
    raises(ValueError, last, lambda: wide @ wide_x)
    raises(ValueError, last, lambda: D.attention(rows.expand(-1, 2), x, one(x[:, :1], x)))
    b = own(D, dense(23, 1))
    for bad in (linalg.CG(rtol=1e-3), linalg.CG(max_iter=3), linalg.MINRES()):
        raises(ValueError, last, lambda bad=bad: solve(D, b, one(bad, linalg.CG())))
    raises(ValueError, last, lambda: solve(D, b, linalg.CG(), x0=one(b, None)))
    raises(ValueError, last, lambda: save(D, one("here", "there")))
    for call in (lambda D: save(D, "here"), lambda D: solve(D, b, linalg.CG())):
        raises(TypeError, "a ShardedMatrix is accepted", lambda call=call: call(one(A, D)))
    raises(ValueError, "`call` is", lambda: D.sum(0) if rank else D.full(0))
    for bad in (world, -1, "0"):
        raises(ValueError, "None for all ranks", lambda bad=bad: D.full(rank=bad))
    close(D @ x, own(D, A @ dense(23, 2)))  # the group works on


@case
def meshes(rank, world):
    """A mesh that one rank alone has wrong, and a DTensor on another mesh."""
    A = matrix()
    square = dist.init_device_mesh("cpu", (world, 1), mesh_dim_names=("rows", "one"))
    for call in (
        lambda mesh: distribute(A, mesh),
        lambda mesh: from_local(A, mesh),
    ):
        raises(
            ValueError, "2 dimensions", lambda call=call: call(only_last(rank, world, square, None))
        )
        raises(TypeError, "`mesh` is", lambda call=call: call(only_last(rank, world, 3, None)))
    D = distribute(A)
    wrong = DTensor.from_local(dense(23, 2), square["one"], [Replicate()])
    good = DTensor.from_local(dense(23, 2), D.mesh, [Replicate()])
    where = f"on rank {world - 1} of {world}, `x` "
    if world > 1:
        raises(ValueError, where, lambda: D @ only_last(rank, world, wrong, good))
    raises(
        ValueError, "placement", lambda: D @ DTensor.from_local(dense(23, 2), D.mesh, [Shard(1)])
    )
    whole = distribute(spgrad.set_diag(A, 1.0).to_sparse_csr())
    one = torch.ones((), dtype=F64)
    for number in (
        DTensor.from_local(torch.ones(2, dtype=F64), D.mesh, [Replicate()]),
        DTensor.from_local(one, square["one"], [Replicate()]),
        DTensor.from_local(one, D.mesh, [Partial()]),
    ):
        if world > 1 or number.dim() or not number.placements[0].is_replicate():
            raises(ValueError, "a replicated number", lambda n=number: whole.add_identity(n))
    first = DeviceMesh("cpu", [0])
    if rank:
        raises(ValueError, f"without rank {rank}", lambda: distribute(A, first))
    else:
        close(distribute(A, first).full().to_dense(), A.to_dense())


@case
def copies(rank, world):
    """A copy of a module, as of an average, has a matrix with values of its own."""
    D = distribute(matrix())
    module = torch.nn.Module()
    module.D = D.with_values(D.local_values().clone().requires_grad_())
    module.again = module.D
    copied = copy.deepcopy(module)
    assert copied.D is copied.again
    assert copied.D.plan is D.plan
    with torch.no_grad():
        module.D.local_values().zero_()
    x = dense(23, 2)
    y = copied.D @ D.scatter(x)
    close(y, own(D, matrix() @ x))
    y.sum().backward()
    close(copied.D.local_values().grad, x.sum(1)[D.plan.entry_columns])
    assert module.D.local_values().grad is None
    raises(spgrad.UnsupportedError, "spgrad.distributed.save", lambda: pickle.dumps(D))


@case
def functions_of_one_process(rank, world):
    """They name the function for sharded matrices, or say that there is none."""
    D = distribute(matrix())
    x = D.scatter(dense(23, 2))
    for call, text in (
        (lambda: linalg.solve(D, x), "Call spgrad.distributed.solve(D, b, solver)"),
        (lambda: linalg.solve(D, x, linalg.CG()), "Call spgrad.distributed.solve"),
        (lambda: linalg.lstsq(D, x), "no form"),
        (lambda: linalg.eigsh(D), "no form"),
        (lambda: linalg.lobpcg(D), "no form"),
        (lambda: linalg.logdet(D), "no form"),
        (lambda: spgrad.graph.degree(D), "Call D.map(torch.ones_like).sum(1)"),
        (lambda: spgrad.graph.laplacian(D), "no form"),
        (lambda: spgrad.spmm(D, x, "mean"), "Call D.spmm(x, reduce)"),
        (lambda: spgrad.softmax(D, 1), "Call D.softmax(1)"),
        (lambda: spgrad.scaled_dot_product_attention(x, x, x, D), "Call D.attention"),
        (lambda: spgrad.diagonal(D), "Call D.diagonal()"),
        (lambda: spgrad.io.save(D, "a.npz"), "Call spgrad.distributed.save"),
        (lambda: spgrad.matmul(D, x), "Call D @ x"),
        (lambda: spgrad.mul(D, 2.0), "Call D * other"),
    ):
        raises(TypeError, text, call)
    raises(spgrad.UnsupportedError, "distributed.solve(D, b", lambda: torch.linalg.solve(D, x))
    close(D.map(torch.ones_like).sum(1), own(D, matrix().to_dense().ne(0).sum(1).to(F64)))


@case
def refusals(rank, world):
    D = distribute(matrix())
    x = D.scatter(dense(23, 2))
    wide = distribute(matrix(23, 20))
    raises(
        ValueError,
        "a square matrix for METIS",
        lambda: distribute(matrix(23, 20), partition="metis"),
    )
    raises(ValueError, "other shares of columns", lambda: wide.add_identity(1.0))
    b = own(wide, dense(23, 1))
    raises(ValueError, "a square matrix with equal shares", lambda: solve(wide, b, linalg.CG()))
    raises(TypeError, "a ShardedMatrix is accepted", lambda: save(matrix(), "here"))
    raises(spgrad.UnsupportedError, "x @ D", lambda: x.T @ D)
    raises(spgrad.UnsupportedError, "exp(0) is 1", lambda: torch.exp(D))
    raises(spgrad.UnsupportedError, "ShardedMatrix", lambda: torch.linalg.inv(D))
    raises(spgrad.UnsupportedError, "D[...]", lambda: D[:3])
    raises(spgrad.UnsupportedError, "transposed", lambda: D.T.softmax(1))
    raises(ValueError, "`dim` is 0", lambda: D.softmax(0))
    raises(
        ValueError, "`function` has shape (1,)", lambda: D.map(lambda values: values.new_ones(1))
    )
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
