"""Meshes that differ between ranks, and functions of the user that fail on one rank alone."""

import contextlib
import datetime as dt

import torch
from group import F64, case, close, definite, dense, matrix, own, raises
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store

import spgrad
from spgrad import linalg
from spgrad.distributed import distribute, from_local, load, solve


@case
def meshes_differ_between_ranks(rank, world):
    """Every rank raises, and the next calls are right again."""
    if world == 1:
        return
    A, last = matrix(), world - 1
    back = DeviceMesh("cpu", list(range(world))[::-1])
    ends = DeviceMesh("cpu", [0, last])
    first, alone = DeviceMesh("cpu", [0]), DeviceMesh("cpu", [last])
    wrong = [back, first] if world == 2 else [back, ends, first]
    for mesh in wrong:
        for make in (distribute, from_local, lambda _, m: load("a", m)):
            given = mesh if rank == last else None
            texts = {first: f"on rank {last} of {world}, `mesh` is", back: "ascending ranks"}
            text = texts.get(mesh, f"on rank {last} and")
            raises(ValueError, text, lambda make=make, given=given: make(A, given))
            raises(ValueError, "`mesh` ", lambda make=make, given=given: make(A, given))
        D = distribute(A)
        close(D @ D.scatter(dense(23, 2)), own(D, A @ dense(23, 2)))
    raises(ValueError, f"`mesh` has the ranks {back.mesh.tolist()}", lambda: distribute(A, back))
    if rank == last:  # a mesh of its own, which is no part of the calls of the others
        close(distribute(A, alone).full().to_dense(), A.to_dense())
    raises(TypeError, f"on rank {last}", lambda: distribute(A, 3 if rank == last else None))
    raises(TypeError, "`mesh` is", lambda: distribute(A, 3))  # on all of them
    close(distribute(A).full().to_dense(), A.to_dense())
    torch.distributed.barrier()
    with timeout(5):
        if rank == last:
            close(distribute(A, alone).full().to_dense(), A.to_dense())
        else:
            text = f"rank {last} made a call whose mesh is cpu [{last}], until the timeout"
            raises(ValueError, text, lambda: distribute(A))
        torch.distributed.barrier()


@case
def calls_after_those_that_failed(rank, world):
    """No call is taken for one before it, after errors of meshes of some ranks."""
    if world == 1:
        return
    last = DeviceMesh("cpu", [world - 1])
    for _ in range(5):
        distribute(matrix())
        wrong = 3 if rank == world - 1 else None
        raises(TypeError, f"on rank {world - 1}", lambda wrong=wrong: distribute(matrix(), wrong))
        if rank == world - 1:
            distribute(matrix(), last)
    D = distribute(matrix())
    close(D @ D.scatter(dense(23, 2)), own(D, matrix() @ dense(23, 2)))


@case
def a_mesh_without_the_rank_twice(rank, world):
    """The first call was right where the mesh has the rank; the second is one with all ranks."""
    if world == 1:
        return
    first, last = DeviceMesh("cpu", [0]), world - 1
    text = f"without rank {last}"
    if rank == 0:
        close(distribute(matrix(), first).full().to_dense(), matrix().to_dense())
    else:
        raises(ValueError, f"without rank {rank}", lambda: distribute(matrix(), first))
    raises(ValueError, text, lambda: distribute(matrix(), first if rank == last else None))
    close(distribute(matrix()).full().to_dense(), matrix().to_dense())


@contextlib.contextmanager
def timeout(seconds):
    """How long a rank waits for the others of its mesh."""
    store = _get_default_store()
    before = store.timeout
    store.set_timeout(dt.timedelta(seconds=seconds))
    try:
        yield
    finally:
        store.set_timeout(before)


def failing(value):
    raise ArithmeticError("no such value")


@case
def functions_fail_on_one_rank(rank, world):
    D = distribute(matrix())
    where = f"on rank {world - 1} of {world}, `function`"
    for bad, kind in (
        (failing, ValueError),
        (lambda values: values.new_ones(1), ValueError),
        (lambda values: 3.0, TypeError),
        (lambda values: spgrad.eye(2), TypeError),
    ):
        raises(kind, where, lambda bad=bad: D.map(bad if rank == world - 1 else torch.exp))
    raises(ValueError, "raised ArithmeticError: no such value", lambda: D.map(failing))
    if world > 1:
        for bad in (lambda values: values.float(), lambda values: values.clone().requires_grad_()):
            raises(
                ValueError,
                f"on rank {world - 1} and",
                lambda bad=bad: D.map(bad if rank == world - 1 else torch.exp),
            )
        high = 1.0 if rank == world - 1 else 2.0
        raises(ValueError, "`max` is", lambda: torch.clamp(D, min=0.0, max=high))
    x = dense(23, 2)
    close(D.map(torch.square) @ D.scatter(x), own(D, (matrix() * matrix()) @ x))


@case
def preconditioners_fail_on_one_rank(rank, world):
    """At once, or in a later step of the solution or of the gradient."""
    A = definite()
    D, b = distribute(A), dense(23, 2)
    where = f"on rank {world - 1} of {world}, `preconditioner`"

    def solved(function, solver=linalg.CG):
        own_b = own(D, b).requires_grad_()
        solution = solve(D, own_b, solver(rtol=1e-12, preconditioner=function))
        (g,) = torch.autograd.grad(solution.sum(), own_b)
        return solution, g

    def after(steps, bad):
        calls = []

        def precondition(r):
            calls.append(1)
            return bad(r) if rank == world - 1 and len(calls) > steps else r / 5

        return precondition

    solution, g = solved(after(0, lambda r: r / 4))
    close(solution, own(D, torch.linalg.solve(A.to_dense(), b)))
    close(g, own(D, torch.linalg.solve(A.to_dense(), torch.ones_like(b))))
    for solver in (linalg.CG, linalg.BiCGSTAB, linalg.GMRES, linalg.MINRES):
        for steps in (0, 2, 25):
            raises(
                ValueError,
                f"{where} raised ArithmeticError",
                lambda solver=solver, steps=steps: solved(after(steps, failing), solver),
            )
    raises(TypeError, f"{where} gave", lambda: solved(after(1, lambda r: r[:-1])))
    raises(TypeError, f"{where} gave", lambda: solved(after(1, lambda r: None)))
    inner = linalg.CG(max_iter=1) if rank == world - 1 else linalg.CG()
    raises(spgrad.SpgradError, "rank", lambda: solve(D, own(D, b), linalg.CG(preconditioner=inner)))
    assert D.dtype == F64
