"""Systems whose numbers are so large, or so small, that their squares are no numbers any more."""

import math

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad import graph, linalg

F64 = torch.float64
DENSE = torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]], dtype=F64)
RIGHT = torch.tensor([[1.0, 2.0], [-1.0, 0.0], [0.5, 1.0]], dtype=F64)
NEAR = {"rtol": 1e-6, "atol": 1e-6}
SOLVERS = {
    "CG": linalg.CG(),
    "CG with IC0": linalg.CG(preconditioner=linalg.IC0()),
    "MINRES": linalg.MINRES(),
    "BiCGSTAB": linalg.BiCGSTAB(preconditioner=linalg.Jacobi()),
    "GMRES": linalg.GMRES(preconditioner=linalg.ILU0()),
    "LSMR": linalg.LSMR(),
}


@pytest.mark.parametrize("of_A", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("of_b", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("name", SOLVERS)
def test_iterations_scale_the_system(name, of_A, of_b):
    if abs(math.log10(of_b) - math.log10(of_A)) > 300:
        return  # the solution is no float64
    A = (spgrad.from_dense(DENSE) * of_A).requires_grad_()
    b = (RIGHT * of_b).requires_grad_()
    for start in (None, torch.full_like(RIGHT, of_b / of_A)):
        x, info = linalg.solve(A, b, SOLVERS[name], x0=start, return_info=True)
        assert info.reason == "converged"
        assert_close(x.detach() / of_b * of_A, torch.linalg.solve(DENSE, RIGHT), **NEAR)
    (of_right,) = torch.autograd.grad(x, b, torch.full_like(RIGHT, of_A))
    assert_close(of_right, torch.linalg.solve(DENSE.T, torch.ones_like(RIGHT)), **NEAR)


def test_absolute_tolerances_are_those_of_the_system_as_it_is():
    A, b = spgrad.from_dense(DENSE) * 1e-200, RIGHT * 1e-200
    solver = linalg.CG(rtol=0.0, atol=1e-199)  # larger than the norms of all columns
    x, info = linalg.solve(A, b, solver, return_info=True)
    assert info.iterations == 0
    assert not bool(x.any())
    solver = linalg.LSMR(rtol=0.0, atol=1e-300)
    assert not bool(linalg.lstsq(A, b, solver=solver).any())


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_float32(scale):
    A = spgrad.from_dense(DENSE.float() * scale)
    b = RIGHT.float() * scale
    for solver in (linalg.CG(), linalg.GMRES()):
        x = linalg.solve(A, b, solver)
        assert_close(x, torch.linalg.solve(DENSE, RIGHT).float(), rtol=1e-4, atol=1e-4)
    x = linalg.lstsq(A, b)
    assert_close(x, torch.linalg.solve(DENSE, RIGHT).float(), rtol=1e-3, atol=1e-3)


def test_a_preconditioner_of_the_matrix_as_it_is_fits_the_scaled_one():
    A, b = spgrad.from_dense(DENSE) * 1e-200, RIGHT * 1e-200
    for given in (linalg.factor(A), lambda r: torch.linalg.solve(DENSE, r) * 1e200):
        solver = linalg.CG(preconditioner=given, max_iter=3)
        x, info = linalg.solve(A, b, solver, return_info=True)
        assert info.iterations <= 2
        assert_close(x, torch.linalg.solve(DENSE, RIGHT))


def test_an_error_has_the_solution_of_the_system_as_it_is():
    A, b = spgrad.from_dense(DENSE) * 1e-200, RIGHT * 1e-100
    with pytest.raises(spgrad.ConvergenceError) as caught:
        linalg.solve(A, b, linalg.CG(max_iter=2))
    expected = torch.linalg.solve(DENSE, RIGHT)
    assert 0.5 < float(caught.value.x.norm() / 1e100 / expected.norm()) < 2


def test_a_preconditioner_that_changes_residuals_is_refused():
    A = spgrad.from_dense(DENSE)
    with pytest.raises(ValueError, match="has changed the residuals that it got"):
        linalg.solve(A, RIGHT, linalg.CG(preconditioner=lambda r: r.mul_(2)))


def test_a_length_that_is_no_number_is_refused():
    A = spgrad.from_dense(torch.tensor([[1.0, torch.nan], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="shortest_paths: `A` has an element that is NaN"):
        graph.shortest_paths(A, [0])


def laplacian(m):
    """Tridiagonal, with eigenvalues that are not repeated; sparse enough for iterations."""
    one = torch.ones(m, dtype=F64)
    A = spgrad.spdiags(torch.stack([-one, 2 * one, -one]), torch.tensor([-1, 0, 1]), (m, m))
    return A.to_sparse_csr()


@pytest.mark.parametrize("scale", [1e-200, 1e-120, 1e200])
@pytest.mark.parametrize("of_M", [None, 1.0, 1e-90])
def test_eigenvalues_are_of_the_scaled_matrix(scale, of_M):
    A, M = laplacian(60), None if of_M is None else spgrad.eye(60, dtype=F64) * 2
    wanted, X = linalg.eigsh(A, 3, M, sigma=0.011)
    B = (A * scale).requires_grad_()
    ratio = scale / (of_M or 1.0)
    found, Y = linalg.eigsh(B, 3, None if M is None else M * of_M, sigma=0.011 * ratio)
    assert_close(found / ratio, wanted)
    assert_close(Y.detach() * math.sqrt(of_M or 1.0), X, rtol=1e-8, atol=1e-8)
    found.sum().backward()
    assert_close(B.grad.to_dense(), (Y @ Y.mT).detach() * (B.to_dense() != 0))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_largest_eigenvalues_and_singular_values_of_the_scaled_matrix(scale):
    A = laplacian(60)
    B = (A * scale).requires_grad_()
    assert_close(linalg.eigsh(B, 2)[0].detach() / scale, linalg.eigsh(A, 2)[0])
    torch.manual_seed(0)
    E, X = spgrad.lobpcg(B, 2, tol=1e-9, niter=-1)
    assert_close(E.detach() / scale, linalg.eigsh(A, 2)[0].flip(0), rtol=1e-9, atol=0)
    (grad,) = torch.autograd.grad(E.sum(), B)
    assert_close(grad.to_dense(), (X @ X.mT).detach() * (A.to_dense() != 0), rtol=1e-6, atol=1e-6)
    U, S, Vh = linalg.svds(B, 2)
    assert_close(S.detach() / scale, linalg.svds(A, 2).S)
    assert_close((U * S @ Vh).detach() / scale, (linalg.svds(A, 2).U * S.detach() / scale) @ Vh)
    (grad,) = torch.autograd.grad(S.sum(), B)
    assert_close(grad.to_dense(), (U @ Vh).detach() * (A.to_dense() != 0))
    assert_close(linalg.cond(B).detach(), linalg.cond(A), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "solver", [linalg.GMRES(), linalg.BiCGSTAB()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("of_matrix", [1e-12, 1e12])
@pytest.mark.parametrize("of_b", [1e-12, 1.0, 1e12])
def test_iterations_do_not_depend_on_units(solver, of_matrix, of_b):
    generator = torch.Generator().manual_seed(0)
    dense = 4 * torch.eye(12, dtype=torch.float64)
    A = (
        dense
        + spgrad.rand(12, 12, density=0.3, dtype=torch.float64, generator=generator).to_dense()
    )
    A = spgrad.from_dense(A).to_sparse_csr()
    b = torch.randn(12, dtype=torch.float64, generator=generator)
    x, info = linalg.solve(A, b, solver, return_info=True)
    y, scaled = linalg.solve(of_matrix * A, of_b * b, solver, return_info=True)
    torch.testing.assert_close(y * of_matrix / of_b, x, rtol=1e-12, atol=0)
    assert scaled.iterations == info.iterations
