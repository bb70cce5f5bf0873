"""Factors that are kept: solves, refactorisation, errors."""

import copy
import pickle

import pytest
import torch

import spgrad
from spgrad import errors, linalg
from spgrad.linalg.direct import superlu

D, C = torch.float64, torch.complex128


def matrix(m=9, dtype=D, batch=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    made = torch.randn(*batch, m, m, dtype=dtype, generator=g)
    made = made * (torch.rand(*batch, m, m, generator=g) < 0.35)
    return made + 2 * torch.eye(m, dtype=dtype)


@pytest.mark.parametrize("shape", [(9,), (9, 2), (3, 9), (3, 9, 2)])
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("adjoint", [False, True])
def test_solve(adjoint, dtype, shape):
    M = matrix(dtype=dtype, batch=shape[:1] if shape[0] == 3 else ())
    F = linalg.factor(spgrad.from_dense(M))
    b = torch.randn(shape, dtype=dtype)
    for G, N in ((F, M), (F.refactor(spgrad.from_dense(M) * 1.5), 1.5 * M)):
        wanted = torch.linalg.solve(N.mH if adjoint else N, b)
        torch.testing.assert_close(G.solve(b, adjoint=adjoint), wanted)


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("assume", [None, "hermitian"])
def test_the_order_is_kept_and_all_methods_use_it(assume, dtype):
    M = matrix(dtype=dtype)
    M = M + M.mH if assume else M
    A = spgrad.from_dense(M)
    first = linalg.factor(A, assume=assume)
    A2 = spgrad.from_values(A.values() * 3, A.pattern).requires_grad_()
    F = first.refactor(A2)
    b = torch.randn(9, dtype=dtype)
    torch.testing.assert_close(F.solve(b), torch.linalg.solve(3 * M, b))
    torch.testing.assert_close(F.slogdet(), tuple(torch.linalg.slogdet(3 * M)))
    torch.testing.assert_close(F.inverse_at(A).to_dense(), torch.linalg.inv(3 * M).where(M != 0, 0))
    torch.testing.assert_close(F.inverse_diagonal(), torch.linalg.inv(3 * M).diagonal())
    F.slogdet()[1].backward()
    wanted = torch.linalg.inv(3 * M).mH.where(M != 0, 0)
    torch.testing.assert_close(A2.grad.to_dense(), wanted)


def test_it_is_a_preconditioner():
    M = matrix()
    M = M @ M.mT + torch.eye(9, dtype=D)
    A, b = spgrad.from_dense(M), torch.randn(9, dtype=D)
    solver = linalg.CG(preconditioner=linalg.factor(A))
    x, info = linalg.solve(A, b, solver, return_info=True)
    assert info.iterations <= 2
    torch.testing.assert_close(x, torch.linalg.solve(M, b))


def test_errors():
    A = spgrad.from_dense(matrix())
    with pytest.raises(ValueError, match="engine"):
        linalg.factor(A, engine="umfpack")
    with pytest.raises(ValueError, match="another pattern"):
        linalg.factor(A).refactor(spgrad.from_dense(torch.eye(9, dtype=D)))
    with pytest.raises(errors.PivotError, match="singular"):
        linalg.factor(spgrad.from_dense(torch.ones(2, 2)))


def test_an_empty_matrix_has_a_factor():
    A = spgrad.from_dense(torch.zeros(0, 0)).requires_grad_()
    F = linalg.factor(A)
    assert F.solve(torch.ones(0, 3)).shape == (0, 3)
    assert F.sample((2,)).shape == (2, 0)
    assert F.inverse_diagonal().shape == (0,)
    F.logdet().backward()
    assert A.grad.shape == (0, 0)
    assert F.refactor(A).apply(torch.ones(0, 1)).shape == (0, 1)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda F: pickle.loads(pickle.dumps(F))]
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_copies(copied, batch):
    A = spgrad.from_dense(matrix(batch=batch)).requires_grad_()
    b = torch.ones(*batch, 9, 2, dtype=D)
    F = linalg.factor(A)
    other = copied(F)
    torch.testing.assert_close(other.solve(b), F.solve(b))
    torch.testing.assert_close(other.slogdet(), F.slogdet())


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda F: pickle.loads(pickle.dumps(F))]
)
@pytest.mark.parametrize("assume", [None, "hermitian"])
def test_a_copy_has_the_numbers_that_were_factored(assume, copied):
    M = matrix()
    M = M + M.mT + 9 * torch.eye(9, dtype=D)
    A, b = spgrad.from_dense(M), torch.ones(9, dtype=D)
    F = linalg.factor(A, assume)
    A.mul_(-2)
    for G in (F, copied(F), copied(copied(F))):
        torch.testing.assert_close(G.solve(b), torch.linalg.solve(M, b))
        torch.testing.assert_close(G.logdet(), torch.linalg.slogdet(M)[1])
        assert G.sample((2,)).shape == (2, 9)  # which needs a positive definite matrix
        assert torch.equal(G.refactor(A).solve(b), linalg.factor(A, assume).solve(b))
    A.mul_(torch.nan)
    for G in (F, copied(F)):
        torch.testing.assert_close(G.solve(b, adjoint=True), torch.linalg.solve(M, b))
        torch.testing.assert_close(G.slogdet(), tuple(torch.linalg.slogdet(M)))
        torch.testing.assert_close(G.inverse_diagonal(), torch.linalg.inv(M).diagonal())
        torch.testing.assert_close(G.inverse_at(A).values(), torch.linalg.inv(M)[M != 0])


