"""spgrad.linalg.lstsq against dense torch.linalg: values, gradients, refusals."""

import pytest
import torch

import spgrad
from spgrad import linalg, testing
from spgrad.core.pattern import LAYOUTS

D, C = torch.float64, torch.complex128
SOLVERS = [linalg.LSMR(rtol=1e-13), linalg.NormalEquations()]


def matrix(shape, dtype=D, batch=()):
    g = torch.Generator().manual_seed(1)
    made = torch.randn(*batch, *shape, dtype=dtype, generator=g)
    return made * (torch.rand(*batch, *shape, generator=g) < 0.5) + 2 * torch.eye(
        *shape, dtype=dtype
    )


def wanted(M, b, damp):
    """By the pseudoinverse of A over damp times the identity."""
    n = M.shape[-1]
    if damp:
        below = (damp * torch.eye(n, dtype=M.dtype)).expand(*M.shape[:-2], n, n)
        M = torch.cat([M, below], -2)
        b = torch.cat([b, b.new_zeros(*b.shape[:-2], n, b.shape[-1])], -2)
    return torch.linalg.pinv(M) @ b


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("damp", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)])
def test_lstsq(shape, dtype, damp, solver):
    M = matrix(shape, dtype)
    b = torch.randn(shape[0], 2, dtype=dtype, generator=torch.Generator().manual_seed(2))
    A = spgrad.from_dense(M)
    vals, right = A.values().clone().requires_grad_(), b.clone().requires_grad_()

    def run(vals, b):
        return linalg.lstsq(spgrad.from_values(vals, A), b, damp, solver)

    torch.testing.assert_close(run(vals, right), wanted(M, b, damp), rtol=1e-9, atol=1e-10)
    assert torch.autograd.gradcheck(run, (vals, right), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (vals, right), fast_mode=True)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("shape", [(8, 5), (5, 8)])
def test_a_damping_with_a_gradient(shape, dtype, solver):
    M = matrix(shape, dtype)
    b = torch.randn(shape[0], 2, dtype=dtype, generator=torch.Generator().manual_seed(2))
    A = spgrad.from_dense(M)
    vals, right = A.values().clone().requires_grad_(), b.clone().requires_grad_()
    weight = torch.tensor(0.3, dtype=D, requires_grad=True)

    def run(vals, b, damp):
        return linalg.lstsq(spgrad.from_values(vals, A), b, damp, solver)

    torch.testing.assert_close(run(A.values(), b, weight), wanted(M, b, 0.3))
    assert torch.autograd.gradcheck(run, (vals, right, weight), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (vals, right, weight), fast_mode=True)


def test_the_derivative_in_the_damping():
    """(A^T A + d^2) dx = -2 d x, which is 0 where there is no damping, for any rank."""
    M, b = matrix((8, 3)) @ matrix((3, 5)), torch.randn(3, 8, 2, dtype=D)
    for number, dtype in ((0.5, D), (2, torch.int64), (0.7, torch.float32), (0.0, D)):
        damp = torch.tensor(number, dtype=dtype)
        damp = damp.requires_grad_(dtype.is_floating_point)
        A = spgrad.from_dense(M.expand(3, 8, 5))
        x = linalg.lstsq(A, b, damp, linalg.LSMR(rtol=1e-13))
        torch.testing.assert_close(x, wanted(M, b, number), rtol=1e-6, atol=1e-7)
        if damp.requires_grad:
            (g,) = torch.autograd.grad(x.sum(), damp)
            normal = M.T @ M + number**2 * torch.eye(5, dtype=D)
            dx = torch.linalg.pinv(normal, hermitian=True) @ (-2 * number * x.detach())
            torch.testing.assert_close(g, dx.sum().to(dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("damp", [0.0, 0.3])
def test_layouts_and_batches(layout, solver, damp):
    M = matrix((8, 6), batch=(2,))
    A = spgrad.from_dense(M, LAYOUTS[layout], blocksize=(2, 2) if "bs" in layout else None)
    A.requires_grad_()
    dense = A.detach().to_dense().requires_grad_()
    b = torch.randn(2, 8, 3, dtype=D)
    x, other = linalg.lstsq(A, b, damp, solver), wanted(dense, b, damp)
    torch.testing.assert_close(x, other, rtol=1e-9, atol=1e-10)
    x.square().sum().backward()
    other.square().sum().backward()
    at_pattern = dense.grad.where(testing.mask_of(A.pattern), 0)
    torch.testing.assert_close(A.grad.to_dense(), at_pattern, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(linalg.lstsq(A, b[:, :, 0], damp, solver), x[:, :, 0])


def test_a_rank_that_is_not_full():
    """The least norm, and the gradient for changes that keep the rank: scaling does."""
    M = matrix((8, 3)) @ matrix((3, 6))
    A, b = spgrad.from_dense(M), torch.randn(8, 1, dtype=D)
    s = torch.tensor(1.0, dtype=D, requires_grad=True)
    x = linalg.lstsq(spgrad.from_values(A.values() * s, A), b, solver=linalg.LSMR(rtol=1e-12))
    torch.testing.assert_close(x, torch.linalg.pinv(M) @ b, rtol=1e-6, atol=1e-7)
    (g,) = torch.autograd.grad(x.sum(), s)
    torch.testing.assert_close(g, -x.detach().sum(), rtol=1e-5, atol=1e-6)
    empty = spgrad.from_dense(torch.diag(torch.tensor([1.0, 0.0], dtype=D)))
    with pytest.raises(spgrad.PivotError, match=r"`A` does not have full rank.*LSMR\(\), or a"):
        linalg.lstsq(empty, torch.ones(2, dtype=D), solver=linalg.NormalEquations())


def test_a_right_side_to_which_all_columns_are_orthogonal():
    M = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]], dtype=D)
    A = spgrad.from_dense(M).requires_grad_()
    b = torch.tensor([[0.0, 5.0], [0.0, 0.0], [3.0, 1.0]], dtype=D, requires_grad=True)
    x = spgrad.linalg.lstsq(A, b)
    torch.testing.assert_close(x, torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=D))
    # this cotangent is orthogonal to all rows of A
    grads = torch.autograd.grad(x, (A, b), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=D))
    W = M.clone().requires_grad_()
    y = torch.linalg.pinv(W, rtol=1e-9) @ b
    expected = torch.autograd.grad(y, (W, b), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=D))
    torch.testing.assert_close(spgrad.to_dense(grads[0]), expected[0] * (M != 0))
    torch.testing.assert_close(grads[1], expected[1])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (3, 2)])
