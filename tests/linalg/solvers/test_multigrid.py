"""Algebraic multigrid as a preconditioner."""

import pytest
import torch
from samples import poisson

import spgrad
from spgrad import linalg
from spgrad.linalg.preconditioners import amg

D = torch.float64


@pytest.mark.parametrize(
    ("method", "most"), [("smoothed aggregation", 14), ("ruge stuben", 9)], ids=["SA", "RS"]
)
def test_multigrid(method, most):
    pytest.importorskip("pyamg")
    m = 32
    eye, T = torch.eye(m, dtype=D), poisson(m)
    M = spgrad.from_dense(torch.kron(T, eye) + torch.kron(eye, T))
    b = torch.ones(m * m, 2, dtype=D)
    x, plain = linalg.solve(M, b, linalg.CG(), return_info=True)
    solver = linalg.CG(preconditioner=linalg.AMG(method))
    y, info = linalg.solve(M, b, solver, return_info=True)
    assert info.iterations < plain.iterations / 2
    # two steps more where the sweeps damp the upper half of the spectrum less than they can
    assert info.iterations <= most
    twice = linalg.CG(preconditioner=linalg.AMG(method, sweeps=2))
    y, more = linalg.solve(M, b, twice, return_info=True)
    assert more.iterations < info.iterations
    torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


def test_multigrid_relaxes_the_vector_of_ones_where_it_is_not_smooth():
    """With ones as they are, three times as many steps."""
    pytest.importorskip("pyamg")
    eye, scale = torch.eye(40, dtype=D), torch.randn(1600, dtype=D).exp()
    M = (torch.kron(poisson(40), eye) + torch.kron(eye, poisson(40))) * torch.outer(scale, scale)
    A, solver = spgrad.from_dense(M), linalg.CG(preconditioner=linalg.AMG())
    _, info = linalg.solve(A, torch.ones(1600, dtype=D), solver, return_info=True)
    assert info.iterations <= 75


@pytest.mark.parametrize("off", [0.0, 1.0], ids=["diagonal", "pairs"])
@pytest.mark.parametrize("method", ["smoothed aggregation", "ruge stuben"])
def test_multigrid_of_a_matrix_that_never_gets_small(method, off):
    """Its inverse on the coarsest level would have 4e8 elements or more, were it made dense."""
    pytest.importorskip("pyamg")
    at = torch.arange(40_000)
    values = torch.cat([torch.linspace(2, 3, 40_000, dtype=D), torch.full_like(at, -off, dtype=D)])
    M = spgrad.sparse_coo_tensor(torch.stack([at.repeat(2), torch.cat([at, at ^ 1])]), values)
    b = torch.ones(40_000, dtype=D)
    solver = linalg.CG(preconditioner=linalg.AMG(method))
    x, info = linalg.solve(M, b, solver, return_info=True)
    torch.testing.assert_close(M @ x, b, rtol=1e-7, atol=1e-7)
    assert info.iterations <= 12


@pytest.mark.parametrize("method", ["smoothed aggregation", "ruge stuben"])
def test_multigrid_is_the_same_in_each_run(method):
    pytest.importorskip("pyamg")
    eye = torch.eye(12, dtype=D)
    M = spgrad.from_dense(torch.kron(poisson(12), eye) + torch.kron(eye, poisson(12)))
    b = torch.randn(144, 1, dtype=D)
    once, again = (linalg.AMG(method).prepare(M).apply(b) for _ in range(2))
    assert torch.equal(once, again)
    assert torch.equal(linalg.AMG(method).prepare(M).apply(b.requires_grad_()), once)


@pytest.mark.parametrize("size", [1.0, 1e-60, 1e60])
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e30])
def test_multigrid_in_float32_takes_the_steps_of_float64(scale, size, monkeypatch):
    """A column of zeros, and columns of any size, beside numbers that float32 does not hold."""
    pytest.importorskip("pyamg")
    eye = torch.eye(30, dtype=D)
    M = spgrad.from_dense((torch.kron(poisson(30), eye) + torch.kron(eye, poisson(30))) * scale)
    b = torch.randn(900, 3, dtype=D) * torch.tensor([size, 1e3 * size, 0], dtype=D)
    solver = linalg.CG(rtol=1e-10, preconditioner=linalg.AMG())
    cycle = linalg.AMG().prepare(M)
    assert cycle.like.dtype == (torch.float64 if scale == 1e30 else torch.float32)
    x, info = linalg.solve(M, b, solver, return_info=True)
    torch.testing.assert_close((M @ x) / size, b / size, rtol=0, atol=1e-6)
    assert not x[:, 2].any()
    monkeypatch.setattr(amg, "_IN_RANGE", (2, 1))
    assert linalg.AMG().prepare(M).like.dtype == torch.float64
    _, wide = linalg.solve(M, b, solver, return_info=True)
    assert abs(info.iterations - wide.iterations) <= 1


def test_multigrid_of_a_batch_keeps_float64():
    """Items of very different sizes have one cycle, which could not scale them all."""
    pytest.importorskip("pyamg")
    M = spgrad.stack([spgrad.from_dense(poisson(150)).to_sparse_csr()] * 2)
    assert linalg.AMG().prepare(M).like.dtype == torch.float64
    b = torch.ones(2, 150, 1, dtype=D) * torch.tensor([1.0, 1e-50], dtype=D)[:, None, None]
    x = linalg.solve(M, b, linalg.CG(preconditioner=linalg.AMG()))
    torch.testing.assert_close(x[1] * 1e50, x[0], rtol=1e-4, atol=1e-4)