@pytest.mark.parametrize("name", ["logdet", "slogdet", "inverse_diagonal"])
def test_a_method_is_named(name):
    F = linalg.factor(spgrad.from_dense(matrix()))
    with pytest.raises(TypeError, match=rf"^spgrad\.linalg\.Factor\.{name}: takes 1 positional"):
        getattr(F, name)(3)


@pytest.mark.parametrize("dtype", [D, C])
def test_the_determinant_is_read_once_from_a_factor(dtype, monkeypatch):
    """Later calls get copies of it."""
    calls, read = [], superlu._LU.log_determinant
    monkeypatch.setattr(superlu._LU, "log_determinant", lambda F: calls.append(1) or read(F))
    M = matrix(dtype=dtype)
    wanted = torch.linalg.slogdet(M)
    F = linalg.factor(spgrad.from_dense(M))
    for _ in range(3):
        found = F.slogdet()
        torch.testing.assert_close(found, tuple(wanted))
        for part in found:
            part.add_(1)
    F.logdet()
    assert len(calls) == 1


def test_transforms_of_torch_func():
    A, b = spgrad.from_dense(matrix()), torch.randn(9, dtype=D)

    def factored(vals):
        return linalg.factor(spgrad.from_values(vals, A.pattern), "general")

    functions = {
        linalg.solve: lambda F: F.solve(b),
        lambda A, b: linalg.slogdet(A)[1]: lambda F: F.slogdet()[1],
        lambda A, b: linalg.inverse_diagonal(A): lambda F: F.inverse_diagonal(),
        lambda A, b: linalg.inverse_at(A, A.pattern).values(): lambda F: F.inverse_at(
            A.pattern
        ).values(),
    }
    vals = A.values()
    for plain, kept in functions.items():

        def direct(v, plain=plain):
            return plain(spgrad.from_values(v, A.pattern), b)

        def by_factor(v, kept=kept):
            return kept(factored(v))

        for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
            torch.testing.assert_close(transform(by_factor)(vals), transform(direct)(vals))
        both = torch.stack([vals, 2 * vals])
        expected = torch.stack([direct(v) for v in both])
        torch.testing.assert_close(torch.func.vmap(by_factor)(both), expected)
    # a factor of a matrix that is not transformed
    fixed = torch.func.vmap(lambda right: linalg.factor(A).solve(right))
    torch.testing.assert_close(fixed(b[None]), linalg.solve(A, b)[None])
    with pytest.raises(NotImplementedError, match="made inside of a transform"):
        torch.func.vmap(lambda v: factored(v).apply(b[:, None]))(both)


@pytest.mark.parametrize("solver", [linalg.CG, linalg.MINRES, linalg.GMRES, linalg.BiCGSTAB])
@pytest.mark.parametrize("of_system", [torch.float32, D, torch.complex64, C])
@pytest.mark.parametrize("of_factor", [torch.float32, D])
def test_a_factor_preconditions_systems_of_another_dtype(of_factor, of_system, solver):
    M = matrix().to(of_system)
    M = M @ M.mH + 9 * torch.eye(9)
    M = (M + M.mH) / 2  # which rounding has left not quite hermitian
    b = torch.randn(9, 2, dtype=of_system)
    F = linalg.factor(spgrad.from_dense(M.real.to(of_factor)), "positive definite")
    x, info = linalg.solve(spgrad.from_dense(M), b, solver(preconditioner=F), return_info=True)
    torch.testing.assert_close(x, torch.linalg.solve(M, b), rtol=1e-3, atol=1e-3)
    assert info.iterations <= 5


