"""How often the host waits for a device while an iterative solver runs: once in many steps."""

import pytest
import torch
from waiting import waits

import spgrad
from spgrad import linalg
from spgrad.linalg.solvers.iterative import CHECK_EVERY

D = torch.float64
ITERATIVE = [linalg.CG, linalg.MINRES, linalg.BiCGSTAB, linalg.GMRES, linalg.LSMR]


def poisson(m=400):
    one = torch.ones(m, dtype=D)
    return spgrad.spdiags(torch.stack([-one, 2 * one, -one]), torch.tensor([-1, 0, 1]), (m, m))


def right(*shape):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("preconditioner", [None, linalg.Jacobi()], ids=["plain", "jacobi"])
@pytest.mark.parametrize("kind", ITERATIVE)
def test_an_iteration_waits_once_between_many_steps(kind, preconditioner):
    if kind is linalg.LSMR and preconditioner is not None:
        pytest.skip("LSMR takes no preconditioner")
    A, b = poisson(), right(400, 2)

    def count(steps):
        solver = kind(rtol=0, max_iter=steps, strict=False, preconditioner=preconditioner)
        with waits() as found:
            linalg.solve(A, b, solver)
        return found

    count(1)  # what a pattern needs is known from here on
    few, many = count(CHECK_EVERY), count(3 * CHECK_EVERY)  # GMRES restarts between
    assert len(many) - len(few) == 2, many


@pytest.mark.parametrize("kind", ITERATIVE)
def test_what_a_device_would_compute_is_right(kind):
    """Few eigenvalues exhaust a Krylov space long before the host looks."""
    M = torch.diag(torch.tensor([1.0, 2.0, 2.0, 5.0] * 5, dtype=D))
    if kind in (linalg.BiCGSTAB, linalg.GMRES, linalg.LSMR):
        M[0, 5] = 1.0
    b = right(20, 3)
    with waits():
        x, info = linalg.solve(spgrad.from_dense(M), b, kind(rtol=1e-10), return_info=True)
    assert bool(info.converged.all())
    torch.testing.assert_close(x, torch.linalg.solve(M, b), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [(linalg.BiCGSTAB, 5), (linalg.BiCGSTAB, 16), (linalg.GMRES, 5), (linalg.GMRES, 100)],
)
def test_no_solution_of_a_singular_matrix_is_claimed(kind, steps):
    M = spgrad.from_dense(torch.diag(torch.tensor([1.0, 2.0, 0.0, 3.0], dtype=D)))
    with waits():
        x, info = linalg.solve(
            M, torch.ones(4, dtype=D), kind(max_iter=steps, strict=False), return_info=True
        )
    assert not bool(info.converged)
    torch.testing.assert_close(info.residuals, (torch.ones(4, dtype=D) - M @ x).norm() / 2)


def test_a_lost_shadow_is_replaced():
    """The residual becomes orthogonal to the first one, and more steps than three follow."""
    M = torch.tensor([[2.0, 1.0, 2.0], [1.0, 2.0, 1.0], [-2.0, 1.0, 0.0]], dtype=D)
    b = torch.tensor([0.0, 1.0, 0.0], dtype=D)
    solver = linalg.BiCGSTAB(rtol=1e-12)
    found = linalg.solve(spgrad.from_dense(M), b, solver)
    with waits():
        again = linalg.solve(spgrad.from_dense(M), b, solver)
    torch.testing.assert_close(found, torch.linalg.solve(M, b))
    torch.testing.assert_close(again, found)
