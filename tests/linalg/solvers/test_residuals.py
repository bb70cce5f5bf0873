"""Whether a solve that says it has converged has an x with so small a residual."""

import pytest
import torch

import spgrad
from spgrad import kernels, linalg
from spgrad.errors import ConvergenceError
from spgrad.linalg.solvers import iterative

EPS = torch.finfo(torch.float32).eps


def hard_system():
    """A matrix of condition 2e4, for which float32 vectors lose most of their digits."""
    n = 500
    one = torch.ones(n)
    A = spgrad.spdiags(torch.stack([-one, 2.0002 * one, -one]), torch.tensor([-1, 0, 1]), (n, n))
    b = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e-3])
    return A, b


def residuals_of(A, x, b):
    """Those of each column relative to b, and the share of them that rounding explains."""
    A, x, b = A.double(), x.double(), b.double()
    size = (b - A @ x).norm(dim=0)
    terms = (b.abs() + abs(A) @ x.abs()).norm(dim=0)
    return size / b.norm(dim=0), size / (EPS * terms)


@pytest.mark.parametrize("kind", [linalg.CG, linalg.MINRES, linalg.BiCGSTAB, linalg.GMRES])
def test_a_residual_is_that_of_x_and_not_what_steps_made_of_it(kind):
    A, b = hard_system()
    more = {"restart": 500} if kind is linalg.GMRES else {}
    x, info = linalg.solve(A, b, kind(max_iter=20_000, **more), return_info=True)
    found, roundings = residuals_of(A, x, b)
    assert ((info.residuals - found).abs() <= 0.05 * found + 3 * found / roundings).all()
    assert info.reason == "converged"
    assert ((found <= 1e-5) | (roundings <= iterative.ROUNDING)).all(), (found, roundings)


def test_only_the_items_that_lack_digits_go_on():
    A, b = hard_system()
    easy = spgrad.eye(500, layout=torch.sparse_csr) * 2.0
    both = spgrad.stack([A, easy])
    right = torch.stack([b, b])
    x, info = linalg.solve(both, right, linalg.MINRES(max_iter=20_000), return_info=True)
    assert info.converged.all()
    assert (residuals_of(A, x[0], b)[1] <= iterative.ROUNDING).all()
    torch.testing.assert_close(x[1], b / 2)


def test_items_that_broke_down_stay_as_they_are_where_others_go_on():
    A, b = hard_system()
    ones = (torch.arange(500) < 499).float()
    singular = spgrad.spdiags(ones, torch.tensor(0), (500, 500))
    both, right = spgrad.stack([A, singular]), torch.stack([b, b])
    solver = linalg.BiCGSTAB(max_iter=20_000, strict=False)
    _, info = linalg.solve(both, right, solver, return_info=True)
    assert info.converged.tolist() == [[True, True], [False, False]]
    assert info.reason == "the method broke down; GMRES does not"


@pytest.mark.parametrize("rtol", [0.0, 1e-12])
@pytest.mark.parametrize("kind", [linalg.CG, linalg.MINRES, linalg.BiCGSTAB, linalg.GMRES])
def test_a_tolerance_below_the_digits_of_the_dtype_is_reached_as_far_as_they_go(kind, rtol):
    """Also where a method stops short of it, or counts on below what x has."""
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        dense = torch.randn(12, 12, generator=g) * (torch.rand(12, 12, generator=g) < 0.3)
        A, b = dense @ dense.mT / 12 + torch.eye(12), torch.randn(12, 3, generator=g)
        A = spgrad.from_dense((A + A.mT) / 2)
        x, info = linalg.solve(A, b, kind(rtol=rtol), return_info=True)
        found, roundings = residuals_of(A, x, b)
        assert info.converged.all()
        assert (roundings <= iterative.ROUNDING).all()
        assert ((info.residuals - found).abs() <= 3 * found / roundings).all()


@pytest.mark.parametrize("kind", [linalg.CG, linalg.MINRES])
def test_a_small_residual_that_rounding_does_not_explain_is_not_converged(kind):
    A, b = hard_system()
    A, b = A.double() + 2 * spgrad.eye(500, dtype=torch.float64), b.double()
    solver = kind(rtol=1e-14, max_iter=18, strict=False)
    _, info = linalg.solve(A, b, solver, return_info=True)
    assert not info.converged.any()
    assert info.residuals.max() < 1e-8
    assert info.reason == "max_iter=18 steps were taken"


def test_an_error_says_that_rounding_keeps_the_residual_large(monkeypatch):
    monkeypatch.setattr(iterative, "ROUNDING", 0)
    A, b = hard_system()
    with pytest.raises(ConvergenceError, match="rounding errors keep the residual of x above"):
        linalg.solve(A, b, linalg.CG(max_iter=20_000))
    x, info = linalg.solve(A, b, linalg.CG(max_iter=20_000, strict=False), return_info=True)
    assert not info.converged.any()
    computed = (b - A @ x).norm(dim=0) / b.norm(dim=0)
    torch.testing.assert_close(info.residuals, computed.double(), rtol=1e-5, atol=0)
    found, roundings = residuals_of(A, x, b)  # in float64; float32 rounds each b - A x
    assert ((info.residuals - found).abs() <= found / roundings).all()
    if kernels.compiled():  # other kernels add in another order
        torch.testing.assert_close(info.residuals, found, rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", [linalg.CG, linalg.MINRES, linalg.BiCGSTAB])
def test_a_start_from_the_x_that_was_found_may_run_out_of_steps(kind, monkeypatch):
    monkeypatch.setattr(iterative, "ROUNDING", 0)
    A, b = hard_system()
    taken = linalg.solve(A, b[:, 0], kind(max_iter=20_000, strict=False), return_info=True)[1]
    assert taken.reason.startswith("rounding errors")
    most = taken.iterations - 1  # the last of them were taken after the start
    info = linalg.solve(A, b[:, 0], kind(max_iter=most, strict=False), return_info=True)[1]
    assert info.reason == f"max_iter={most} steps were taken"


def test_least_squares_check_their_gradient():
    A, _ = hard_system()
    A = A[:, :100]
    b = torch.randn(500, generator=torch.Generator().manual_seed(1))
    x = linalg.lstsq(A, b, solver=linalg.LSMR(max_iter=20_000)).double()
    A, b = A.double(), b.double()
    gradient, sizes = A.mT @ (b - A @ x), abs(A.mT) @ (b.abs() + abs(A) @ x.abs())
    bound = max(1.05e-5 * (A.mT @ b).norm(), iterative.ROUNDING * EPS * sizes.norm())
    assert gradient.norm() <= bound


@pytest.mark.parametrize("kind", [linalg.CG, linalg.MINRES, linalg.BiCGSTAB, linalg.GMRES])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_preconditioner_that_gives_no_numbers_is_no_solution(kind, number):
    A, b = hard_system()
    with pytest.raises(ConvergenceError, match="the residual is not finite"):
        linalg.solve(A, b, kind(preconditioner=lambda r: r * number))


@pytest.mark.parametrize(("items", "where"), [((), ""), ((2,), " of batch item 1")])
def test_jacobi_names_the_row_of_a_zero(items, where):
    dense = torch.eye(3, dtype=torch.float64).repeat(*items, 1, 1)
    dense.view(-1, 3, 3)[-1, 2, 2], dense.view(-1, 3, 3)[-1, 2, 0] = 0, 1
    with pytest.raises(spgrad.PivotError, match=f"on the diagonal in row 2{where}; a diagonal"):
        linalg.Jacobi().prepare(spgrad.from_dense(dense))
