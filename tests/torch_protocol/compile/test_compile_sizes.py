"""Inductor's code for matrices whose sizes change: each graph finds the sizes that it needs."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from compiling import assert_same
from samples import made
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental import _config as config

import spgrad
from spgrad import support, testing

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours

LAYOUTS = (*support.ALL, "uncoalesced")
BATCH, HYBRID = {"batch": (2,)}, {"dense": (3,)}


def tensor(name, seed, batch=(), dense=()):
    """A tensor whose numbers of rows, columns and elements follow from `seed`."""
    options = {"seed": seed, "dense_dim": len(dense)}
    if name == "uncoalesced":
        name, options["coalesced"] = "coo", False
    return made(name, (*batch, 4 + 4 * seed, 10 - 2 * seed, *dense), **options)


def product(A, x):
    return A @ x


def scaled(A, x):
    return A.sin() * x.sum()


def flat(A, x):
    """The values in another shape: twice as many elements as blocks, or a row for each item."""
    vals = A.values()
    return spgrad.from_values(vals.reshape(-1).sin().reshape(vals.shape), A).sum() * x.sum()


def results(function, A, needs):
    """The result of a function of fresh leaves, and their gradients."""
    x = torch.ones(*A.shape[: A.dim() - 2 - A.dense_dim()], A.shape[1 - 2 - A.dense_dim()], 3)
    leaves = [t.clone().requires_grad_(n) for t, n in zip((A, x.to(A.dtype)), needs, strict=True)]
    y = function(*leaves)
    if any(needs):
        testing.dense_result(y).sin().sum().backward()
    return y, *(leaf.grad for leaf in leaves)


def check(function, name, needs, **shape):
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for seed in range(3):
        A = tensor(name, seed, **shape)
        for one, other in zip(*(results(f, A, needs) for f in (compiled, function)), strict=True):
            assert_same(one, other)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("needs", [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_product(name, needs):
    """The backward may take no array from whose size it could tell the rows, or the blocks."""
    check(product, name, needs)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_product_of_batches(name):
    check(product, name, (False, True), **BATCH)


@pytest.mark.parametrize("name", LAYOUTS)
def test_hybrid_tensors(name):
    check(scaled, name, (True, True), **HYBRID)


@pytest.mark.parametrize("name", ["csr", "bsc"])
def test_values_in_another_shape(name):
    check(flat, name, (True, True))


def check_sizes(name):
    """A graph takes the sizes of the matrix, of its values and of x, and no other."""
    taken = []

    def backend(graph, inputs):
        taken.extend(t for t in inputs if isinstance(t, torch.SymInt))
        return graph

    A = tensor(name, 2)
    compiled = torch.compile(product, fullgraph=True, dynamic=True, backend=backend)
    compiled(A, torch.ones(A.shape[1], 5, dtype=A.dtype))
    coordinates = A.pattern.indices[-1].shape[:-1]
    assert len(taken) == len((*A.shape, *A._vals.shape, *coordinates, 5))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_graph_takes_each_size_once(name):
    """The lengths of indices and pointers follow from the other sizes."""
    check_sizes(name)


@pytest.mark.parametrize("name", ["coo", "uncoalesced", "csc"])
def test_equal_sizes_that_torch_gives_a_symbol_each(name):
    """There are as many values as indices, although torch then gives them different symbols."""
    with config.patch(use_duck_shape=False):
        check_sizes(name)


@pytest.mark.parametrize("name", ["csr", "bsr"])
def test_two_processes_with_one_cache(name, tmp_path, monkeypatch):
    """The second process finds code of the first by comparing sizes."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(check, product, name, (False, True)).result()
