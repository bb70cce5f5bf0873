"""Linear systems."""

import torch
from group import F64, case, close, definite, dense, entry_ids, matrix, own, raises, second_order
from torch.distributed.tensor import Shard, distribute_tensor

import spgrad
from spgrad import linalg
from spgrad.distributed import distribute, solve

SOLVERS = {
    "CG": (linalg.CG(rtol=1e-13), definite),
    "CG with IC0": (linalg.CG(rtol=1e-13, preconditioner=linalg.IC0()), definite),
    "MINRES": (linalg.MINRES(rtol=1e-13), definite),
    "BiCGSTAB": (
        linalg.BiCGSTAB(rtol=1e-13),
        lambda dtype: spgrad.set_diag(matrix(dtype=dtype), 9.0),
    ),
    "GMRES": (
        linalg.GMRES(rtol=1e-13, preconditioner=linalg.Jacobi()),
        lambda dtype: spgrad.set_diag(matrix(dtype=dtype), 9.0),
    ),
    "LSMR": (linalg.LSMR(rtol=1e-13), lambda dtype: spgrad.set_diag(matrix(dtype=dtype), 9.0)),
}


@case
def solvers(rank, world):
    for dtype in (F64, torch.complex128):
        for name, (solver, make) in SOLVERS.items():
            if dtype.is_complex and name not in ("CG", "BiCGSTAB"):
                continue
            A = make(dtype).to_sparse_csr()
            partition = "nse" if dtype == F64 else torch.arange(23) * 5 % world
            check_solve(A, distribute(A, partition=partition), solver, dtype)


def check_solve(A, D, solver, dtype):
    """Value and gradients of both orders against dense solves, also of the transpose."""
    for transposed in (False, True):
        whole, weight, other = (dense(23, 2, dtype, s) for s in (1, 2, 3))
        values = A.values().detach().requires_grad_()
        full = spgrad.from_values(values, A).to_dense()
        b = whole.clone().requires_grad_()
        wanted = second_order(
            torch.linalg.solve(full.T if transposed else full, b), values, b, weight, other
        )
        local = D.local_values().detach().requires_grad_()
        E = D.with_values(local)
        E = E.T if transposed else E
        b = own(E, whole).requires_grad_()
        x, info = solve(E, b, solver, return_info=True)
        assert info.reason == "converged"
        found = second_order(x, local, b, own(E, weight), own(E, other))
        ids = entry_ids(D)
        for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            at = (E.row_ids, ids, E.row_ids, ids, E.row_ids)[i]
            torch.testing.assert_close(ours, theirs[at], rtol=1e-7, atol=1e-7)


@case
def solves_start_and_end(rank, world):
    A = definite()
    D = distribute(A)
    b = own(D, dense(23, 1)[:, 0])
    x = solve(D, b, linalg.CG(rtol=1e-12))
    assert x.shape == b.shape
    again, info = solve(D, b, linalg.CG(rtol=1e-10), x0=x, return_info=True)
    assert info.iterations == 0
    close(again, x)
    mesh = D.mesh
    whole = distribute_tensor(dense(23, 2), mesh, [Shard(0)])
    found = solve(D, whole, linalg.CG(rtol=1e-13)).full_tensor()
    torch.testing.assert_close(found, torch.linalg.solve(A.to_dense(), dense(23, 2)))
    raises(spgrad.ConvergenceError, "after 1 steps", lambda: solve(D, b, linalg.CG(max_iter=1)))
    raises(TypeError, "`solver` is", lambda: solve(D, b, linalg.SuperLU()))