def test_empty(shape):
    A = spgrad.zeros(*shape, dtype=D).requires_grad_()
    b = torch.ones(shape[0], 2, dtype=D, requires_grad=True)
    x = linalg.lstsq(A, b)
    assert x.tolist() == torch.zeros(shape[1], 2).tolist()
    x.sum().backward()


A = spgrad.from_dense(matrix((4, 3)))
REFUSED = [
    ((A, torch.ones(3, dtype=D)), ValueError, "4 equations"),
    ((A, torch.ones(4)), ValueError, "dtype float32"),
    ((A.half(), torch.ones(4).half()), ValueError, "float16"),
    ((A, torch.ones(4, dtype=D), -1.0), ValueError, "`damp` is -1.0"),
    ((A, torch.ones(4, dtype=D), torch.tensor(-1.0)), ValueError, "`damp` is -1.0"),
    ((A, torch.ones(4, dtype=D), torch.tensor(float("nan"))), ValueError, "`damp` is nan"),
    ((A, torch.ones(4, dtype=D), torch.ones(3)), ValueError, r"`damp` is a tensor of shape \(3,\)"),
    ((A, torch.ones(4, dtype=D), torch.tensor(1j)), ValueError, "dtype complex64; a number or a"),
    ((A, torch.ones(4, dtype=D), "1"), ValueError, "`damp` is '1'"),
    ((A, torch.ones(4, dtype=D), 0.0, linalg.CG()), TypeError, "`solver` is"),
    ((A, torch.full((4,), float("nan"), dtype=D)), ValueError, "not finite"),
    ((torch.ones(4, 3), torch.ones(4)), TypeError, "`A` is"),
]


@pytest.mark.parametrize(("args", "kind", "says"), REFUSED)
def test_refusals(args, kind, says):
    with pytest.raises(kind, match=rf"spgrad\.linalg\.lstsq: .*{says}"):
        linalg.lstsq(*args)