@pytest.mark.parametrize("adjoint", [False, True])
def test_what_a_factor_of_a_complex_matrix_applies(adjoint):
    M, r = matrix(dtype=C), torch.randn(9, 2, dtype=C)
    F = linalg.factor(spgrad.from_dense(M))
    wanted = torch.linalg.solve(M.mH if adjoint else M, r)
    torch.testing.assert_close(F.apply(r, adjoint), wanted)
    torch.testing.assert_close(
        F.apply(r.to(torch.complex64), adjoint), wanted.to(torch.complex64), rtol=1e-4, atol=1e-4
    )
    F = linalg.factor(spgrad.from_dense(M.real.contiguous()))
    real = M.real.mT if adjoint else M.real
    torch.testing.assert_close(F.apply(r, adjoint), torch.linalg.solve(real.to(C), r))


@pytest.mark.parametrize(
    ("r", "text"),
    [
        (None, "`r` is None; a dense tensor is accepted"),
        (torch.ones(9, dtype=D), r"`r` has shape \(9,\); \(9, n\) is accepted"),
        (torch.ones(8, 2, dtype=D), r"`r` has shape \(8, 2\); \(9, n\) is accepted"),
        (torch.ones(9, 2, device="meta", dtype=D), "`r` is on meta"),
    ],
)
def test_residuals_that_a_factor_refuses(r, text):
    F = linalg.factor(spgrad.from_dense(matrix()))
    with pytest.raises(spgrad.SpgradError, match=rf"^spgrad\.linalg\.Factor\.apply: {text}"):
        F.apply(r)


def test_a_complex_factor_refuses_real_residuals():
    F = linalg.factor(spgrad.from_dense(matrix(dtype=C)))
    with pytest.raises(spgrad.ArgumentValueError, match="`r` has dtype float64, and the factor"):
        linalg.solve(
            spgrad.from_dense(matrix()), torch.ones(9, dtype=D), linalg.GMRES(None, 0.0, 9, F)
        )


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_a_factor_does_not_see_changes_of_the_matrix_in_place(layout):
    """Also where a solve is refined, which takes the residual with the matrix."""
    refined = 0
    for seed in range(60):
        M = matrix(12, seed=seed)
        M = M + torch.where((M == 0) & (M.mT != 0), 0.3 * M.mT, 0) - 1.9 * torch.eye(12, dtype=D)
        A, b = spgrad.from_dense(M).to_sparse(layout=layout), torch.ones(12, dtype=D)
        F = linalg.factor(A)
        wanted, adjoint = F.solve(b), F.solve(b, adjoint=True)
        refined += F._factored().refined
        A.mul_(3)
        assert torch.equal(F.solve(b), wanted)
        assert torch.equal(F.solve(b, adjoint=True), adjoint)
    assert refined


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_a_factor_while_another_thread_factors_the_same_pattern(layout, monkeypatch):
    """A new factor in the middle of another one stands for the switch between the threads."""
    M = matrix(30)
    A = spgrad.from_dense(M).to_sparse(layout=layout)
    by_columns = superlu._by_columns

    def interrupted(*given):
        monkeypatch.setattr(superlu, "_by_columns", by_columns)
        for times in (2, 3):
            linalg.factor(A * times)
        return by_columns(*given)

    monkeypatch.setattr(superlu, "_by_columns", interrupted)
    b = torch.ones(30, dtype=D)
    torch.testing.assert_close(linalg.factor(A).solve(b), torch.linalg.solve(M, b))


def test_another_layout_is_named():
    F = linalg.factor(spgrad.from_dense(matrix()).to_sparse_csr())
    says = r"refactor: `A` has layout coo; csr, .* A\.to_sparse\(layout=torch\.sparse_csr\)"
    with pytest.raises(ValueError, match=says):
        F.refactor(spgrad.from_dense(matrix(), torch.sparse_coo))
