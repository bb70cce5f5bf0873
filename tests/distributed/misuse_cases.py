"""Calls that once hung, raised a text of torch or Python, or were taken for right ones."""

import copy
import functools
import re

import numpy as np
import pytest
import scipy.sparse
import torch
from argument_cases import only_last
from group import F64, case, close, dense, entry_ids, matrix, own, raises, shared_folder
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import spgrad
from spgrad.distributed import distribute, dtensors, from_local, load, save, solve
from spgrad.linalg import CG


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@case
def errors_before_the_comparison(rank, world):
    """Python or NumPy raises on one rank, before it has told the others of its arguments."""
    A = matrix()
    D, x = distribute(A), dense(23, 2)
    rows, many = D.scatter(x), np.ones((2, 2))
    where = f"on rank {world - 1} of {world}, "

    def wrong(bad, good):
        return bad() if rank == world - 1 else good()

    arrays = many, scipy.sparse.eye_array(3, format="csr"), scipy.sparse.eye(3, format="csr")
    for array in arrays:
        for text, bad, good in (
            ("`reduce` is a", lambda t=array: D.spmm(rows, t), lambda: D.spmm(rows, "mean")),
            ("`p` is a", lambda t=array: D.norm(t), D.norm),
            ("`dim` is a", lambda t=array: D.sum(t), lambda: D.sum(1)),
            ("`dim` is a", lambda t=array: D.norm(2, t), lambda: D.norm(2, 1)),
            ("`dim` is a", lambda t=array: D.softmax(t), D.softmax),
        ):
            raises(spgrad.SpgradError, where + text, functools.partial(wrong, bad, good))
    for text, bad, good in (
        ("`other` is a nested tensor", lambda: D * nested(), lambda: D * 2.0),
        ("`other` is a nested tensor", lambda: nested() * D, lambda: 2.0 * D),
        ("`other` is a nested tensor", lambda: D / nested(), lambda: D / 2.0),
        ("missing 1 required positional argument: 'x'; matmul(x)", D.matmul, lambda: D @ rows),
        ("positional arguments but 3 were given", lambda: D.full(0, 1), D.full),
        ("got an unexpected keyword", lambda: D.sum(axis=1), lambda: D.sum(1)),
        ("missing 1 required positional argument: 'path'", lambda: save(D), lambda: save(D, "a")),
        ("missing 3 required positional arguments", solve, lambda: solve(D, rows, CG())),
        ("missing 1 required positional argument: 'A'", distribute, lambda: distribute(A)),
        ("missing 1 required positional argument: 'path'", load, lambda: load("a")),
        ("got an unexpected keyword", lambda: from_local(A, a=1), lambda: from_local(A)),
    ):
        raises(spgrad.SpgradError, text, functools.partial(wrong, bad, good))
    close(D @ rows, own(D, A @ x))  # the group works on
    close(distribute(A).full().to_dense(), A.to_dense())


@case
def the_same_words_on_every_rank(rank, world):
    """An argument is named as on the rank that has it, not by what torch says of it."""
    D = distribute(spgrad.set_diag(matrix(), 3.0).to_sparse_csr())
    x, where = D.scatter(dense(23, 2)), f"on rank {world - 1} of {world}, "

    def one(bad, good):
        return only_last(rank, world, bad, good)

    parts = distribute_tensor(torch.zeros(23, dtype=torch.int64), D.mesh, [Replicate()])
    for text, call in (
        ("`x` is a nested tensor", lambda: D @ one(nested(), x)),
        ("`values` is a nested tensor", lambda: D.with_values(one(nested(), D.local_values()))),
        ("`dim` is a dense tensor", lambda: D.sum(one(torch.ones(3), 1))),
        ("`dim` is a csr tensor", lambda: D.softmax(one(matrix(), 1))),
        ("`other` is 1000000000000000000000000000000;", lambda: D * one(10**30, 2)),
        ("`alpha` is 1j, and `D` has dtype float64", lambda: D.add_identity(one(1j, 1.0))),
        ("D.map(lambda values: values.to(torch.complex128))", lambda: D @ one(x * 1j, x)),
        ("`path` is an empty str", lambda: save(D, one("", "a"))),
        ("`partition` is a DTensor", lambda: distribute(matrix(), partition=one(parts, "nse"))),
        ("`local` is on meta", lambda: from_local(one(matrix().to("meta"), matrix()))),
        ("`function` gave a nested tensor", lambda: D.map(one(lambda v: nested(), torch.abs))),
        ("`function` gave a coo tensor", lambda: D.map(one(torch.Tensor.to_sparse, torch.abs))),
        ("`function` is on meta", lambda: D.map(one(lambda v: v.to("meta"), torch.abs))),
        ("`rank` is an ndarray", lambda: D.full(one(np.ones((2, 2)), None))),
        ("`rank` is True", lambda: D.full(one(True, None))),
    ):
        raises(spgrad.SpgradError, where, call)
        raises(spgrad.SpgradError, text, call)
    raises(ValueError, "`alpha` is 0.5", lambda: D.map(torch.Tensor.long).add_identity(0.5))


