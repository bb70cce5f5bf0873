"""Arguments that are wrong in ways that once hung, or gave wrong numbers without an error."""

import numpy as np
import pytest
import torch
from argument_cases import only_last
from group import F64, case, close, dense, matrix, own, raises
from torch.distributed.tensor import DTensor, Replicate

import spgrad
from spgrad import linalg
from spgrad.distributed import create, distribute, from_local, save, solve


@case
def kinds_of_sizes_and_operands(rank, world):
    """Each is told by the name of the argument; NumPy's numbers are those of Python."""
    A = matrix()
    D = distribute(A)
    x, where = D.scatter(dense(23, 2)), f"on rank {world - 1} of {world}, "

    def one(bad, good):
        return only_last(rank, world, bad, good)

    sizes = [23 - (world - 1), *[1] * (world - 1)]
    for bad in (3, [0.5] * world, ["a"] * world):
        text = f"{where}`partition` is"
        raises(TypeError, text, lambda bad=bad: distribute(A, partition=one(bad, "nse")))
        text = f"{where}`columns` is"
        raises(TypeError, text, lambda bad=bad: distribute(A, columns=one(bad, sizes)))
        raises(TypeError, text, lambda bad=bad: from_local(D.to_local(), columns=one(bad, sizes)))
    for given in (np.array(sizes), [np.int64(size) for size in sizes]):
        E = distribute(A, partition=one(given, sizes), columns=one(given, sizes))
        close(E @ E.scatter(dense(23, 2)), own(E, A @ dense(23, 2)))
    for name, operands in (
        ("query", (one(3, x), x, x)),
        ("key", (x, one(None, x), x)),
        ("query", (one(x[0, 0], x), x, x)),
        ("value", (x, x, one(x.to("meta"), x))),
    ):
        raises(spgrad.SpgradError, f"{where}`{name}`", lambda o=operands: D.attention(*o))
    there = x.to("meta")
    for name, call in (
        ("x", lambda: D @ one(there, x)),
        ("other", lambda: D * one(there[:, 0], x[:, 0])),
        ("other", lambda: D / one(there[0, 0], x[0, 0])),
        ("values", lambda: D.with_values(one(D.local_values().to("meta"), D.local_values()))),
        ("b", lambda: solve(D, one(there, x), linalg.CG())),
    ):
        raises(ValueError, f"{where}`{name}` is on meta", call)
    close(D.sum(one(np.int64(1), 1)), own(D, A.to_dense().sum(1)))
    raises(ValueError, f"{where}`dim` is 5", lambda: D.sum(one(np.int64(5), 1)))
    text = f"{where}`return_info` is 3"
    raises(TypeError, text, lambda: solve(D, x, linalg.CG(), return_info=one(3, False)))
    replicated = DTensor.from_local(dense(23, 2), D.mesh, [Replicate()])
    raises(TypeError, "a DTensor", lambda: D.scatter(replicated))
    raises(TypeError, "a DTensor", lambda: D.gather(replicated))
    close((torch.tensor(2.0, dtype=F64) * D).full().to_dense(), 2 * A.to_dense())


@case
def gradients_required_on_one_rank(rank, world):
    """The backward of one rank alone would wait for the others."""
    if world == 1:
        return
    A = matrix()
    D = distribute(A)
    last, column = f"on rank {world - 1} and", D.scatter(dense(23, 1)[:, 0])

    def one(bad, good):
        return only_last(rank, world, bad, good)

    plain, leaf = D.local_values(), D.local_values().clone().requires_grad_()
    raises(ValueError, last, lambda: D.with_values(one(leaf, plain)))
    E = type(D)(one(leaf, plain), D.plan)
    for call in (
        lambda: E.sum(0),
        E.sum,
        E.norm,
        lambda: E.norm(float("inf")),
        lambda: torch.linalg.matrix_norm(E, 1),
        lambda: E.softmax(1),
        lambda: E.attention(*[column[:, None]] * 3),
        lambda: E * column,
        lambda: D * one(column.clone().requires_grad_(), column),
        lambda: D + E,
    ):
        raises(ValueError, last, call)

    def silent():
        with torch.set_grad_enabled(rank != world - 1):
            return type(D)(leaf, D.plan).sum(0)

    raises(ValueError, last, silent)
    raises(ValueError, last, lambda: D * one(D.map(torch.Tensor.float), D))


