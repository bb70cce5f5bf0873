"""What the iterative solvers of torchsparsegradutils refuse, and their bounds on products."""

import math

import pytest
import torch

from spgrad.dropin.torchsparsegradutils.utils import bicgstab, linear_cg, lsmr, minres
from spgrad.dropin.torchsparsegradutils.utils.bicgstab import BICGSTABSettings
from spgrad.dropin.torchsparsegradutils.utils.closures import Closure
from spgrad.dropin.torchsparsegradutils.utils.linear_cg import LinearCGSettings

D = torch.float64


@pytest.mark.parametrize("name", ["tolerance", "eps", "stop_updating_after"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_linear_cg_refuses_numbers_that_are_no_tolerances(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}; finite numbers from 0 are taken"):
        linear_cg(torch.eye(2), torch.ones(2), **{name: value})


def test_linear_cg_refuses_what_is_no_right_hand_side_or_guess():
    ones = torch.ones(3)
    with pytest.raises(ValueError, match="eps is 1e-100, not representable"):
        linear_cg(torch.eye(3), ones, eps=1e-100)
    with pytest.raises(ValueError, match="at least one dimension"):
        linear_cg(torch.eye(1), torch.tensor(1.0))
    with pytest.raises(TypeError, match=r"rhs is torch\.int64; floating-point numbers are taken"):
        linear_cg(torch.eye(3), torch.ones(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"initial_guess must have shape \(3,\), and has \(3, 2\)"):
        linear_cg(torch.eye(3), ones, initial_guess=torch.ones(3, 2))
    with pytest.raises(RuntimeError, match=r"output has shape \(2, 1\); \(3, 1\) is taken"):
        linear_cg(lambda x: x[:-1], ones)
    assert linear_cg(torch.eye(3), ones, initial_guess=ones[:, None]).shape == (3,)


@pytest.mark.parametrize("columns", [(), (2,)])
def test_bicgstab_keeps_to_its_number_of_products(columns):
    right = torch.arange(1.0, 4.0, dtype=D).view(3, *[1] * len(columns)).expand(3, *columns)
    start, calls = right / 3, []

    def times(x):
        calls.append(x)
        return 2 * x

    with pytest.raises(ValueError, match="matvec_max must be nonnegative, and is -1"):
        bicgstab(times, right, start, BICGSTABSettings(matvec_max=-1))
    for guess in (None, start):
        with pytest.warns(UserWarning, match="matvec_max=0") as told:
            x = bicgstab(times, right, guess, BICGSTABSettings(matvec_max=0))
        assert [warning.filename for warning in told] == [__file__]
        assert torch.equal(x, torch.zeros_like(right) if guess is None else start)
    assert not calls
    assert torch.equal(bicgstab(times, right, start, BICGSTABSettings(matvec_max=1)), start)
    assert len(calls) == max(1, *columns, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_right_hand_side_that_is_not_finite_has_no_solution(value):
    """The other columns have one."""
    A = torch.tensor([[3.0, 1], [1, 2]], dtype=D)
    right = torch.tensor([[4.0, value], [3, 1]], dtype=D)
    for found in (bicgstab(A, right), minres(A.matmul, right)):
        torch.testing.assert_close(found[:, 0], torch.ones(2, dtype=D))
        assert bool(found[:, 1].isnan().all())
    assert bool(lsmr(A, right[:, 1])[0].isnan().all())


def test_only_a_product_in_the_memory_of_its_factor_is_copied():
    x, y = torch.ones(1, 3, 2), torch.full((3, 2), 2.0)
    same = Closure(lambda x: x, None, ()).times(x)
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()
    assert Closure(lambda x: y, None, ()).times(x).data_ptr() == y.data_ptr()
    assert Closure(lambda x: y.T.contiguous().T, None, ()).times(x).is_contiguous()


@pytest.mark.parametrize("size", [1e-200, 1e200])
@pytest.mark.parametrize("solve", [linear_cg, bicgstab, minres, lsmr])
def test_numbers_that_cannot_be_squared_are_refused(solve, size):
    """Their norm would be 0 or infinite, and any x would seem to solve the system."""
    A = 2 * torch.eye(3, dtype=D)
    given = A if solve is lsmr else A.matmul
    with pytest.raises(ValueError, match="`b` has numbers whose squares are larger or smaller"):
        solve(given, torch.full((3,), size, dtype=D))
    if solve is lsmr:
        return
    x = solve(given, torch.tensor([[2.0, 0], [4, 0], [6, 0]], dtype=D))
    torch.testing.assert_close(x, torch.tensor([[1.0, 0], [2, 0], [3, 0]], dtype=D))
    with pytest.raises(ValueError, match="`b` has numbers whose squares are larger or smaller"):
        solve(given, torch.tensor([[2.0, size], [4, 0], [6, 0]], dtype=D))


@pytest.mark.filterwarnings("ignore:CG ended after")
def test_tridiagonal_matrices_keep_small_eigenvalues():
    """The vectors of Lanczos stay orthogonal, though the matrix is nearly singular."""
    size = torch.logspace(0, 10, 20, dtype=D)
    right = torch.randn(20, dtype=D, generator=torch.Generator().manual_seed(0))
    _, T = linear_cg(torch.diag(size), right, n_tridiag=1)
    torch.testing.assert_close(torch.linalg.eigvalsh(T[0]), size, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(6, 1), (6, 3), (2, 6, 3)])
def test_as_many_steps_as_there_are_rows(shape):
    A = torch.diag(torch.arange(1.0, 7, dtype=D))
    settings, calls = LinearCGSettings(terminate_cg_by_size=True), []
    right = torch.ones(shape, dtype=D)
    x = linear_cg(lambda x: calls.append(x) or A @ x, right, tolerance=1e-8, settings=settings)
    torch.testing.assert_close(x, right / A.diagonal()[:, None])
    assert len(calls) <= 8
    with pytest.raises(RuntimeError, match="max_tridiag_iter is 20, more than the 6 iterations"):
        linear_cg(A, right, n_tridiag=1, settings=settings)