@case
def dimensions_that_a_matrix_lacks(rank, world):
    D = distribute(matrix())
    for dim in ((0, 0), ("a", "b"), (1,), (0, 3), 1.0):
        for call in (lambda dim=dim: D.norm(2, dim), lambda dim=dim: D.sum(dim)):
            raises(spgrad.SpgradError, f"`dim` is {dim}; 0, 1 and None are accepted", call)
    for dim in ((0, 3), (0, 0), ()):
        raises(ValueError, "`dim` is", lambda d=dim: torch.linalg.matrix_norm(D, 1, d))
    close(D.norm(2, (0, -1)).full_tensor(), matrix().to_dense().norm())
    empty = distribute(spgrad.zeros(0, 4, dtype=F64, layout=torch.sparse_csr))
    for order in (float("inf"), -1, float("-inf")):  # of no rows, each of which has 4 elements
        close(empty.norm(order, 1), torch.zeros(0, dtype=F64))


@case
def numbers_that_differ_between_ranks(rank, world):
    D = distribute(spgrad.set_diag(matrix(), 3.0).to_sparse_csr())
    three = only_last(rank, world, 3, 2)
    for text, call in (
        ("`other` is the number 3.0 of float64 on rank", lambda: D * three),
        ("`other` is the number 3.0 of float64 on rank", lambda: three * D),
        ("`other` is the number 3.0 of float64 on rank", lambda: D / three),
        ("`alpha` is the number 3.0 of float64 on rank", lambda: D.add_identity(three)),
    ):
        if world > 1:
            raises(ValueError, text, call)
    both = only_last(rank, world, 2.0, 2)
    close((D * both).full().to_dense(), 2 * D.full().to_dense())
    nan = float("nan")
    assert (D * nan).local_values().isnan().all()


@case
def dtensors_of_other_shares_and_meshes(rank, world):
    """A DTensor may have shards of any size, or be on another mesh, if `run_check` is False."""
    A = matrix()
    D, X = distribute(A), dense(23, 2)
    uneven = X[:20] if rank == 0 else X[20 : 20 + 3 * (rank == 1)]
    x = DTensor.from_local(uneven, D.mesh, [Shard(0)], shape=X.shape, stride=X.stride())
    y = own(D, X)
    text = "and in this process"
    if world > 1:
        for call in (
            lambda: D @ x,
            lambda: D.spmm(x, "mean"),
            lambda: D.attention(y, x, x),
            lambda: D * x[:, 0],
        ):
            raises(ValueError, text, call)
    short = DTensor.from_local(X[:-1], D.mesh, [Replicate()], shape=X.shape, stride=X.stride())
    raises(ValueError, f"{text} (22, 2)", lambda: D @ short)
    values = A.values()
    square = torch.distributed.init_device_mesh("cpu", (world, 1))
    for bad in (
        distribute_tensor(values, square, [Replicate(), Replicate()]),
        DTensor.from_local(values, D.mesh, [Partial()]),
        DTensor.from_local(values[1:], D.mesh, [Replicate()], shape=values.shape, stride=(1,)),
    ):
        raises(ValueError, "`values` ", lambda bad=bad: D.with_values(bad))
    replicated = distribute_tensor(values.clone(), D.mesh, [Replicate()]).requires_grad_()
    E = D.with_values(replicated)
    close(E.full().to_dense(), A.to_dense())
    (E @ D.scatter(X)).square().sum().backward()
    leaf = D.local_values().clone().requires_grad_()
    (D.with_values(leaf) @ D.scatter(X)).square().sum().backward()
    assert replicated.grad.placements == (Replicate(),)
    close(replicated.grad.to_local()[entry_ids(D)], leaf.grad)