@case
def a_start_with_other_columns(rank, world):
    """Also where a rank has no rows, whose start has any shape."""
    A = (spgrad.eye(23, dtype=F64) * 2).to_sparse_csr()
    D = distribute(A, partition=[23, *[0] * (world - 1)])
    b, start = own(D, dense(23, 2)), own(D, dense(23, 3))
    raises(ValueError, "`x0` has shape", lambda: solve(D, b, linalg.CG(), x0=start))
    raises(ValueError, "`x0` has shape", lambda: solve(D, b, linalg.CG(), x0=start[:, 0]))
    close(solve(D, b, linalg.CG(rtol=1e-13), x0=start[:, :2]), b / 2)


@case
def matrices_that_differ_in_the_order_of_values(rank, world):
    if world == 1:
        return
    A = matrix()
    A = spgrad.from_values(torch.arange(float(A._nnz()), dtype=F64), A)
    B = spgrad.from_values(A.values().flip(0), A)  # the same sum, exactly
    raises(ValueError, "`A` is", lambda: distribute(only_last(rank, world, B, A)))


@case
def matrices_that_differ_in_one_value(rank, world):
    if world == 1:
        return
    A = matrix()
    for at in (0, -1):
        vals = A.values().detach().clone()
        vals[at] += 1
        other = spgrad.from_values(vals, A)
        raises(ValueError, "`A` is", lambda B=other: distribute(only_last(rank, world, B, A)))


@case
def the_first_process_fails_to_divide(rank, world):
    """The others do not wait for its rows."""
    A, plain = matrix(), create.parts_by_metis

    def failing(*_):
        raise ArithmeticError("no partition")

    create.parts_by_metis = failing
    try:
        call = lambda: distribute(A if rank == 0 else None, partition="metis")  # noqa: E731
        raises(TypeError, f"on rank 0 of {world}, an argument raised ArithmeticError", call)
    finally:
        create.parts_by_metis = plain


@case
def a_vector_of_one_row_and_one_column(rank, world):
    """(1, 1) is a vector of rows; one of columns has one dimension."""
    A = spgrad.from_dense(dense(world, world)).to_sparse_csr()
    D = distribute(A, partition="rows")
    r, c = dense(world, 1, seed=2), dense(world, 1, seed=3)[:, 0]
    close((D * r[D.row_ids]).full().to_dense(), A.to_dense() * r)
    close((D * c[D.column_ids]).full().to_dense(), A.to_dense() * c)
    wide = distribute(matrix())
    text = "(23,) for the own columns" if world == 1 else "for the own columns"
    raises(ValueError, text, lambda: wide * wide.scatter(dense(23, 1)).T)


@case
def results_with_a_lazy_sign_or_conjugate(rank, world):
    """Such a tensor has other numbers in memory than it shows."""
    y = dense(23, 2, torch.complex128)
    D = distribute(matrix(dtype=torch.complex128))
    close(D.gather(own(D, y).conj()), y.conj().resolve_conj())
    close(D.gather(own(D, y).conj().imag), -y.imag)


@case
def norms_of_matrices_without_elements(rank, world):
    for m, k in ((0, 3), (3, 0), (0, 0)):
        A = spgrad.zeros(m, k, dtype=F64, layout=torch.sparse_csr)
        D = distribute(A)
        for order in (1, -1, float("inf"), float("-inf")):
            if order < 0 and (k if abs(order) == 1 else m) == 0:
                raises(
                    ValueError, "`D` has shape", lambda o=order, D=D: torch.linalg.matrix_norm(D, o)
                )
            else:
                wanted = torch.linalg.matrix_norm(A.to_dense(), order)
                close(torch.linalg.matrix_norm(D, order).full_tensor(), wanted)
        close(D.norm(3).full_tensor(), torch.zeros((), dtype=F64))
        for order in (-1, float("inf"), float("-inf")):  # no element is the largest or smallest
            text = f"`D` has shape ({m}, {k}); a matrix with elements for {order} is accepted"
            raises(ValueError, text, lambda o=order, D=D: D.norm(o))