@pytest.mark.parametrize("flipped", [False, True])
def test_gradients_of_matrices_without_full_rank(flipped):
    """The last column is, and stays, the sum of the others: all terms of the gradient count."""

    def matrix_of(first):
        M = torch.cat([first, first.sum(1, keepdim=True)], 1)
        return M.mT if flipped else M

    first, change = (
        torch.rand(6, 2, dtype=D, generator=torch.Generator().manual_seed(s)) for s in (3, 4)
    )
    A = spgrad.from_dense(matrix_of(first)).requires_grad_()
    b = torch.linspace(0, 1, A.shape[0], dtype=D)
    solver = linalg.LSMR(rtol=1e-13)
    y = linalg.lstsq(A, b, solver=solver).sin().sum()
    (plain,) = torch.autograd.grad(y, A, retain_graph=True)
    (recorded,) = torch.autograd.grad(y, A, create_graph=True)
    testing.assert_close(plain, recorded.to_dense().detach())
    ends = (torch.linalg.pinv(matrix_of(first + t * change)) @ b for t in (1e-6, -1e-6))
    slope = (next(ends).sin().sum() - next(ends).sin().sum()) / 2e-6
    found = (plain.to_dense() * matrix_of(change)).sum()
    torch.testing.assert_close(found, slope, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_the_right_side_alone():
    M = torch.tensor([[1.0, 2], [0, 1], [3, 0]], dtype=torch.float64)
    b = torch.tensor([1.0, -1, 2], dtype=torch.float64, requires_grad=True)
    x = spgrad.linalg.lstsq(spgrad.from_dense(M), b)
    (g,) = torch.autograd.grad(x.square().sum(), b)
    inverse = torch.linalg.pinv(M)
    torch.testing.assert_close(g, 2 * inverse.T @ inverse @ b.detach())


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (3, 3), (1, 2)])
def test_whole_jacobians(shape):
    """Their rows come from torch.func.vmap, which lets nobody read the residuals."""
    M = torch.randn(shape, dtype=torch.float64) + 3 * torch.eye(*shape, dtype=torch.float64)
    A, b = spgrad.from_dense(M), torch.randn(shape[0], dtype=torch.float64)

    def solved(vals):
        return spgrad.linalg.lstsq(spgrad.from_values(vals, A.pattern), b)

    found = torch.func.jacrev(solved)(A.values())
    wanted = torch.func.jacrev(lambda M: torch.linalg.pinv(M) @ b)(M)
    torch.testing.assert_close(found, wanted.flatten(1), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_prepared_normal_equations_solve_with_the_matrix_and_its_adjoint(shape):
    M = matrix(shape, C)
    prepared = linalg.NormalEquations().prepare(spgrad.from_dense(M))
    b, c = torch.ones(shape[0], 1, dtype=C), torch.ones(shape[1], 1, dtype=C)
    torch.testing.assert_close(prepared.solve(b)[0], torch.linalg.pinv(M) @ b)
    torch.testing.assert_close(prepared.solve(c, adjoint=True)[0], torch.linalg.pinv(M.mH) @ c)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_second_derivatives_where_residuals_vanish(shape):
    """With b in the range of A, and the gradient in that of A^H, terms of 0 are still derived."""
    M = matrix(shape)
    A, b, g = spgrad.from_dense(M), M.sum(1), M.sum(0)

    def solved(vals):
        return g @ linalg.lstsq(spgrad.from_values(vals, A), b, solver=linalg.NormalEquations())

    def dense(vals):
        return g @ torch.linalg.pinv(spgrad.from_values(vals, A).to_dense()) @ b

    found, wanted = (torch.autograd.functional.hessian(f, A.values()) for f in (solved, dense))
    torch.testing.assert_close(found, wanted)


def test_batches_that_do_not_fit():
    A = spgrad.from_dense(torch.ones(2, 3, 2))
    with pytest.raises(
        ValueError, match=r"`b` has shape \(3, 3, 1\); a batch that broadcasts with"
    ):
        spgrad.linalg.lstsq(A, torch.ones(3, 3, 1))


def test_each_column_has_the_gradient_that_it_has_alone():
    """A large column that A reaches beside a small one that it does not."""
    M = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 3.0]], dtype=D)  # of rank 2
    b = torch.stack([M @ torch.ones(3, dtype=D) * 1e8, torch.tensor([1.0, 0.0, 1.0], dtype=D)], 1)
    weight = torch.tensor([[0.0, 1.0], [0.0, -2.0], [0.0, 0.5]], dtype=D)
    dense = M.clone().requires_grad_()
    ((torch.linalg.pinv(dense, rtol=1e-10) @ b) * weight).sum().backward()
    A = spgrad.from_dense(M).requires_grad_()
    (linalg.lstsq(A, b, solver=linalg.LSMR(rtol=1e-13)) * weight).sum().backward()
    torch.testing.assert_close(A.grad.to_dense(), dense.grad * (M != 0))


@pytest.mark.parametrize("scale", [1e-300, 1e-155, 1e160])
@pytest.mark.parametrize("shape", [(8, 5), (5, 8)])
def test_normal_equations_of_numbers_whose_squares_are_no_numbers(shape, scale):
    M = matrix(shape)
    b = torch.randn(shape[0], 2, dtype=D, generator=torch.Generator().manual_seed(2))
    A = spgrad.from_dense(M * scale).requires_grad_()
    x = linalg.lstsq(A, b, solver=linalg.NormalEquations())
    torch.testing.assert_close(x.detach() * scale, torch.linalg.pinv(M) @ b)
