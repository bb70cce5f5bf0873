"""Iterative solvers copy a matrix of a few diagonals into an order without indices."""

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad import kernels, linalg
from spgrad.lowering.products.diagonals import Repeated
from spgrad.lowering.products.spmm import multiply_and_dot, repeated_spmm

D = torch.float64
LAYOUTS = {"coo": torch.sparse_coo, "csr": torch.sparse_csr, "csc": torch.sparse_csc}
compiled = pytest.mark.skipif(not kernels.compiled(), reason="needs the compiled kernels")


def grid(n=9, dtype=D, skew=0.3):
    """Five points on n x n points; not symmetric with skew."""
    line = 2.5 * torch.eye(n) - torch.eye(n).roll(1, 1).triu() * (1 + skew)
    line = line - torch.eye(n).roll(-1, 1).tril()
    eye = torch.eye(n)
    return (torch.kron(line, eye) + torch.kron(eye, line)).to(dtype)


def repeated(M, layout=torch.sparse_csr):
    A = spgrad.from_dense(M, layout)
    return Repeated(A.values() if layout != torch.sparse_coo else A.coalesce().values(), A._pattern)


@compiled
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_later_products_are_the_first(dtype, transpose, layout):
    M = grid(dtype=dtype)
    A, x = repeated(M, layout), torch.randn(81, 1, dtype=dtype)
    found = [repeated_spmm(A, x, transpose) for _ in range(12)]
    assert A.diagonals(transpose) is not None
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    for y in found:
        assert_close(y, (M.T if transpose else M) @ x, rtol=tolerance, atol=tolerance)
    if not transpose:
        y, dot = multiply_and_dot(A, x[None])
        assert_close(y[0], M @ x, rtol=tolerance, atol=tolerance)
        assert_close(dot, (x.T @ M @ x).double(), rtol=1e-4, atol=1e-4)


@compiled
@pytest.mark.parametrize(
    ("M", "copied"),
    [
        (grid(), True),
        (grid().to(torch.complex128), False),
        (torch.stack([grid()] * 2), False),  # one item's infinity would reach the other
        (torch.eye(70)[:, :60], False),
        (torch.ones(65, 65), False),  # 129 diagonals
        (torch.eye(40)[[*range(39), 0]], True),  # a gap that takes less memory than indices
        (torch.eye(40)[[*range(36), 9, 9, 1, 0]], False),
        (torch.zeros(5, 5), True),
    ],
    ids=["grid", "complex", "batch", "tall", "dense", "gap", "gaps", "zero"],
)
def test_which_matrices_are_copied(M, copied):
    A = spgrad.from_dense(M, torch.sparse_csr)
    A = Repeated(A.values().reshape(-1), A._pattern)
    soon = [A.diagonals(False) for _ in range(8)]
    assert soon == [None] * 8  # a copy would take longer than these products
    assert (A.diagonals(False) is not None) == copied


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize(
    ("change", "stored"),
    [
        (lambda M: M, 3),
        (lambda M: M.fill_diagonal_(0), 2),
        (lambda M: M[80, 79].mul_(1.1), 5),
        (lambda M: M[0, 9].mul_(-1), 5),
        (lambda M: M[0, 1].fill_(torch.nan), 5),
        (lambda M: M[9:, :-9].diagonal().zero_(), 4),
        (lambda M: M[:-18, 18:].diagonal().fill_(1), 6),
    ],
    ids=["all", "no main one", "last row", "first row", "nan", "one side", "more above"],
)
def test_a_symmetric_matrix_is_kept_from_its_main_diagonal_on(change, stored, dtype):
    M = grid(skew=0.0, dtype=dtype)
    change(M)
    A, x = repeated(M), torch.randn(81, 1, dtype=dtype)
    found = [repeated_spmm(A, x, False) for _ in range(9)][-1]
    assert A.diagonals(False).vals.shape[0] == stored
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert_close(found, M @ x, rtol=tolerance, atol=tolerance, equal_nan=True)


def five_points(n, dtype=D, below=-1.0):
    """Poisson's matrix on n x n points, not symmetric with another `below`."""
    eye, next_one = torch.eye(n, dtype=dtype), torch.ones(n - 1, dtype=dtype).diag(1)
    line = 2 * eye - next_one + below * next_one.T
    eye, line = (spgrad.from_dense(M, torch.sparse_csr) for M in (eye, line))
    A = (spgrad.kron(line, eye) + spgrad.kron(eye, line)).to_sparse_csr()
    return Repeated(A.values(), A._pattern), A


@compiled
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("below", [-1.0, -0.5])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_values_that_repeat_are_stored_once(dtype, below, transpose):
    repeated, A = five_points(64, dtype, below)
    x = torch.randn(4096, 1, dtype=dtype)
    first, *_, last = (repeated_spmm(repeated, x, transpose) for _ in range(9))
    found = repeated.diagonals(transpose)
    assert found.numbers.shape == (32, 5)
    assert found.vals.shape[0] < 10  # tiles of the 160
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert_close(last, first, rtol=tolerance, atol=tolerance)
    if not transpose:
        y, dot = multiply_and_dot(repeated, x[None])
        assert torch.equal(y[0], last)
        assert_close(dot, (x.T @ (A @ x)).double(), rtol=1e-4, atol=1e-4)


@compiled
def test_values_that_repeat_in_too_few_tiles_are_stored_as_others():
    repeated, A = five_points(64)
    vals = A.values() * torch.rand(A.values().shape, dtype=D)
    repeated = Repeated(vals, repeated.pattern)
    for _ in range(9):
        found = repeated.diagonals(False)
    assert found.numbers is None
    assert found.vals.shape[0] == 5


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("skew", [0.0, 0.3])
@pytest.mark.parametrize(
    "solver",
    [linalg.CG(), linalg.MINRES(), linalg.BiCGSTAB(), linalg.GMRES(), linalg.GMRES(restart=9)],
    ids=lambda s: type(s).__name__,
)
def test_solutions_and_gradients_are_those_of_dense_matrices(solver, skew, layout):
    if solver.hermitian and skew:
        pytest.skip("needs a hermitian matrix")
    M, b = grid(skew=skew), torch.randn(81, dtype=D)
    A = spgrad.from_dense(M, layout).requires_grad_()
    b = b.requires_grad_()
    x, info = linalg.solve(A, b, solver.__class__(rtol=1e-12), return_info=True)
    assert info.iterations > 8
    weight = torch.randn(81, dtype=D)
    of_A, of_b = torch.autograd.grad(x @ weight, (A, b))
    M = M.requires_grad_()
    wanted = torch.linalg.solve(M, b)
    of_M, of_right = torch.autograd.grad(wanted @ weight, (M, b))
    assert_close(x, wanted, rtol=1e-9, atol=1e-9)
    assert_close(of_b, of_right, rtol=1e-9, atol=1e-9)
    assert_close(of_A.to_dense(), of_M * (M != 0), rtol=1e-9, atol=1e-9)