@case
def more_entries_than_an_int32_counts(rank, world):
    """The first entry of a row, where the processes before it have 2^31 entries."""
    A = matrix(index=torch.int32)
    plain = torch.Tensor.cumsum

    def beyond(t, dim):
        offset = torch.tensor([[0], [2**31]])
        return plain(t, dim) + offset if t.shape == (2, world) else plain(t, dim)

    torch.Tensor.cumsum = beyond
    try:
        D = from_local(A if rank == 0 else A[:0])
    finally:
        torch.Tensor.cumsum = plain
    if rank == 0:
        assert D.plan.entry_starts.dtype == torch.int64
        assert D.plan.entry_starts[0] >= 2**31


@case
def objects_and_other_matrices_on_one_rank(rank, world):
    """Each once left the ranks one call apart: what torch can't send, a second operand that Python
    asks after the first, and another matrix, or its transpose, whose rows travel otherwise."""
    A = matrix()
    D, E = distribute(A), distribute(A, partition="rows")
    x, where = dense(23, 2), f"on rank {world - 1} of {world}, "
    own_x = D.scatter(x)
    replicated = DTensor.from_local(x, D.mesh, [Replicate()])

    def one(bad, good):
        return only_last(rank, world, bad, good)

    for bad in (A, A.to_dense().to_sparse(), np.ones(23)):
        for call in (
            lambda bad=bad: one(bad, 2.0) * D,
            lambda bad=bad: one(bad, D) + D,
            lambda bad=bad: one(bad, D) - D,
            lambda bad=bad: D / 2.0 if rank != world - 1 else bad / D,
        ):
            raises(TypeError, where, call)
    for name, call in (("add", lambda: one(2.0, D) + D), ("sub", lambda: one(2.0, D) - D)):
        raises(TypeError, f"{where}`other` is a float", call)
        raises(TypeError, f"spgrad.distributed.ShardedMatrix.{name}: ", call)
    raises(
        TypeError, f"{where}`D` divides a float", lambda: 2.0 / D if rank == world - 1 else D / 2.0
    )
    if world > 1:
        for bad in (replicated, lambda: None, torch.float32, one):
            raises(ValueError, "`call` is", lambda bad=bad: D.spmm(own_x, one(bad, "mean")))
        assert E.plan.number > D.plan.number
        for call in (
            lambda M: M.full(),
            lambda M: M.map(torch.exp),
            lambda M: M.softmax(1),
            lambda M: M.sum(1),
            lambda M: save(M, "here"),
            lambda M: M @ DTensor.from_local(x, D.mesh, [Replicate()]),
        ):
            text = f"`D.plan` is number {E.plan.number} on rank {world - 1} and number"
            raises(ValueError, text, lambda call=call: call(one(E, D)))
        S = distribute(A, partition=torch.arange(23) * 5 % world)
        rows = S.scatter(x)
        raises(ValueError, f"{S.plan.number}, transposed on rank", lambda: one(S.T, S) @ rows)
    close(D @ own_x, own(D, A @ x))  # the group works on


@case
def arguments_that_torch_refuses_on_one_rank(rank, world):
    """The others wait for the next call of that rank; then all of them raise."""
    if world == 1:
        return
    D = distribute(matrix())
    x = D.scatter(dense(23, 2))
    for refused in (
        lambda: torch.linalg.norm(D, object()),
        lambda: torch.matmul(D, "two"),
        lambda: torch.mul(D, "two"),
    ):

        def ahead(refused=refused):
            if rank != world - 1:
                return torch.linalg.norm(D, 1)
            with pytest.raises(TypeError):
                refused()
            return D @ x

        raises(
            ValueError, f"`call` is ('matmul',) on rank {world - 1} and ('matrix_norm', 1)", ahead
        )
    close(D @ x, own(D, matrix() @ dense(23, 2)))
