"""Linear systems."""

import dataclasses

import torch
from group import F64, case, close, definite, dense, entry_ids, matrix, own, raises, second_order
from torch.distributed.tensor import Shard, distribute_tensor

import spgrad
from spgrad import linalg
from spgrad.distributed import distribute, solve


def dominant(dtype):
    """A matrix that is not symmetric, with a large diagonal."""
    return spgrad.set_diag(matrix(dtype=dtype), 9.0)


SOLVERS = {
    "CG": (linalg.CG(), definite),
    "CG with IC0": (linalg.CG(preconditioner=linalg.IC0()), definite),
    "MINRES": (linalg.MINRES(), definite),
    "BiCGSTAB": (linalg.BiCGSTAB(), dominant),
    "GMRES": (linalg.GMRES(preconditioner=linalg.Jacobi()), dominant),
    "LSMR": (linalg.LSMR(), dominant),
}

RTOL = {F64: 1e-13, torch.complex128: 1e-13, torch.float32: 1e-7}
"""Of the solvers: a tenth of the error that a sum of this dtype may have."""


@case
def solvers(rank, world):
    """All of them in float64. Two processes compare more of them in the other types than four."""
    others = {torch.complex128: ("CG", "BiCGSTAB"), torch.float32: SOLVERS}
    if world == 4:
        others = {torch.complex128: ("BiCGSTAB",), torch.float32: ("CG with IC0",)}
    for dtype, rtol in RTOL.items():
        for name, (solver, make) in SOLVERS.items():
            if name not in others.get(dtype, SOLVERS):
                continue
            A = make(dtype).to_sparse_csr()
            partition = torch.arange(23) * 5 % world if dtype.is_complex else "nse"
            D = distribute(A, partition=partition)
            check_solve(A, D, dataclasses.replace(solver, rtol=rtol), dtype)


def check_solve(A, D, solver, dtype):
    """Value and gradients of both orders against solves in one process, also of the transpose."""
    for transposed in (False, True):
        whole, weight, other = (dense(23, 2, dtype, s) for s in (1, 2, 3))
        values = A.values().detach().requires_grad_()
        B = spgrad.from_values(values, A)
        b = whole.clone().requires_grad_()
        x = linalg.solve(B.mT if transposed else B, b, solver)
        wanted = second_order(x, values, b, weight, other)
        sums = magnitudes(A, transposed, whole, weight, other)
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
            close(ours, theirs[at], sums[i][at])


def magnitudes(A, transposed, b, weight, other):
    """The sums of the magnitudes of the terms of all that `check_solve` compares.

    With B = |A^-1|, derivatives of B (I - E B)^-1 |b| at E = 0 are those of A^-1 b in the values of
    A and in b, but all of their terms are positive.
    """
    B = torch.linalg.inv(A.to_dense()).abs().double()
    B = B.T if transposed else B
    zeros = torch.zeros(A._nnz(), dtype=F64, requires_grad=True)
    E = spgrad.from_values(zeros, A).to_dense()
    b, weight, other = (t.abs().double() for t in (b, weight, other))
    step = torch.eye(len(B), dtype=F64) - (E.T if transposed else E) @ B
    x = B @ torch.linalg.solve(step, b.requires_grad_())
    return second_order(x, zeros, b, weight, other)


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
    close(found, torch.linalg.solve(A.to_dense(), dense(23, 2)))
    raises(spgrad.ConvergenceError, "after 1 steps", lambda: solve(D, b, linalg.CG(max_iter=1)))
    raises(TypeError, "`solver` is", lambda: solve(D, b, linalg.SuperLU()))


@case
def solves_without_columns(rank, world):
    """The solution has none either, and the gradient of the values is zero."""
    for solver, make in SOLVERS.values():
        A = make(F64).to_sparse_csr()
        D = distribute(A)
        leaf = D.local_values().detach().requires_grad_()
        b = own(D, dense(23, 0)).requires_grad_()
        x, info = solve(D.with_values(leaf), b, solver, return_info=True)
        assert x.shape == b.shape
        assert info.residuals.shape == (0,)
        x.sum().backward()
        close(leaf.grad, torch.zeros_like(leaf))


@case
def a_right_side_that_is_not_finite(rank, world):
    D = distribute(definite())
    b = own(D, dense(D.shape[0], 1))
    b = b / 0 if rank == world - 1 else b
    raises(ValueError, "`b` has an element that is not finite", lambda: solve(D, b, linalg.CG()))
    x0, b = b, own(D, dense(D.shape[0], 1))
    says = "`x0` has an element that is not finite"
    raises(ValueError, says, lambda: solve(D, b, linalg.CG(), x0=x0))