@case
def second_derivatives_where_a_rank_has_no_row(rank, world):
    """The gradient of the single row of a DTensor is replicated, where torch lost its graph."""
    for m, k in ((1, 5), (5, 1), (1, 1), (3, 2)):
        A, X = dense(m, k, seed=3), dense(k, 2)
        expected = A.clone().requires_grad_(), X.clone().requires_grad_()
        D = distribute(spgrad.from_dense(A).to_sparse_csr(), partition="rows")
        for placement in (Replicate(), Shard(0)):
            x = distribute_tensor(X, D.mesh, [placement]).requires_grad_()
            values = torch.nn.Parameter(D.values())

            def derivatives(y, operands):
                first = torch.autograd.grad(y.square().sum(), operands, create_graph=True)
                return torch.autograd.grad(sum(g.square().sum() for g in first), operands)

            found = derivatives(D.with_values(values) @ x, (values, x))
            wanted = derivatives(expected[0] @ expected[1], expected)
            close(found[0].full_tensor(), wanted[0].flatten(), wanted[0].flatten().abs() + 100)
            close(found[1].full_tensor(), wanted[1], wanted[1].abs() + 100)


@case
def operators_and_attributes_that_it_lacks(rank, world):
    """Each error says what to call."""
    D, array = distribute(matrix()), np.eye(23)
    x = D.scatter(dense(23, 2))
    for text, call in (
        ("x @ D needs x in columns", lambda: array @ D),
        ("x @ D needs x in columns", lambda: scipy.sparse.csr_matrix(array) @ D),
        ("D < other", lambda: D < 1),
        ("D >= other", lambda: array <= D),
        ("D == other", lambda: D == 1),
        ("D == other", lambda: D == distribute(matrix())),
        ("D == other", lambda: D != x),
        ("D // other", lambda: D // 2),
        ("other ** D", lambda: 2**D),
        ("D & other", lambda: D & D),
        ("~D", lambda: ~D),
        ("D[...] = other", lambda: D.__setitem__(0, 1.0)),
        ("`plan` is a csr tensor", lambda: type(D)(x, matrix())),
    ):
        raises(spgrad.SpgradError, text, call)
    for name, form in (
        ("mm", "Use D @ x."),
        ("mul", "Use D * other."),
        ("relu", "Use torch.relu(D)."),
        ("float", "Use D.map(torch.Tensor.float)."),
        ("to", "Use D.map(lambda values: values.to(dtype))."),
        ("size", "Use D.shape."),
        ("cumsum", "use their 'cumsum'"),
    ):
        with pytest.raises(AttributeError, match=re.escape(form)):
            getattr(D, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'\.$"):
        D.nothing  # noqa: B018
    same = D
    assert (D == same, D != same, D in (1.0, D)[1:], D == "D") == (True, False, True, False)
    assert len({D, D}) == 1


@case
def a_copy_has_the_same_values(rank, world):
    D = distribute(matrix())
    copied = copy.copy(D)
    assert copied is not D
    assert copied.local_values() is D.local_values()
    assert copied.plan is D.plan


@case
def index_tensors_of_another_dtype_on_one_rank(rank, world):
    """The matrix is the same."""
    A, X = matrix(), dense(23, 2)
    kinds = [matrix(index=torch.int32), A]
    folder = shared_folder()
    for given in (kinds, kinds[::-1]):
        for make in (distribute, lambda M: from_local(M if rank == 0 else M[:0])):
            D = make(only_last(rank, world, *given))
            x = D.scatter(X)
            close(D.full().to_dense(), A.to_dense())
            close(D @ x, own(D, A @ X))
            close(D.T @ own(D, X), (A.T @ X)[D.column_ids])
            close(D.spmm(x, "amax"), own(D, spgrad.spmm(A, X, "amax")))
            close(D.values().full_tensor(), A.values())
            save(D, folder)
            close(load(folder).full().to_dense(), A.to_dense())


@case
def as_many_entries_on_one_rank_as_an_int32_does_not_count(rank, world):
    """The other ranks receive its columns as they are sent."""
    plain = dtensors.index_dtype
    D = distribute(matrix())
    dtensors.index_dtype = only_last(rank, world, lambda *_: torch.int64, plain)
    try:
        close(D.full().to_dense(), matrix().to_dense())
    finally:
        dtensors.index_dtype = plain


@case
def what_is_found_in_inference_mode_is_kept_for_training(rank, world):
    D, X = distribute(matrix(), partition="metis"), dense(23, 2)
    x, replicated = D.scatter(X), distribute_tensor(X, D.mesh, [Shard(0)])
    calls = (
        lambda x, _: D.spmm(x, "mean"),
        lambda x, _: D.attention(x, x, x),
        lambda _, x: D @ x,
    )
    with torch.inference_mode():
        values = D.values()
        for call in calls:
            call(x, replicated)
    assert not values.to_local().requires_grad
    for call in calls:
        own_x, all_x = x.clone().requires_grad_(), replicated.clone().requires_grad_()
        call(own_x, all_x).sum().backward()
    torch.nn.Parameter(D.values()).sum().backward()
