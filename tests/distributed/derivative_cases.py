"""Derivatives where some processes have no rows, no elements, or none in columns of others.

A process that records another graph than the others does not send what they wait for.
"""

import torch
from group import F64, case, close, dense, entry_ids, matrix, own, second_order
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import spgrad
from spgrad import linalg
from spgrad.distributed import distribute, solve


def uneven(world):
    """Matrices and shares by which processes lack rows or elements, or have own columns alone."""
    A = matrix(8, 8, 0.5)
    yield A, torch.zeros(8, dtype=torch.int64)
    yield A, [0] * (world - 1) + [8]
    upper = torch.zeros(8, 8, dtype=F64)
    upper[: 8 // world] = A.to_dense()[: 8 // world]
    yield spgrad.from_dense(upper).to_sparse_csr(), "rows"
    yield spgrad.eye(8, dtype=F64).to_sparse_csr(), "rows"
    yield spgrad.zeros(8, 8, dtype=F64, layout=torch.sparse_csr), "rows"


def compare(A, D, function, operand, weight, rows):
    """Value and derivatives to second order of function(M, operand), against one process.

    `rows` gives the numbers of the rows of the operand and of the result.
    """
    of_x, of_y = rows
    values, x = A.values().detach().requires_grad_(), operand.clone().requires_grad_()
    wanted = second_order(
        function(spgrad.from_values(values, A), x), values, x, weight, operand.cos()
    )
    local, mine = D.local_values().detach().requires_grad_(), operand[of_x].requires_grad_()
    y = function(D.with_values(local), mine)
    found = second_order(y, local, mine, weight[of_y], operand.cos()[of_x])
    for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        close(ours, theirs[(of_y, entry_ids(D), of_x, entry_ids(D), of_x)[i]])


@case
def derivatives_of_processes_without_entries(rank, world):
    x, c = dense(8, 2), dense(8, 1, seed=5)[:, 0]
    for A, partition in uneven(world):
        D = distribute(A, partition=partition)
        columns, both = (D.column_ids, D.column_ids), (D.column_ids, D.row_ids)
        compare(A, D, lambda M, t: (M * t).sum(0), c, c.sin(), columns)
        compare(A, D, lambda M, t: torch.tanh(M / t).sum(0), c, c.sin(), columns)
        for reduce in ("mean", "amax", "amin"):

            def reduced(M, t, reduce=reduce):
                alone = isinstance(M, spgrad.SparseTensor)
                return spgrad.spmm(M, t, reduce) if alone else M.spmm(t, reduce)

            compare(A, D, reduced, x, x.sin(), both)
        compare(A, D, lambda M, t: torch.relu(M) @ t, x, x.sin(), both)


@case
def third_derivatives_of_a_product(rank, world):
    x, other = dense(8, 2), dense(8, 2, seed=3)
    for A, partition in uneven(world):
        D = distribute(A, partition=partition)

        def third(y, values, x, other):
            (g,) = torch.autograd.grad(y.pow(3).sum(), values, create_graph=True)
            (h,) = torch.autograd.grad(g.square().sum(), x, create_graph=True)
            return torch.autograd.grad((h * other).sum(), (values, x))

        values, whole = A.values().detach().requires_grad_(), x.clone().requires_grad_()
        wanted = third(spgrad.from_values(values, A) @ whole, values, whole, other)
        local, mine = D.local_values().detach().requires_grad_(), D.scatter(x).requires_grad_()
        found = third(D.with_values(local) @ mine, local, mine, own(D, other))
        for ours, theirs, at in zip(found, wanted, (entry_ids(D), D.column_ids), strict=True):
            close(ours / 1e3, theirs[at] / 1e3)


@case
def the_first_of_equal_elements_is_the_same(rank, world):
    """The gradient of an extremum goes to the first of equal terms of the whole row."""
    A = spgrad.from_dense(torch.ones(6, 6, dtype=F64)).to_sparse_csr()
    for partition in ("rows", torch.arange(6).flip(0) * world // 6):
        D = distribute(A, partition=partition)
        for reduce in ("amax", "amin"):
            whole = torch.ones(6, 2, dtype=F64, requires_grad=True)
            spgrad.spmm(A, whole, reduce).sum().backward()
            mine = torch.ones(len(D.column_ids), 2, dtype=F64, requires_grad=True)
            D.spmm(mine, reduce).sum().backward()
            close(mine.grad, whole.grad[D.column_ids])


@case
def derivatives_through_numbers_of_all_processes(rank, world):
    """Of second order, where each process scales by a sum that all of them have a part of."""
    A = matrix(9, 9, 0.5)
    for dtype in (F64, torch.complex128):
        B = spgrad.from_values(A.values().detach().to(dtype) * (1 + 1j * (dtype != F64)), A)
        D = distribute(B, partition="rows")
        for function in (
            lambda M: M / (M.sum() + 30),
            lambda M: M * M.norm(),
            lambda M: M * M.norm(3),
            lambda M: M * M.norm(float("inf")),
            lambda M: M / torch.linalg.norm(M, 1),
        ):
            values = B.values().detach().requires_grad_()
            local = D.local_values().detach().requires_grad_()
            wanted = gradients_to_second_order(function(spgrad.from_values(values, B)), values)
            found = gradients_to_second_order(function(D.with_values(local)), local)
            for ours, theirs in zip(found, wanted, strict=True):
                size = theirs.abs().max()
                close(ours / size, theirs[entry_ids(D)] / size)


def gradients_to_second_order(M, values):
    scaled = M.values() if isinstance(M, spgrad.SparseTensor) else M.local_values()
    (g,) = torch.autograd.grad(scaled.abs().pow(3).sum(), values, create_graph=True)
    return g, torch.autograd.grad(g.abs().square().sum(), values)[0]


@case
def second_derivatives_of_dtensors(rank, world):
    """Of the rows and of the values, as DTensors of each placement, and of a replicated number."""
    A = spgrad.set_diag(matrix(), 2.0).to_sparse_csr()
    weight = dense(23, 2, seed=4)
    for placement in (Shard(0), Replicate()):
        for partition in ("rows", torch.arange(23) * 5 % world):
            D = distribute(A, partition=partition)
            alone = [
                t.requires_grad_() for t in (A.values().detach(), dense(23, 2), dense(1, 1)[0, 0])
            ]
            y = spgrad.from_values(alone[0], A).to_dense() + alone[2] * torch.eye(23, dtype=F64)
            wanted = second_order_of(y @ alone[1], alone, weight)
            shared = [
                D.values().detach(),
                distribute_tensor(alone[1].detach(), D.mesh, [placement]),
                distribute_tensor(alone[2].detach(), D.mesh, [Replicate()]),
            ]
            shared = [t.requires_grad_() for t in shared]
            y = D.with_values(shared[0]).add_identity(shared[2]) @ shared[1]
            of_all = distribute_tensor(weight, D.mesh, [Shard(0)])
            found = second_order_of(y, shared, of_all)
            for ours, theirs in zip(found, wanted, strict=True):
                close(ours.full_tensor() / 100, theirs / 100)


def second_order_of(y, operands, weight):
    first = torch.autograd.grad((y.square() * weight).sum(), operands, create_graph=True)
    return *first, *torch.autograd.grad(sum(g.square().sum() for g in first), operands)


@case
def transforms_of_torch_func(rank, world):
    """grad, jvp, vmap and their compositions, of products, of their chains and of a solve."""
    A = spgrad.set_diag(matrix(6, 6, 0.5), 9.0).to_sparse_csr()
    D = distribute(A, partition="rows" if world < 4 else [0, 3, 1, 2])
    x, tangent = dense(6, 1), dense(A._nnz(), 1, seed=6)[:, 0]
    own_x, ids = D.scatter(x), entry_ids(D)
    solver = linalg.BiCGSTAB(rtol=1e-13)
    for alone, sharded in (
        (lambda M: M @ x, lambda M: M @ own_x),
        (lambda M: torch.softmax(M, 1) @ x, lambda M: M.softmax(1) @ own_x),
        (lambda M: (M * x[:, 0]).sum(0), lambda M: (M * own_x[:, 0]).sum(0)),
        (lambda M: linalg.solve(M, x, solver), lambda M: solve(M, own_x, solver)),
    ):

        def one(v, alone=alone):
            return alone(spgrad.from_values(v, A))

        def shared(v, sharded=sharded):
            return sharded(D.with_values(v))

        wanted = of_all_transforms(one, A.values(), tangent)
        found = of_all_transforms(shared, D.local_values(), tangent[ids])
        for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            theirs = theirs[:, D.row_ids] if i == 4 else theirs[D.row_ids if i < 1 else ids]
            close(ours / 1e4, theirs / 1e4)


def of_all_transforms(function, values, tangent):
    def loss(v):
        return function(v).square().sum()

    def gradient(v):
        return torch.func.grad(loss)(v)

    twice = torch.func.grad(lambda v: gradient(v).square().sum())(values)
    along = torch.func.jvp(gradient, (values,), (tangent,))[1]
    batch = torch.func.vmap(function)(torch.stack([values, 2 * values]))
    return torch.func.jvp(function, (values,), (tangent,))[1], gradient(values), twice, along, batch
