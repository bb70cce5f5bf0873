"""Preconditioners copy a triangle of a few diagonals into an order without indices."""

import pytest
import torch
from test_diagonals import LAYOUTS, D, compiled, grid
from torch.testing import assert_close

import spgrad
from spgrad import linalg
from spgrad.ops.solves.triangular import KeptTriangle, Triangle


def kept(M, upper=False, unit=False, layout=torch.sparse_csr):
    A = spgrad.from_dense(M, layout)
    vals = A.values() if layout != torch.sparse_coo else A.coalesce().values()
    return KeptTriangle(vals.reshape(-1), Triangle(A._pattern, upper, unit))


def copied(T, b):
    """Whether there is a copy by diagonals after nine solves."""
    for _ in range(9):
        T.solve(b)
    return T._copy is not None


@compiled
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_later_solves_are_the_first(dtype, upper, unit, layout):
    M = grid(18, dtype) / 4
    T, b = kept(M, upper, unit, layout), torch.randn(324, 1, dtype=dtype)
    found = [(T.solve(b, False), T.solve(b, True)) for _ in range(6)]
    assert T._copy is not None
    assert T._copy.offsets.tolist() == ([1, 18] if upper else [-18, -1])
    dense = M.triu() if upper else M.tril()
    dense = dense - dense.diagonal().diag() + torch.eye(324, dtype=dtype) if unit else dense
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    for x, adjoint in found:
        assert_close(x, torch.linalg.solve(dense, b), rtol=tolerance, atol=tolerance)
        assert_close(adjoint, torch.linalg.solve(dense.T, b), rtol=tolerance, atol=tolerance)
    both = torch.randn(324, 2, dtype=dtype)
    assert_close(T.solve(both), torch.linalg.solve(dense, both), rtol=tolerance, atol=tolerance)


@compiled
@pytest.mark.parametrize(
    ("M", "does"),
    [
        (grid(18), True),
        (grid(9), False),  # a block of the kernel has 16 rows
        (grid(18).to(torch.complex128), False),
        (torch.stack([grid(18)] * 2), False),
        (torch.eye(40), True),
        (torch.ones(30, 30), False),
        (torch.eye(200).index_fill(0, torch.tensor(150), 1.0), False),  # gaps take more memory
        (torch.eye(40, dtype=D) * 1e-310, False),  # its inverse overflows
    ],
    ids=["grid", "near", "complex", "batch", "diagonal", "dense", "gaps", "tiny"],
)
def test_which_triangles_are_copied(M, does):
    size = M.shape[0] * M.shape[1] if M.dim() == 3 else M.shape[0]
    assert copied(kept(M), torch.zeros(size, 1, dtype=M.dtype)) == does


@compiled
def test_a_copy_is_made_once_and_not_for_the_first_solves():
    """It takes as long as several solves, which many triangles are not used for."""
    T, b = kept(grid(18)), torch.ones(324, 1, dtype=D)
    for _ in range(8):
        T.solve(b)
        assert T._copy is None
    T.solve(b)
    first = T._copy
    assert first is not None
    T.solve(b, adjoint=True)
    assert T._copy is first


@compiled
def test_a_zero_pivot_is_named_before_there_is_a_copy():
    T = kept(torch.eye(40).index_fill(0, torch.tensor(30), 0.0))
    for _ in range(12):
        with pytest.raises(spgrad.PivotError, match="in row 30"):
            T.solve(torch.ones(40, 1))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    ("solver", "skew"),
    [
        (linalg.CG(rtol=1e-12, preconditioner=linalg.IC0()), 0.0),
        (linalg.CG(rtol=1e-12, preconditioner=linalg.SSOR()), 0.0),
        (linalg.BiCGSTAB(rtol=1e-12, preconditioner=linalg.ILU0()), 0.3),
        (linalg.GMRES(rtol=1e-12, preconditioner=linalg.SSOR(1.2)), 0.3),
    ],
    ids=["IC0", "SSOR", "ILU0", "SSOR skew"],
)
def test_preconditioned_solutions_and_gradients_are_those_of_dense_matrices(solver, skew, layout):
    M, b = grid(20, skew=skew), torch.randn(400, dtype=D, requires_grad=True)
    A = spgrad.from_dense(M, layout).requires_grad_()
    x, info = linalg.solve(A, b, solver, return_info=True)
    assert info.iterations > 9
    weight = torch.randn(400, dtype=D)
    of_A, of_b = torch.autograd.grad(x @ weight, (A, b))
    wanted, of_right = torch.linalg.solve(M, b), torch.linalg.solve(M.T, weight)
    assert_close(x, wanted, rtol=1e-9, atol=1e-9)
    assert_close(of_b, of_right, rtol=1e-9, atol=1e-9)
    expected = -torch.outer(of_right, wanted) * (M != 0)
    assert_close(of_A.to_dense(), expected, rtol=1e-9, atol=1e-9)
